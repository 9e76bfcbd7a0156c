"""Histories that the tables of others do not have, written with pyiceberg."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT, ReadLimit
from tailerd.changefeed.offset import Offset, Phase, Version
from tailerd.errors import (
    InvalidDeletionVectorError,
    MissingVersionError,
    NotATableError,
    PathOutsideTableError,
    TailerdError,
    UnsupportedFeatureError,
)
from tailerd.formats.base import ChangeSource, OpenRequest
from tailerd.formats.detect import find_format, open_table, table_format
from tailerd.formats.iceberg.deleted_rows import decode_vector
from tailerd.formats.iceberg.payload import Vector
from tailerd.storage.table_location import locate_table
from tests.tables.builder import TableBuilder
from tests.tables.iceberg_writer import NAME, IcebergWriter
from tests.waiting import PATIENCE_SECONDS

ALL = ReadLimit(max_files=10**9, max_bytes=10**15)


def row(number: int) -> dict[str, Any]:
    return {"id": number, "name": f"n{number}"}


@pytest.fixture
def writer(tmp_path: Path) -> IcebergWriter:
    return IcebergWriter(tmp_path / "table")


async def opened(location: object, **options: object) -> ChangeSource:
    return await open_table(locate_table(str(location)), OpenRequest(options=options))


async def rows(source: ChangeSource, start: Offset) -> list[tuple[int, str, int]]:
    """Read everything from an offset on: version, change and id of each row."""
    found: list[tuple[int, str, int]] = []
    end = await source.latest_offset(start, ALL)
    while end != start:
        async for group in source.plan(start, end):
            for task in group.tasks:
                for batch in source.read(task, DEFAULT_BATCH_LIMIT):
                    kinds, ids = batch.change_types().to_pylist(), batch.rows.column("id")
                    pairs = zip(kinds, ids.to_pylist(), strict=True)
                    found += [(int(batch.version), kind, number) for kind, number in pairs]
        start, end = end, await source.latest_offset(end, ALL)
    return found


async def test_in_format_version_1_versions_are_times(tmp_path: Path) -> None:
    writer = IcebergWriter(tmp_path / "table", properties={"format-version": "1"})
    versions = [writer.append([row(number)]) for number in range(3)]
    deleted = writer.delete("id = 1")
    source = await opened(writer.location)
    found = await rows(source, await source.initial_offset(str(versions[0])))
    expected = [(version, "insert", number) for number, version in enumerate(versions)]
    assert found == [*expected, (deleted, "delete", 1)]


async def test_of_two_commits_in_a_millisecond_the_later_gets_one_more(tmp_path: Path) -> None:
    writer = IcebergWriter(tmp_path / "table", properties={"format-version": "1"})
    first = writer.append([row(1)])
    writer.append([row(2)])
    change_metadata(writer, lambda found: found["snapshots"][1].update({"timestamp-ms": first}))
    source = await opened(writer.location)
    found = await rows(source, await source.initial_offset(str(first)))
    assert found == [(first, "insert", 1), (first + 1, "insert", 2)]


def newest_metadata(writer: IcebergWriter) -> Path:
    return sorted((writer.location / "metadata").glob("*.metadata.json"))[-1]


def change_metadata(writer: IcebergWriter, change: Any) -> None:
    """Write the newest metadata file again, changed, under the next number."""
    path = newest_metadata(writer)
    content = json.loads(path.read_text())
    change(content)
    number = int(path.name.partition("-")[0]) + 1
    (path.parent / f"{number:05d}-changed.metadata.json").write_text(json.dumps(content))


@pytest.mark.parametrize("is_reopened", [False, True])
async def test_a_pipeline_keeps_its_times_after_an_upgrade(
    tmp_path: Path, is_reopened: bool
) -> None:
    writer = IcebergWriter(tmp_path / "table", properties={"format-version": "1"})
    first = writer.append([row(1)])
    source = await opened(writer.location)
    offset = await source.initial_offset("latest")
    with writer.table.transaction() as transaction:
        transaction.upgrade_table_version(2)
    writer.append([row(2)])
    second = writer.table.current_snapshot().timestamp_ms
    new = await opened(writer.location)
    assert await rows(new, await new.initial_offset("1")) == [(1, "insert", 2)]
    if is_reopened:
        source = await opened(writer.location)
    assert await rows(source, offset) == [(second, "insert", 2)]
    assert (await source.backlog(offset)).versions == 1
    expected = [(first, "insert", 1), (second, "insert", 2)]
    assert await rows(source, await source.initial_offset(str(first))) == expected
    # Even without a snapshot of format version 1.
    offset = await source.latest_offset(offset, ALL)
    change_metadata(writer, lambda found: found["snapshots"].pop(0))
    writer.append([row(3)])
    third = writer.table.current_snapshot().timestamp_ms
    source = await opened(writer.location) if is_reopened else source
    assert await rows(source, offset) == [(third, "insert", 3)]


async def test_a_rollback_is_never_nothing_new(writer: IcebergWriter) -> None:
    writer.append([row(1)])
    first = writer.table.current_snapshot().snapshot_id
    writer.append([row(2)])
    source = await opened(writer.location)
    offset = await source.initial_offset("latest")
    writer.table.manage_snapshots().set_current_snapshot(first).commit()
    with pytest.raises(MissingVersionError, match="rolled back"):
        await source.latest_offset(offset, ALL)


async def test_a_commit_after_a_rollback_is_not_taken_for_the_next(writer: IcebergWriter) -> None:
    writer.append([row(1)])
    first = writer.table.current_snapshot().snapshot_id
    writer.append([row(2)])
    source = await opened(writer.location)
    offset = await source.initial_offset("latest")
    writer.table.manage_snapshots().set_current_snapshot(first).commit()
    writer.append([row(3)])
    with pytest.raises(MissingVersionError, match="no ancestor"):
        await source.latest_offset(offset, ALL)
    again = await opened(writer.location)
    found = await rows(again, await again.initial_offset("1"))
    assert found == [(1, "insert", 1), (3, "insert", 3)]


async def test_an_expired_snapshot_is_a_gap(writer: IcebergWriter) -> None:
    writer.append([row(1)])
    source = await opened(writer.location)
    offset = await source.initial_offset("1")
    writer.append([row(2)])
    writer.append([row(3)])
    behind = await source.offset_at(Version(2))
    writer.expire_before(3)
    with pytest.raises(MissingVersionError):
        await source.latest_offset(behind, ALL)
    with pytest.raises(MissingVersionError):
        await source.latest_offset(offset, ALL)


async def test_a_branch_has_its_own_commits(writer: IcebergWriter) -> None:
    writer.append([row(1)])
    first = writer.table.current_snapshot().snapshot_id
    writer.table.manage_snapshots().create_branch(first, "audit").commit()
    writer.append([row(2)])
    main = await opened(writer.location)
    audit = await opened(writer.location, branch="audit")
    assert [number for *_, number in await rows(main, await main.initial_offset("1"))] == [1, 2]
    assert [number for *_, number in await rows(audit, await audit.initial_offset("1"))] == [1]
    with pytest.raises(TailerdError, match="no branch or tag 'nope'; it has audit, main"):
        await opened(writer.location, branch="nope")


async def test_a_table_that_was_copied_is_read_where_it_is(
    writer: IcebergWriter, tmp_path: Path
) -> None:
    writer.append([row(1)])
    shutil.move(writer.location, tmp_path / "copy")
    source = await opened(tmp_path / "copy")
    assert await rows(source, await source.initial_offset("1")) == [(1, "insert", 1)]


async def test_a_path_outside_the_table_must_be_allowed(
    writer: IcebergWriter, tmp_path: Path
) -> None:
    writer.append([row(1)])
    elsewhere = f"{writer.location}/inside"
    change_metadata(writer, lambda found: found.update({"location": elsewhere}))
    shutil.move(writer.location, tmp_path / "copy")
    source = await opened(tmp_path / "copy")
    with pytest.raises(PathOutsideTableError, match="--allow-path"):
        await rows(source, await source.offset_at(Version(1), Phase.SNAPSHOT))


async def test_a_metadata_file_is_the_table_as_it_was(writer: IcebergWriter) -> None:
    writer.append([row(1)])
    path = newest_metadata(writer)
    writer.append([row(2)])
    source = await opened(path)
    assert await rows(source, await source.initial_offset("1")) == [(1, "insert", 1)]


def run_with_catalog(uri: str, table: str) -> subprocess.CompletedProcess[str]:
    """Run `tail` in a process: pyiceberg reads its configuration once."""
    catalog = {"PYICEBERG_CATALOG__TESTS__URI": uri, "PYICEBERG_CATALOG__TESTS__TYPE": "sql"}
    return subprocess.run(
        [sys.executable, "-m", "tailerd", "tail", table, "--from", "1", "--once", "--format=jsonl"],
        env=os.environ | catalog,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def test_a_table_of_a_catalog_is_read_through_it(writer: IcebergWriter) -> None:
    writer.append([row(1)])
    writer.delete("id = 1")
    # A file that was never committed: the catalog does not name it.
    change_metadata(writer, lambda found: found.update({"current-snapshot-id": -1, "refs": {}}))
    uri = f"sqlite:///{writer.catalog_file}"
    ran = run_with_catalog(uri, f"iceberg://tests/{NAME}")
    assert ran.returncode == 0, ran.stderr
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [(each["_change_type"], each["id"]) for each in found] == [("insert", 1), ("delete", 1)]
    missing = run_with_catalog(uri, "iceberg://tests/lake.nope")
    assert missing.returncode == 3
    assert "has no table lake.nope" in missing.stderr
    unknown = run_with_catalog(uri, "iceberg://nope/lake.orders")
    assert unknown.returncode == 2
    assert "is not configured" in unknown.stderr


def test_an_error_of_a_catalog_shows_no_password() -> None:
    uri = "postgresql+psycopg2://reader:hunter2@127.0.0.1:1/catalog"
    ran = run_with_catalog(uri, "iceberg://tests/lake.orders")
    assert ran.returncode in (1, 2)
    assert "hunter2" not in ran.stderr + ran.stdout


async def test_a_table_without_a_snapshot_is_empty(writer: IcebergWriter) -> None:
    assert writer.table.current_snapshot() is None
    source = await opened(writer.location)
    start = await source.initial_offset("snapshot")
    assert await rows(source, start) == []
    writer.append([row(1)])
    assert await rows(source, start) == [(1, "insert", 1)]


async def test_net_changes_are_the_difference_of_two_snapshots(writer: IcebergWriter) -> None:
    for number in range(4):
        writer.append([row(number)])
    writer.delete("id = 1 or id = 0")
    ran = Offset(table_id="", version=Version(2))
    source = await open_table(
        locate_table(str(writer.location)), OpenRequest(changes=changes_mode("net"))
    )
    start = await source.offset_at(ran.version)
    found = {(change, number) for _, change, number in await rows(source, start)}
    assert found == {("delete", 0), ("insert", 2), ("insert", 3)}


def changes_mode(name: str) -> Any:
    from tailerd.changefeed.change_task import ChangeMode

    return ChangeMode(name)


async def test_change_files_are_refused(writer: IcebergWriter) -> None:
    writer.append([row(1)])
    request = OpenRequest(changes=changes_mode("cdf"))
    with pytest.raises(UnsupportedFeatureError, match="no change data feed"):
        await open_table(locate_table(str(writer.location)), request)


@pytest.mark.parametrize("content", [b"", b"{", b'{"format-version": 2}', b"\x1f\x8bnothing"])
async def test_damaged_metadata_is_refused(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "table" / "metadata"
    folder.mkdir(parents=True)
    (folder / "v1.metadata.json").write_bytes(content)
    with pytest.raises(TailerdError, match=r"v1\.metadata\.json"):
        await opened(tmp_path / "table")


async def test_a_folder_without_metadata_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "metadata").mkdir()
    with pytest.raises(NotATableError):
        await open_table(locate_table(str(tmp_path)), OpenRequest(), "iceberg")


@pytest.mark.parametrize("blob", [b"", bytes(40), bytes([0, 0, 0, 32]) + bytes(36)])
def test_a_damaged_vector_is_refused(blob: bytes) -> None:
    with pytest.raises(InvalidDeletionVectorError):
        decode_vector(blob, Vector(url="x", offset=4, length=40, rows=1))


async def test_a_delta_table_with_iceberg_metadata_is_read_as_delta(tmp_path: Path) -> None:
    # UniForm writes both into one folder.
    folder = tmp_path / "table"
    IcebergWriter(folder)
    TableBuilder(folder).append([row(1)])
    location = locate_table(str(folder))
    assert (await find_format(location)).name == "delta"
    assert not table_format("iceberg").is_at(location)
    assert (await find_format(location, "iceberg")).name == "iceberg"
