"""Rows 25, 47, 49 of the corners: what a version asks of its readers; very large commits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailerd.changefeed.limits import ReadLimit
from tailerd.errors import CorruptLogError, UnsupportedFeatureError
from tailerd.formats.delta.log import log_folder, log_reader, segment_replay
from tests.cli.commands import Commands
from tests.tables.builder import TableBuilder
from tests.tables.feed import EVERYTHING, changes, steps
from tests.tables.opened import open_delta

pytestmark = pytest.mark.attack


ROW = {"id": 1, "name": "a"}


@pytest.mark.parametrize("feature", ["someFutureFeature", "catalogManaged", "adaptiveMetadata"])
def test_row_49_a_feature_that_is_not_served_is_refused_by_name_and_without_rows(
    tmp_path: Path, feature: str, command: Commands
) -> None:
    TableBuilder(tmp_path, reader_features=[feature]).append([ROW])
    for start in ("0", "snapshot", "latest"):
        ran = command.tail(tmp_path, "--from", start)
        assert (ran.status, ran.output) == (3, "")
        assert ran.errors.startswith("error[unsupported_feature]: ")
        assert feature in ran.errors
        assert ran.errors.count("\n") == 1


async def test_row_49_an_unknown_feature_that_only_writers_must_know_is_no_hindrance(
    tmp_path: Path,
) -> None:
    TableBuilder(tmp_path, writer_features=["someFutureFeature"]).append([ROW])
    assert len(await changes(tmp_path)) == 1


async def test_row_25_each_version_is_held_to_its_own_protocol(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    table.append([ROW])
    table.commit(
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": ["someFutureFeature"],
                "writerFeatures": ["someFutureFeature"],
            }
        }
    )
    table.append([ROW])
    table.commit(table.protocol(), operation="DROP FEATURE")
    table.append([ROW])
    # The newest version may be read, and versions 1 and 2 on the way may not.
    assert [row["_commit_version"] for row in await changes(tmp_path, "4")] == [4]
    assert len(await changes(tmp_path, "snapshot")) == 3
    source = await open_delta(str(tmp_path))
    at = await source.initial_offset("0")
    end = await source.latest_offset(at, EVERYTHING)
    assert end.version == 1, "what comes before is served"
    with pytest.raises(UnsupportedFeatureError, match="Version 1 "):
        await source.latest_offset(end, EVERYTHING)
    with pytest.raises(UnsupportedFeatureError, match="Version 1 "):
        await changes(tmp_path, "2")


async def test_row_25_a_feature_that_appears_while_following_stops_before_its_rows(
    tmp_path: Path,
) -> None:
    table = TableBuilder(tmp_path)
    table.append([ROW])
    source = await open_delta(str(tmp_path))
    at = await source.initial_offset("latest")
    table.commit(table.protocol(minReaderVersion=4), table.data_file([ROW]))
    with pytest.raises(UnsupportedFeatureError, match="reader version 4"):
        await source.latest_offset(at, EVERYTHING)


async def test_row_49_files_that_are_no_parquet_are_refused(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    table.commit(table.protocol(), table.metadata(format={"provider": "orc", "options": {}}))
    with pytest.raises(UnsupportedFeatureError, match="'orc'"):
        await changes(tmp_path)


@pytest.mark.parametrize("kind", ["metaData", "protocol"])
async def test_two_actions_where_one_is_allowed_are_an_error(tmp_path: Path, kind: str) -> None:
    table = TableBuilder(tmp_path)
    table.append([ROW])
    action = table.metadata() if kind == "metaData" else table.protocol()
    table.commit(action, action)
    with pytest.raises(CorruptLogError, match=f"two {kind} actions"):
        await changes(tmp_path, "1")


async def test_an_action_of_a_later_release_is_passed_over(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    table.append([ROW])
    table.commit({"hologram": {"depth": 3}}, table.data_file([ROW]))
    assert len(await changes(tmp_path)) == 2


@pytest.mark.parametrize("kind", ["adds", "vectors"])
async def test_row_47_a_commit_too_large_to_hold_gives_the_same_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    table = TableBuilder(tmp_path, reader_features=["deletionVectors"])
    adds = table.create(
        *(
            table.data_file([{"id": n, "name": "x" * n}, {"id": n + 50, "name": ""}])
            for n in range(9)
        )
    ).adds
    if kind == "vectors":
        table.commit(*(table.with_vector(add, [0]) for add in adds), *map(table.remove, adds))
    expected = await steps(tmp_path, "0", limit=EVERYTHING)
    monkeypatch.setattr(log_reader, "LARGE_COMMIT_BYTES", 64)
    monkeypatch.setattr(segment_replay, "LARGE_COMMIT_BYTES", 64)
    monkeypatch.setattr(segment_replay, "_GROUP_BYTES", 64)
    monkeypatch.setattr(log_folder, "SLICE_BYTES", 100)
    monkeypatch.setattr(log_folder, "LINES_SLICE_BYTES", 100)
    assert await steps(tmp_path, "0", limit=EVERYTHING) == expected
    small = await steps(tmp_path, "0", limit=ReadLimit(max_files=2), restarts=True)
    assert [row for _, _, rows in small for row in rows] == [
        row for _, _, rows in expected for row in rows
    ]


async def test_row_47_commits_behind_one_too_large_to_hold_are_not_lost(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    size = segment_replay.LARGE_COMMIT_BYTES + 1
    table.create({"commitInfo": {"operation": "x" * size}}, commit_info=False)
    table.append([ROW])
    table.append([ROW])
    assert len(await changes(tmp_path, "snapshot")) == 2
    assert len(await changes(tmp_path, "0")) == 2
