from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.cli.commands import Commands
from tests.tables.builder import CDF, START_MS, TableBuilder


def eventful(folder: Path) -> TableBuilder:
    table = TableBuilder(folder, properties=CDF)
    [add] = table.append([{"id": 1, "name": "a"}]).adds
    change = {"id": 1, "name": "a", "_change_type": "delete"}
    table.commit(table.remove(add), table.cdc_file([change]), operation="DELETE")
    table.change_metadata(properties={"a": "b"})
    table.commit(table.data_file([{"id": 2, "name": "b"}], data_change=False), commit_info=False)
    return table


def test_json_tells_each_commit(tmp_path: Path, command: Commands) -> None:
    eventful(tmp_path)
    ran = command("history", tmp_path, "--json")
    assert (ran.status, ran.errors) == (0, "")
    records = ran.rows
    assert [record["version"] for record in records] == [0, 1, 2, 3]
    assert [record["operation"] for record in records] == [
        *("CREATE TABLE", "DELETE", "SET TBLPROPERTIES", None)
    ]
    assert [record["changes"] for record in records] == ["files", "cdc", "none", "none"]
    assert [record["files_added"] for record in records] == [1, 0, 0, 1]
    assert [record["files_removed"] for record in records] == [0, 1, 0, 0]
    assert [record["change_files"] for record in records] == [0, 1, 0, 0]
    assert records[0]["bytes_added"] == records[1]["bytes_removed"] > 0
    assert records[1]["timestamp_ms"] == START_MS + 1000
    assert records[1]["time"] == "2024-01-01T00:00:01.000Z"


def test_commits_that_a_pipeline_skips_are_named(tmp_path: Path, command: Commands) -> None:
    table = eventful(tmp_path / "orders")
    table.commit(
        {"txn": {"appId": "feed", "version": 1}}, table.data_file([{"id": 3}]), operation="WRITE"
    )
    skip = {"operations": ["delete"], "application_ids": ["feed"]}
    config = tmp_path / "tailerd.yaml"
    section = {"path": str(table.folder), "from": 0, "sink": {"kind": "console"}}
    sinks = {
        "eu": {"sink": {"kind": "console"}, "commits": {"skip": skip}},
        "all": {"sink": {"kind": "console"}},
    }
    tables = {
        "orders": {**section, "commits": {"skip": skip}},
        "plain": section,
        "several": {"path": str(table.folder), "from": 0, "sinks": sinks},
    }
    config.write_text(yaml.safe_dump({"engine": "arrow", "tables": tables}))
    records = command("history", "orders", "--config", config, "--json").rows
    assert [record["skipped_by"] for record in records] == [[], ["orders"], [], [], ["orders"]]
    assert records[-1]["application_ids"] == ["feed"]
    heading, *lines = command("history", "orders", "--config", config).output.splitlines()
    assert heading.split()[-1] == "skipped"
    assert [line.split()[-1] == "orders" for line in lines] == [False, True, False, False, True]
    records = command("history", "several", "--config", config, "--json").rows
    assert [record["skipped_by"] for record in records] == [
        *([], ["several/eu"], [], [], ["several/eu"])
    ]
    assert "skipped" not in command("history", "plain", "--config", config).output


def test_the_newest_commits_are_shown_newest_last(tmp_path: Path, command: Commands) -> None:
    eventful(tmp_path)
    records = command("history", tmp_path, "--limit", 2, "--json").rows
    assert [record["version"] for record in records] == [2, 3]
    heading, *lines = command("history", tmp_path, "--limit", 2).output.splitlines()
    assert heading.split()[:3] == ["version", "time", "operation"]
    assert [line.split()[0] for line in lines] == ["2", "3"]


def test_a_log_that_was_cleaned_up_begins_where_it_begins(
    tmp_path: Path, command: Commands
) -> None:
    table = eventful(tmp_path)
    table.checkpoint(2)
    for version in (0, 1):
        table.commit_path(version).unlink()
    records = command("history", tmp_path, "--json").rows
    assert [record["version"] for record in records] == [2, 3]


def test_commits_before_the_oldest_checkpoint_are_left_out_and_that_is_said(
    tmp_path: Path, command: Commands
) -> None:
    table = eventful(tmp_path)
    table.checkpoint(2)
    table.commit_path(0).unlink()
    ran = command("history", tmp_path, "--json")
    assert (ran.status, [record["version"] for record in ran.rows]) == (0, [2, 3])
    assert ran.errors.startswith("warning[missing_version]: Version 1 is left out")
    ran = command("history", tmp_path, "--json", "--limit", 2)
    assert (ran.status, ran.errors, len(ran.rows)) == (0, "", 2)


@pytest.mark.parametrize("gone", [0, 1], ids=["no version can be rebuilt", "a gap"])
def test_a_commit_that_is_missing_is_an_error(tmp_path: Path, command: Commands, gone: int) -> None:
    table = eventful(tmp_path)
    if gone:
        table.checkpoint()
    table.commit_path(gone).unlink()
    ran = command("history", tmp_path, "--json")
    assert ran.status == 3
    assert ran.errors.startswith("error[missing_version]: ")
    assert "ersion 1 " in ran.errors if gone else ran.output == ""


def test_a_torn_commit_is_an_error_that_names_it(tmp_path: Path, command: Commands) -> None:
    table = eventful(tmp_path)
    table.raw_commit(b'{"add":')
    ran = command("history", tmp_path, "--json")
    assert ran.status == 3
    assert ran.errors.startswith("error[torn_commit]: ")
