"""The remedy of a gap can be pasted where it is read: log, terminal, Python, Spark."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import tailerd
from tailerd import remedies
from tailerd.cli import run
from tailerd.errors import MissingVersionError, TailerdError
from tailerd.remedies import RESET_PIPELINE
from tailerd.spark.query_errors import AS_DATA, parse_error
from tailerd.spark.worker_edge import worker_edge
from tests.formats.conftest import Table
from tests.formats.delivering import changes, delivered
from tests.integration.daemon.running import file_table, write_config


def commands(text: str) -> list[list[str]]:
    """The commands that a text shows, as arguments."""
    return [shlex.split(found) for found in re.findall(r"`tailerd ([^`]+)`", text)]


@pytest.mark.parametrize("damage", ["gap", "replaced"])
def test_the_command_in_the_error_of_a_pipeline_continues_it(
    table: Table, tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if (table.format, damage) == ("kartothek", "gap"):
        pytest.skip("its history is the daemon's ledger")
    (tmp_path / "a folder").mkdir()
    config = write_config(
        tmp_path / "a folder", orders=file_table(table.location, tmp_path / "out")
    )
    once = ["run", "--config", str(config), "--once", "--log-format", "json"]
    table.append([1])
    assert run(once) == 0
    if damage == "gap":
        table.append([2])
        table.drop_before(table.append([3]))
    else:
        table.replace()
    capsys.readouterr()
    assert run(once) == 3
    shown = capsys.readouterr().err
    # The log line and the last line of the command have the same one.
    (in_log, at_end) = commands(shown.replace('\\"', '"'))
    assert in_log == at_end
    assert in_log[:5] == ["offsets", "reset", "orders", "--to", "snapshot"]
    assert run(["validate", str(config)]) in (0, 3)
    validated = capsys.readouterr()
    assert all(found == in_log for found in commands(validated.out + validated.err))
    assert run(in_log) == 0
    assert run(once) == 0
    expected = {1} if damage == "replaced" else {1, 2, 3}
    assert {number for _, number, _ in changes(delivered(tmp_path / "out"))} == expected


def test_the_option_in_the_error_of_a_command_or_a_program_begins_again(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    if table.format in ("kartothek", "tiledb"):
        pytest.skip("its first version is another one")
    first = table.append([1])
    table.append([2])
    table.drop_before(table.append([3]))
    location = str(table.location)
    tail = ["tail", location, "--once", "--format", "jsonl", "--from"]
    assert run([*tail, str(first)]) == 3
    assert "Use --from snapshot" in capsys.readouterr().err
    assert run([*tail, "snapshot"]) == 0
    with pytest.raises(TailerdError, match='Pass since="snapshot"'):
        list(tailerd.changes(location, since=int(first)))
    assert tailerd.changes(location, since="snapshot").to_arrow().num_rows == 3


def test_an_error_in_spark_names_the_option_and_in_the_daemon_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(AS_DATA, "1")
    error = MissingVersionError("Version 3 is gone.", remedy=RESET_PIPELINE)
    with pytest.raises(MissingVersionError, match="the option snapshot to true"), worker_edge():
        raise error
    found = parse_error("\n".join(error.__notes__))
    found.address(remedies.pipeline_reader("orders", "/my lake/c.yaml"))
    assert commands(str(found)) == [
        ["offsets", "reset", "orders", "--to", "snapshot", "--config", "/my lake/c.yaml"]
    ]
