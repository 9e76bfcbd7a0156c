"""Delta Spark reads a table rightly from what maintenance wrote, with its validation fatal."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.maintenance.log_cleanup import LogCleanup
from tailerd.storage.local import LocalStore
from tests.maintenance.delta_spark import DeltaSpark, DeltaSparkError
from tests.maintenance.tables import STRUCT_STATS, grow, hide, living_table, maintain
from tests.maintenance.written import checkpoint_of
from tests.tables.builder import IN_COMMIT_TIMESTAMPS, TableBuilder

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FORMS = {
    "json-stats": {},
    "struct-stats": STRUCT_STATS,
    "struct-stats-only": {**STRUCT_STATS, "delta.checkpoint.writeStatsAsJson": "false"},
}


def plain(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((row["id"], row["name"], str(row["day"])) for row in rows)


@pytest.mark.full
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", ["v1", "v2-json", "v2-parquet"])
def test_delta_spark_reads_the_table_from_our_checkpoint_and_checksum(
    delta_spark: DeltaSpark, tmp_path: Path, layout: str, form: str
) -> None:
    table = living_table(tmp_path, is_v2=layout != "v1", **FORMS[form])
    rows, state = plain(table.rows()), table.state()
    maintain(tmp_path, manifest="parquet" if layout == "v2-parquet" else "json")
    # Delta Spark wants the commit of the version it opens.
    hide(table, 0, table.version - 1)
    assert plain(delta_spark.rows(tmp_path)) == rows
    expected = [row for row in rows if row[0] > 103 and row[2] == "2020-02-01"]
    where = "day = '2020-02-01' AND id > 103"
    assert plain(delta_spark.rows(tmp_path, where=where)) == expected
    seen = delta_spark.ask("snapshot", path=str(tmp_path))
    assert seen["version"] == seen["checkpoint"] == table.version
    assert seen["files"] == len(state.adds)
    assert seen["bytes"] == sum(action["size"] for action in state.adds.values())
    assert seen["is_valid"] is True


def test_delta_spark_would_notice_a_wrong_checksum(delta_spark: DeltaSpark, tmp_path: Path) -> None:
    """Without this the test above could pass with validation off."""
    table = living_table(tmp_path)
    maintain(tmp_path)
    path = table.log / f"{table.version:020}.crc"
    body = json.loads(path.read_text())
    path.write_text(json.dumps({**body, "numFiles": body["numFiles"] + 1}))
    with pytest.raises(DeltaSparkError, match=r"(?i)checksum|mismatch|numFiles"):
        delta_spark.ask("snapshot", path=str(tmp_path))


@pytest.mark.full
def test_delta_spark_reads_sidecars_that_were_named_again(
    delta_spark: DeltaSpark, tmp_path: Path
) -> None:
    table = living_table(tmp_path, is_v2=True)
    maintain(tmp_path)
    first = {path.name for path in (table.log / "_sidecars").iterdir()}
    for version in (20, 22):
        grow(table, version)
    maintain(tmp_path)
    lines = checkpoint_of(table.log, table.version).read_text().splitlines()
    named = {json.loads(line)["sidecar"]["path"] for line in lines if '"sidecar"' in line}
    assert first & named
    rows = plain(table.rows())
    hide(table, 0, table.version - 1)
    assert plain(delta_spark.rows(tmp_path)) == rows
    assert delta_spark.ask("snapshot", path=str(tmp_path))["checkpoint"] == table.version


@pytest.mark.full
@pytest.mark.parametrize("ict", [False, True], ids=["file-times", "in-commit-times"])
def test_delta_spark_reads_through_our_compaction(
    delta_spark: DeltaSpark, tmp_path: Path, ict: bool
) -> None:
    properties = IN_COMMIT_TIMESTAMPS if ict else {}
    table = living_table(tmp_path, is_v2=False, **properties)
    if ict:
        table.commit(
            table.protocol(
                writerFeatures=["domainMetadata", "appendOnly", "invariants", "inCommitTimestamp"]
            )
        )
    rows = plain(table.rows())
    maintain(tmp_path, checkpoint=False, compaction=(0, 6))
    assert plain(delta_spark.rows(tmp_path)) == rows
    seen = delta_spark.ask("snapshot", path=str(tmp_path))
    assert "compacted.json" in seen["deltas"]
    assert seen["is_valid"] is True


@pytest.mark.full
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_delta_spark_reads_row_groups_that_were_copied(
    delta_spark: DeltaSpark,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    first: str,
) -> None:
    monkeypatch.setattr("tailerd.formats.delta.log.checkpoint_source.COPIED_ROWS", 1)
    table = living_table(tmp_path, is_v2=False, **FORMS[form])
    if first == "ours":
        maintain(tmp_path)
    else:
        delta_spark.ask("checkpoint", path=str(tmp_path))
    for version in (20, 22):
        table.append([{"id": 100 + version, "name": f"v{version}", "day": "2020-02-01"}])
    maintain(tmp_path)
    # Else it would try for three seconds to read the file beside it.
    assert not (tmp_path / "_delta_log/._last_checkpoint.crc").exists()
    rows = plain(table.rows())
    hide(table, 0, table.version - 1)
    where = "day = '2020-02-01' AND id > 103"
    assert plain(delta_spark.rows(tmp_path)) == rows
    expected = [row for row in rows if row[0] > 103 and row[2] == "2020-02-01"]
    assert plain(delta_spark.rows(tmp_path, where=where)) == expected


def test_delta_spark_writes_on_and_we_read_it(delta_spark: DeltaSpark, tmp_path: Path) -> None:
    path = f"delta.`{tmp_path}`"
    delta_spark.ask(
        "sql",
        text=f"CREATE TABLE {path} (id BIGINT, name STRING, day DATE) USING delta"
        " PARTITIONED BY (day) TBLPROPERTIES ('delta.enableDeletionVectors' = 'true',"
        " 'delta.checkpointPolicy' = 'v2', 'delta.enableRowTracking' = 'true')",
    )
    values = ", ".join(f"({n}, 'n{n}', DATE'2020-01-0{n % 3 + 1}')" for n in range(30))
    delta_spark.ask("sql", text=f"INSERT INTO {path} VALUES {values}")
    delta_spark.ask("sql", text=f"DELETE FROM {path} WHERE id % 7 = 0")
    maintain(tmp_path)
    delta_spark.ask("sql", text=f"UPDATE {path} SET name = 'changed' WHERE id % 5 = 0")
    maintain(tmp_path)
    before = plain(delta_spark.rows(tmp_path))
    log = tmp_path / "_delta_log"
    newest = max(int(item.stem) for item in log.glob("*.json") if item.stem.isdigit())
    for version in range(newest):
        (log / f"{version:020}.json").unlink()
    for version in range(newest):
        (log / f"{version:020}.crc").unlink(missing_ok=True)
    assert plain(delta_spark.rows(tmp_path)) == before
    seen = delta_spark.ask("snapshot", path=str(tmp_path))
    assert (seen["checkpoint"], seen["is_valid"]) == (newest, True)
    ids = delta_spark.ask("sql", text=f"SELECT id, _metadata.row_id AS row FROM {path} ORDER BY id")
    assert len({row["row"] for row in ids}) == len(ids) == len(before)
    delta_spark.ask("sql", text=f"INSERT INTO {path} VALUES (100, 'new', DATE'2020-01-01')")
    delta_spark.ask("checkpoint", path=str(tmp_path))
    (log / f"{newest:020}.json").unlink()

    async def files() -> int | None:
        return (await LogReader(LocalStore(), str(tmp_path)).open()).num_files

    assert asyncio.run(files()) == delta_spark.ask("snapshot", path=str(tmp_path))["files"]


def test_delta_spark_takes_our_checkpoint_of_a_table_with_mapped_columns(
    delta_spark: DeltaSpark, tmp_path: Path
) -> None:
    table = TableBuilder(
        tmp_path,
        fields=[("id", "long"), ("name", "string"), ("day", "date")],
        partition_by=["day"],
        mapping="name",
        properties=FORMS["struct-stats-only"],
        start_ms=None,
    )
    table.append([{"id": 1, "name": "a", "day": "2020-01-01"}])
    table.append([{"id": 2, "name": "b", "day": "2020-01-02"}])
    table.rename_column("name", "title")
    maintain(tmp_path)
    hide(table, 0, table.version - 1)
    rows = delta_spark.rows(tmp_path, where="day = '2020-01-02' AND id = 2")
    assert [(row["id"], row["title"]) for row in rows] == [(2, "b")]


@pytest.mark.full
@pytest.mark.parametrize("is_v2", [False, True], ids=["v1", "v2"])
def test_delta_spark_reads_every_version_that_a_cleanup_keeps(
    delta_spark: DeltaSpark, tmp_path: Path, is_v2: bool
) -> None:
    # Delta Spark does not travel to what its vacuum may have taken.
    retention = {"delta.deletedFileRetentionDuration": "interval 365 days"}
    table = living_table(tmp_path, is_v2=is_v2, **retention)
    maintain(tmp_path)
    kept = table.version
    for version in (20, 22):
        grow(table, version)
    rows = {v: plain(table.rows(v)) for v in range(kept, table.version + 1)}
    old = time.time() - 60 * 86_400
    for path in table.log.glob("0*"):
        if int(path.name[:20]) <= kept:
            os.utime(path, (old, old))

    async def clean() -> int | None:
        reader = LogReader.at(str(tmp_path))
        snapshot, cleanup = await reader.open(), LogCleanup(reader)
        return (await cleanup.apply(await cleanup.plan(snapshot.state))).oldest_version

    assert asyncio.run(clean()) == kept
    assert not table.commit_path(kept - 1).exists()
    for version, expected in rows.items():
        assert plain(delta_spark.rows(tmp_path, version=version)) == expected
