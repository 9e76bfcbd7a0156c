"""Tables written by other engines, with the answers other engines agree on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT, ReadLimit
from tailerd.errors import TableError
from tailerd.formats.base import OpenRequest
from tailerd.formats.delta.log.log_reader import LogReader
from tests.golden.scoring import failures
from tests.tables.opened import open_delta

pytestmark = pytest.mark.golden

# Tables that ask for these may be refused: served rightly or not at all.
MAY_REFUSE = {"catalogManaged", "geospatial", "adaptiveMetadata"}

PLAIN_TYPES = {
    *("int8", "int16", "int32", "int64", "bool", "boolean"),
    *("string", "large_string", "string_view"),
}
"""Types whose values are the same in Python and in the recorded answers; `score.py`, which the
other test runs, compares the rest."""

EVERYTHING = ReadLimit(max_files=10**9, max_bytes=10**18)


@pytest.mark.full
@pytest.mark.slow
def test_the_command_answers_every_table_rightly_or_refuses_it(
    given_tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "report.jsonl"
    assert failures(monkeypatch, given_tables, report, least_passed=300) == {}


def answers(
    given_tables: Path, manifest: list[dict[str, Any]]
) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield (path, manifest entry, recorded answers) of the tables that must be served."""
    for entry in manifest:
        expected = entry.get("expected_file")
        if entry.get("must_fail") or not expected:
            continue
        if MAY_REFUSE & set(entry.get("table_features") or ()):
            continue
        path = given_tables / "tables" / entry["table"]
        yield str(path), entry, json.loads((given_tables / expected).read_text())


@pytest.mark.full
async def test_every_log_replays_to_the_recorded_files_and_bytes(
    given_tables: Path, given_manifest: list[dict[str, Any]]
) -> None:
    differences, compared = [], 0
    for path, entry, answer in answers(given_tables, given_manifest):
        replay = answer["log_replay"]
        if replay.get("files") is None:
            continue
        history = replay.get("files_and_bytes_per_version") or {}
        wanted = {replay["latest_version"]: [replay["files"], replay["bytes"]]}
        wanted |= {int(version): pair[:2] for version, pair in history.items()}
        for version, pair in wanted.items():
            # Some writers' checksums are wrong; commands tell so and go on.
            # The log of a table whose rows cannot be read can still be inspected.
            reader = LogReader.at(path, on_mismatch=lambda error: None)
            snapshot, _ = await reader.open_listed(version)
            compared += 1
            if [snapshot.num_files, snapshot.size_bytes] != pair:
                seen = (snapshot.num_files, snapshot.size_bytes)
                differences.append(f"{entry['table']} at {version}: {pair}, seen {seen}")
    assert compared > 300
    assert differences == []


async def rows_from(path: str, start: str, mode: ChangeMode) -> list[dict[str, Any]]:
    """Return every change row from `start` to the head, planned and read as pipelines do."""
    source = await open_delta(path, OpenRequest(changes=mode, on_warning=lambda error: None))
    offset = await source.initial_offset(start)
    rows: list[dict[str, Any]] = []
    while (end := await source.latest_offset(offset, EVERYTHING)) != offset:
        async for group in source.plan(offset, end):
            for task in group.tasks:
                for batch in source.read(task, DEFAULT_BATCH_LIMIT):
                    rows += batch.to_arrow().to_pylist()
        offset = end
        if start == "snapshot":
            break
    return rows


def difference(answer: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Compare as multisets over the columns recorded; empty when they agree."""
    columns = answer["columns"]
    expected = Counter(tuple(row) for row in answer["rows"])
    seen = Counter(tuple(row.get(column) for column in columns) for row in rows)
    if expected == seen:
        return ""
    return f"missing {list(expected - seen)[:3]}, invented {list(seen - expected)[:3]}"


async def test_snapshots_of_plain_columns_have_the_recorded_rows(
    given_tables: Path, given_manifest: list[dict[str, Any]]
) -> None:
    differences, compared = [], 0
    for path, entry, answer in answers(given_tables, given_manifest):
        recorded = answer.get("rows_consensus") or {}
        types = recorded.get("types") or ["unknown"]
        if recorded.get("rows") is None or not PLAIN_TYPES.issuperset(types):
            continue
        if entry.get("partition_columns"):
            continue  # Engines differ in how they read an empty partition value.
        compared += 1
        found = difference(recorded, await rows_from(path, "snapshot", ChangeMode.AUTO))
        if found:
            differences.append(f"{entry['table']}: {found}")
    assert compared >= 40
    assert differences == []


@pytest.mark.parametrize(
    "table",
    [
        "delta-kernel-rs/kernel/tests/data/cdf-table-simple",
        "delta-kernel-rs/kernel/tests/data/cdf-table-data-change",
        "delta-kernel-rs/kernel/tests/data/cdf-table-delete-unconditional",
        "delta-kernel-rs/kernel/tests/data/cdf-table-update-ops",
        "delta-kernel-rs/kernel/tests/data/cdf-column-mapping-id-mode",
        "delta-rs/crates/test/tests/data/simple_table_with_cdc",
        "generated/delta/deltalake-1.6.6/cdf_dml",
        "generated/delta/deltalake-1.6.6/many_versions",
        "generated/delta/deltalake-1.6.6/compacted",
        "trino/plugin/trino-delta-lake/src/test/resources/trino/cdc_table",
    ],
)
async def test_the_change_feed_has_the_recorded_rows(
    given_tables: Path, given_manifest: list[dict[str, Any]], table: str
) -> None:
    [(path, _, answer)] = [
        found for found in answers(given_tables, given_manifest) if found[1]["table"] == table
    ]
    feed = answer["cdf_consensus"]
    rows = await rows_from(path, str(feed["first_valid_start"]), ChangeMode.CDF)
    assert difference(feed, rows) == ""


async def test_a_table_no_reader_may_serve_is_refused_before_any_row(
    given_tables: Path, given_manifest: list[dict[str, Any]]
) -> None:
    refused = [entry for entry in given_manifest if entry.get("must_fail")]
    assert refused
    for entry in refused:
        with pytest.raises(TableError):
            await rows_from(
                str(given_tables / "tables" / entry["table"]), "snapshot", ChangeMode.AUTO
            )
