from __future__ import annotations

import zoneinfo
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest

from tailerd.changefeed.change_task import ChangeTask, ChangeType
from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import Offset
from tailerd.errors import ConfigError, ZoneAssumedError
from tailerd.formats.delta.changes.partition_zone import PartitionZone
from tailerd.formats.delta.changes.snapshot_files import Spool
from tailerd.formats.delta.protocol.data_file import data_file
from tests.doubles.owned_state import owned_scratch
from tests.tables.builder import TableBuilder
from tests.tables.opened import open_delta

Mapping = Literal["none", "name"]

EVERYTHING = ReadLimit(max_files=1000, max_bytes=10**9)
NOON, ZULU = "2024-07-01 12:00:00", "2024-07-01T12:00:00Z"
FIELDS = [
    ("id", "long"),
    ("at", "timestamp"),
    ("wall", "timestamp_ntz"),
    ("day", "date"),
    ("name", "string"),
]


def events(folder: Path, *texts: str, mapping: Mapping = "none") -> TableBuilder:
    """A table with a file for each text, which is the value of all its partition columns."""
    names = [name for name, _ in FIELDS[1:]]
    table = TableBuilder(folder, fields=FIELDS, partition_by=names, mapping=mapping)
    table.create()
    physical = names if mapping == "none" else [f"col-{n:04}" for n in range(2, 6)]
    for text in texts:
        values = {**dict.fromkeys(physical, text), physical[2]: "2024-07-01"}
        table.commit(table.data_file(pa.table({"id": [1]}), partition=values))
    return table


async def planned(
    table: TableBuilder, zone: PartitionZone | None, start: str = "0"
) -> list[ChangeTask]:
    source = await open_delta(str(table.folder), zone=zone)
    at, found = await source.initial_offset(start), []
    while (end := await source.latest_offset(at, EVERYTHING)) != at:
        found += [task async for group in source.plan(at, end) for task in group.tasks]
        at = end
    return found


@pytest.mark.parametrize("start", ["0", "snapshot"])
@pytest.mark.parametrize("mapping", ["none", "name"])
async def test_only_instants_without_a_zone_get_one(
    tmp_path: Path, start: str, mapping: Mapping
) -> None:
    table = events(tmp_path, NOON, ZULU, mapping=mapping)
    zone = PartitionZone(str(tmp_path), "Europe/Berlin")
    found = [
        [text for _, text in data_file(task).partition_values]
        for task in await planned(table, zone, start)
    ]
    assert sorted(found) == [
        [f"{NOON}+02:00:00", NOON, "2024-07-01", NOON],
        [ZULU, ZULU, "2024-07-01", ZULU],
    ]


async def test_removed_files_get_it_as_added_ones_do(tmp_path: Path) -> None:
    table = events(tmp_path, NOON)
    [add] = table.state().adds.values()
    table.commit(table.remove({"add": add}))
    inserted, deleted = await planned(table, PartitionZone(str(tmp_path), "Europe/Berlin"))
    assert deleted.change_type is ChangeType.DELETE
    assert data_file(inserted).partition_values == data_file(deleted).partition_values


async def test_a_guess_is_told_once_for_a_table_that_is_open(tmp_path: Path) -> None:
    reported: list[ZoneAssumedError] = []
    first, second = (events(tmp_path / name, NOON, ZULU, NOON) for name in ("a", "b"))
    for table in (first, second):
        zone = PartitionZone(str(table.folder), None, reported.append)
        assert data_file((await planned(table, zone))[0]).partition_values[0][1] == NOON
    assert len(reported) == 2
    assert (f"{first.folder} " in str(reported[0]), f"{second.folder} " in str(reported[1])) == (
        True,
        True,
    )
    for named in ("partition_timezone", "--partition-timezone", "partitionTimezone"):
        assert named in reported[0].remedy
    assert "timestamps of at in" in reported[0].message
    assert NOON not in str(reported[0]), "no values of rows are told"


@pytest.mark.parametrize(
    ("name", "text"), [("UTC", NOON), ("Europe/Berlin", NOON), (None, ZULU), (None, "")]
)
async def test_nothing_is_told_where_nothing_is_guessed(
    tmp_path: Path, name: str | None, text: str
) -> None:
    reported: list[ZoneAssumedError] = []
    await planned(events(tmp_path, text), PartitionZone(str(tmp_path), name, reported.append))
    assert not reported


async def test_tables_without_such_partitions_keep_their_tasks_as_they_are(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, fields=[("id", "long"), ("at", "timestamp")])
    table.append([{"id": 1}])
    source = await open_delta(str(tmp_path))
    at = await source.initial_offset("0")
    end = await source.latest_offset(at, EVERYTHING)
    [group] = [group async for group in source.plan(at, end)]
    [before], [after] = group.tasks, PartitionZone(str(tmp_path), "Asia/Kolkata").apply(group.tasks)
    assert after is before


async def test_a_snapshot_that_was_begun_without_a_zone_goes_on_with_one(tmp_path: Path) -> None:
    folder = str(events(tmp_path / "t", NOON, NOON).folder)
    spool, one = Spool(owned_scratch(tmp_path / "spool")), ReadLimit(max_files=1, max_bytes=1)
    at, texts = None, []
    for zone in (None, PartitionZone(folder, "Europe/Berlin")):
        source = await open_delta(folder, spool=spool, zone=zone)
        at = Offset.from_json(at.to_json()) if at else await source.initial_offset("snapshot")
        end = await source.latest_offset(at, one)
        texts += [
            data_file(t).partition_values[0][1] async for g in source.plan(at, end) for t in g.tasks
        ]
        at = end
    assert texts == [NOON, f"{NOON}+02:00:00"]


@pytest.mark.parametrize("name", ["Berlin", "europe/paris2", "Europe", "../UTC", " ", "right/UTC"])
def test_a_zone_that_is_none_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=r"such as Europe/Berlin") as raised:
        PartitionZone("/lake/orders", name)
    assert repr(name) in str(raised.value)
    assert "/lake/orders" in str(raised.value)


def test_zones_have_names_where_the_system_has_no_data_of_them() -> None:
    before = zoneinfo.TZPATH
    try:
        zoneinfo.reset_tzpath(to=[])
        zoneinfo.ZoneInfo.clear_cache()
        PartitionZone("/lake/orders", "Pacific/Chatham")
    finally:
        zoneinfo.reset_tzpath(to=before)
        zoneinfo.ZoneInfo.clear_cache()
