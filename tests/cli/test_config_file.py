"""The configuration that a command uses: `--config FILE`, FILE, or `./tailerd.yaml`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import Commands
from tests.integration.daemon.running import file_table, make_table, write_config
from tests.tables.dataset_writer import DatasetWriter

WITH_FILE = (("run", "--once"), ("validate",), ("doctor",))
OTHERS = (("offsets",), ("verify", "orders"), ("offsets", "reset", "orders", "--to", "snapshot"))


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration in the current directory."""
    make_table(tmp_path / "t", 1)
    monkeypatch.chdir(tmp_path)
    return write_config(tmp_path, orders=file_table(tmp_path / "t", tmp_path / "out"))


def test_every_command_uses_the_file_in_the_current_directory(
    config: Path, command: Commands
) -> None:
    for arguments in (*WITH_FILE, *OTHERS):
        ran = command(*arguments)
        assert ran.status == 0, ran.errors
        if arguments != ("doctor",):
            assert ran.status == command(*arguments, "--config", config).status
    assert "configuration" in command("doctor").output
    # It has port 0, which only this file can be the reason for.
    for verb in ("status", "pause", "resume"):
        name = () if verb == "status" else ("orders",)
        assert "http.listen has port 0" in command(verb, *name).errors
        elsewhere = command(verb, *name, "--http", "http://127.0.0.1:9")
        assert "No daemon answers at http://127.0.0.1:9" in elsewhere.errors


@pytest.mark.parametrize("arguments", WITH_FILE, ids=lambda each: each[0])
def test_some_commands_take_the_file_alone_but_not_two(
    arguments: tuple[str, ...], config: Path, command: Commands
) -> None:
    moved = config.rename("other.yaml")
    assert command(*arguments, moved).status == 0
    assert command(*arguments[:1], moved, *arguments[1:]).status == 0
    for both in ((moved, "--config", moved), ("--config", moved, moved)):
        refused = command(*arguments, *both)
        assert refused.status == 2
        assert "FILE and --config name two files" in refused.errors


def test_a_missing_file_is_named_with_the_way_to_write_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Commands
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (("run",), ("validate",), *OTHERS):
        refused = command(*arguments)
        assert refused.status == 2
        assert "tailerd.yaml cannot be read" in refused.errors
        assert "tailerd init" in refused.errors
    assert "configuration" not in command("doctor").output
    assert "No daemon answers at http://127.0.0.1:9464" in command("status").errors


TABLE_COMMANDS = (("tail", "--once", "--from", "0"), ("inspect",), ("history",), ("maintain",))


@pytest.mark.parametrize("arguments", TABLE_COMMANDS, ids=lambda each: each[0])
def test_a_table_may_be_named_as_in_the_configuration(
    arguments: tuple[str, ...], config: Path, command: Commands
) -> None:
    by_path = command(*arguments, config.parent / "t")
    assert by_path.status == 0
    for by_name in (("orders",), ("orders", "--config", config), ("--config", config, "orders")):
        ran = command(*arguments, *by_name)
        assert (ran.status, ran.errors) == (0, "")
        assert ran.output.count("\n") == by_path.output.count("\n")
    wrong = command(*arguments, "ordrs", "--config", config)
    assert (wrong.status, "Did you mean `orders`?" in wrong.errors) == (2, True)
    # A folder of that name is what the user sees.
    (config.parent / "orders").mkdir()
    assert command(*arguments, "orders").status == 3
    assert command(*arguments, "orders", "--config", config).status == 0


def test_the_options_of_a_configured_table_count_for_commands_too(
    tmp_path: Path, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    writer = DatasetWriter(tmp_path / "store")
    writer.commit([{"id": 1, "name": "a"}])
    options = {"format": "kartothek"}
    config = write_config(tmp_path, orders=file_table(writer.location, tmp_path / "out", **options))
    assert command("run", config, "--once").status == 0
    writer.commit([{"id": 2, "name": "b"}])
    assert command("run", config, "--once").status == 0
    # Its history is in the ledger of the daemon.
    assert len(command("history", "orders", "--json").rows) == 2
    assert len(command("history", writer.location, "--json").rows) == 1
