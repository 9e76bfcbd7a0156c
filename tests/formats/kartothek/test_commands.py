"""Commands on a dataset, with a ledger and without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import Commands
from tests.formats.kartothek.test_daemon import rows
from tests.integration.daemon.running import file_table, write_config
from tests.tables.dataset_writer import DatasetWriter


@pytest.fixture
def writer(tmp_path: Path) -> DatasetWriter:
    found = DatasetWriter(tmp_path / "store", partition_on=["name"])
    found.user_metadata = {"source": "erp"}
    found.commit(rows(1, 2))
    return found


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capfd)


def test_a_snapshot_is_printed(writer: DatasetWriter, command: Commands) -> None:
    found = command.tail(writer.location, "--from", "snapshot").rows
    assert [(row["_change_type"], row["id"], row["name"]) for row in found] == [
        ("insert", 1, "n1"),
        ("insert", 2, "n2"),
    ]


@pytest.mark.parametrize("start", ["0", "2020-01-01"])
def test_a_version_that_nobody_kept_is_refused(
    writer: DatasetWriter, command: Commands, start: str
) -> None:
    ran = command.tail(writer.location, "--from", start)
    assert (ran.status, ran.output) == (3, "")
    assert "there is no ledger" in ran.errors


def test_a_kept_version_is_printed(
    writer: DatasetWriter, command: Commands, tmp_path: Path
) -> None:
    ledger = ["--ledger", tmp_path / "ledger"]
    assert command.tail(writer.location, *ledger).status == 0
    writer.commit(rows(3), without=lambda label: "n1" in label)
    found = command.tail(writer.location, "--from", "1", *ledger).rows
    assert [(row["_change_type"], row["id"]) for row in found] == [("delete", 1), ("insert", 3)]
    history = command("history", writer.location, "--json", *ledger).rows
    assert [(row["version"], row["operation"]) for row in history] == [
        (0, "first observed"),
        (1, "update"),
    ]
    assert (history[0]["bytes_added"], history[0]["files_added"]) == (None, 2)
    assert history[1]["bytes_added"] > 0


def test_inspect_says_what_the_metadata_says(writer: DatasetWriter, command: Commands) -> None:
    [found] = command("inspect", writer.location, "--json").rows
    assert (found["num_files"], found["num_rows"], found["table"]) == (2, 2, "table")
    assert found["metadata"] == {"source": "erp"}
    assert found["partition_columns"] == ["name"]
    assert (found["format"], found["capabilities"]["history"]) == ("kartothek", "none")
    files = command("inspect", writer.location, "--files", "--json").rows
    assert [file["partition_values"] for file in files] == [{"name": "n1"}, {"name": "n2"}]
    assert "first observed" in command("history", writer.location).output


def test_what_maintenance_would_do_is_told(writer: DatasetWriter, command: Commands) -> None:
    ran = command("maintain", writer.location)
    assert (ran.status, ran.errors) == (0, "")
    assert "0 files of 0 bytes are garbage" in ran.output
    pinned = command("maintain", writer.location, "--pin", "export=0")
    assert (pinned.status, "cannot be pinned" in pinned.errors) == (2, True)


def test_a_policy_of_another_format_is_refused_once_the_format_is_known(
    writer: DatasetWriter, command: Commands, tmp_path: Path
) -> None:
    policy = {"checkpoint": {"every_commits": 5}, "cleanup": {"enabled": True}}
    table = file_table(writer.location, tmp_path / "out", maintenance=policy)
    ran = command("maintain", "orders", "--config", write_config(tmp_path, orders=table))
    assert ran.status == 2
    assert "maintenance.checkpoint is not a known field" in ran.errors
    assert "format kartothek, which has cleanup, not_between." in ran.errors
    # The engine of a job is a field of a format that has such a job.
    requested = command("maintain", writer.location, "--engine", "spark")
    assert (requested.status, "maintenance.engine" in requested.errors) == (2, True)
