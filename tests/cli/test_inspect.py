from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import Commands
from tests.tables.builder import CDF, START_MS, TABLE_ID, TableBuilder

CONTRACT: dict[str, type | tuple[type, ...]] = {
    "table_id": str,
    "name": (str, type(None)),
    "path": str,
    "version": int,
    "timestamp_ms": int,
    "num_files": int,
    "size_bytes": int,
    "num_rows": (int, type(None)),
    "protocol": dict,
    "partition_columns": list,
    "schema": dict,
    "properties": dict,
    "checkpoint_version": (int, type(None)),
    "domain_metadata": dict,
    "transactions": dict,
    "change_data_feed": bool,
}


def rows(*numbers: int) -> list[dict[str, object]]:
    return [{"id": number, "name": str(number)} for number in numbers]


def full(folder: Path) -> TableBuilder:
    table = TableBuilder(
        folder,
        partition_by=["name"],
        properties=CDF,
        reader_features=["deletionVectors"],
        writer_features=["changeDataFeed", "domainMetadata"],
    )
    table.append(rows(1, 2))
    table.commit(
        {"txn": {"appId": "writer", "version": 7}},
        {"domainMetadata": {"domain": "d", "configuration": "{}", "removed": False}},
    )
    table.checkpoint()
    [add] = table.append([{"id": 3, "name": "1"}, {"id": 4, "name": "1"}]).adds
    table.delete_rows(add, [0])
    return table


def test_json_has_every_field_of_the_contract(tmp_path: Path, command: Commands) -> None:
    table = full(tmp_path)
    ran = command("inspect", tmp_path, "--json")
    assert (ran.status, ran.errors) == (0, "")
    [found] = ran.rows
    for name, kind in CONTRACT.items():
        assert isinstance(found[name], kind), name
    sizes = [add["size"] for add in table.state().adds.values()]
    expected: dict[str, Any] = {
        "table_id": TABLE_ID,
        "path": str(tmp_path),
        "version": 3,
        "timestamp_ms": START_MS + 3000,
        "num_files": 3,
        "size_bytes": sum(sizes),
        "num_rows": 3,
        "partition_columns": ["name"],
        "properties": CDF,
        "checkpoint_version": 1,
        "domain_metadata": {"d": "{}"},
        "transactions": {"writer": 7},
        "change_data_feed": True,
        "schema": json.loads(table.schema_string),
    }
    assert {name: found[name] for name in expected} == expected
    assert found["protocol"] == {
        "min_reader_version": 3,
        "min_writer_version": 7,
        "reader_features": ["deletionVectors"],
        "writer_features": ["deletionVectors", "changeDataFeed", "domainMetadata"],
    }


def test_files_are_told_one_a_line(tmp_path: Path, command: Commands) -> None:
    table = full(tmp_path)
    ran = command("inspect", tmp_path, "--files", "--json")
    found = {record["path"]: record for record in ran.rows}
    adds = {add["path"]: add for add in table.state().adds.values()}
    assert found.keys() == adds.keys()
    for path, add in adds.items():
        vector = add.get("deletionVector")
        identity = vector and f"u{vector['pathOrInlineDv']}@{vector['offset']}"
        assert found[path] == {
            "path": path,
            "size_bytes": add["size"],
            "partition_values": add["partitionValues"],
            "modification_time_ms": add["modificationTime"],
            "num_rows": json.loads(add["stats"])["numRecords"],
            "deletion_vector": identity,
            "deleted_rows": 1 if vector else 0,
        }


def test_rows_are_not_guessed_where_a_file_has_no_statistics(
    tmp_path: Path, command: Commands
) -> None:
    table = TableBuilder(tmp_path)
    table.create(table.data_file(rows(1)), table.data_file(rows(2), stats=False))
    [found] = command("inspect", tmp_path, "--json").rows
    assert found["num_rows"] is None
    files = command("inspect", tmp_path, "--files", "--json").rows
    assert sorted(file["num_rows"] or 0 for file in files) == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "version"),
    [
        ([], 3),
        (["--version", "0"], 0),
        (["--version", "2"], 2),
        (["--timestamp", "2024-01-01T00:00:01.999Z"], 1),
        (["--timestamp", "2024-01-01 00:00:02"], 2),
        (["--timestamp", "2030-01-01"], 3),
    ],
    ids=repr,
)
def test_an_older_version_can_be_asked_for(
    tmp_path: Path, command: Commands, arguments: list[str], version: int
) -> None:
    table = full(tmp_path)
    [found] = command("inspect", tmp_path, "--json", *arguments).rows
    assert found["version"] == version
    assert found["num_files"] == len(table.state(version).adds)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--version", "9"], 3),
        (["--timestamp", "2023-01-01"], 3),
        (["--timestamp", "noon"], 2),
    ],
    ids=repr,
)
def test_a_version_that_is_not_there_is_an_error(
    tmp_path: Path, command: Commands, arguments: list[str], status: int
) -> None:
    full(tmp_path)
    ran = command("inspect", tmp_path, "--json", *arguments)
    assert (ran.status, ran.output) == (status, "")


def test_people_get_names_and_values(tmp_path: Path, command: Commands) -> None:
    full(tmp_path)
    lines = command("inspect", tmp_path).output.splitlines()
    names = [line.split("  ")[0] for line in lines]
    for name in ("table", "version", "committed", "files", "rows", "protocol", "change data feed"):
        assert name in names
    assert any(name.startswith("column ") for name in names)
    heading, *files = command("inspect", tmp_path, "--files").output.splitlines()
    assert heading.split()[:3] == ["path", "size_bytes", "num_rows"]
    assert len(files) == 3


def test_a_checksum_that_differs_is_a_warning_and_with_strict_an_error(
    tmp_path: Path, command: Commands
) -> None:
    table = full(tmp_path)
    table.checksum(numFiles=99)
    ran = command("inspect", tmp_path, "--json")
    assert (ran.status, len(ran.rows)) == (0, 1)
    assert ran.errors.startswith("warning[checksum_mismatch]: ")
    ran = command("inspect", tmp_path, "--json", "--strict")
    assert (ran.status, ran.output) == (3, "")
    assert ran.errors.startswith("error[checksum_mismatch]: ")


def test_a_table_whose_rows_cannot_be_read_can_still_be_looked_at(
    tmp_path: Path, command: Commands
) -> None:
    TableBuilder(tmp_path, reader_features=["someFutureFeature"]).append(rows(1))
    ran = command("inspect", tmp_path, "--json")
    assert (ran.status, len(ran.rows)) == (0, 1)
    assert ran.errors.startswith("warning[unsupported_feature]: ")


def test_a_table_left_with_its_checkpoint_alone_has_no_time(
    tmp_path: Path, command: Commands
) -> None:
    table = TableBuilder(tmp_path)
    table.append(rows(1))
    table.append(rows(2))
    table.checkpoint()
    for version in (0, 1):
        table.commit_path(version).unlink()
    [found] = command("inspect", tmp_path, "--json").rows
    assert (found["version"], found["num_rows"], found["timestamp_ms"]) == (1, 2, None)
