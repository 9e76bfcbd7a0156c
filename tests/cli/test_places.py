"""A location that is obviously no table: what is said, and what was probably meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import Commands

READERS = ["tail", "inspect", "history"]


@pytest.mark.parametrize("name", READERS)
def test_a_folder_that_does_not_exist_is_not_called_a_log_without_commits(
    lake: Path, command: Commands, name: str
) -> None:
    ran = command(name, lake / "nope")
    assert ran.status == 3
    assert "the folder does not exist" in ran.errors
    assert "holds no commit" not in ran.errors


@pytest.mark.parametrize("table_format", ["delta", "iceberg", "kartothek", "lance", "tiledb"])
def test_a_folder_that_does_not_exist_is_said_of_a_named_format_too(
    lake: Path, command: Commands, table_format: str
) -> None:
    ran = command("tail", lake / "ordres", "--once", "--table-format", table_format)
    assert ran.status == 3
    assert f"the folder does not exist. Did you mean {lake}/orders?" in ran.errors


@pytest.mark.parametrize("name", READERS)
def test_a_folder_that_is_spelled_wrong_is_named_rightly(
    lake: Path, command: Commands, name: str
) -> None:
    assert f"Did you mean {lake}/orders?" in command(name, lake / "ordres").errors


@pytest.mark.parametrize("name", READERS)
def test_the_log_of_a_table_leads_to_the_table(lake: Path, command: Commands, name: str) -> None:
    ran = command(name, lake / "orders/_delta_log")
    assert ran.status == 3
    assert f"Did you mean {lake}/orders?" in ran.errors


def test_a_pipeline_that_fails_is_named(lake: Path, tmp_path: Path, command: Commands) -> None:
    config = tmp_path / "t.yaml"
    config.write_text(
        f"engine: arrow\nstate: {tmp_path}/state\nhttp: {{listen: '127.0.0.1:0'}}\n"
        f"tables:\n  lost: {{path: {lake}/nowhere, sink: {{kind: console}}}}\n"
    )
    ran = command("run", "--config", config, "--once")
    assert ran.status == 3
    assert "error[not_a_table]: lost: " in ran.errors
