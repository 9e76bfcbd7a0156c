"""Many tables in one query: the Arrow engine's lines, tables that come, go, break and mend."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tailerd.assembly import reset_offset, saved_offset
from tailerd.config import Config
from tailerd.pipeline.state_place import FolderState
from tailerd.spark.checkpoint_offsets import spark_offset
from tailerd.telemetry.events import OffsetChosen, OffsetSaved, PipelineFailed
from tests.integration.spark.grouped import (
    Tables,
    arrow_lines,
    configured,
    grouped,
    lines,
    run_to_heads,
    versions,
)
from tests.kafka.broker import Broker
from tests.kafka.reader import read_topic
from tests.kafka.topics import Topics
from tests.tables.builder import TableBuilder

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def _table(folder: Path, commits: int = 3) -> TableBuilder:
    table = TableBuilder(folder, start_ms=None)
    for version in range(commits):
        table.append([{"id": version * 10 + n, "name": "x"} for n in range(2)])
    return table


def _tables(
    folder: Path, count: int, starts: tuple[str, ...] = ("0", "0", "1")
) -> tuple[list[TableBuilder], Tables]:
    built = [_table(folder / f"table-{n}") for n in range(count)]
    return built, {
        f"t{n}": {"path": str(table.folder), "from": starts[n % len(starts)]}
        for n, table in enumerate(built)
    }


def test_both_engines_write_the_same_lines_and_a_broken_table_stops_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    built, tables = _tables(tmp_path, 18, ("snapshot", "0", "1"))
    for table in built[:6]:
        # A schema that changes on the way needs no other query.
        table.change_metadata(fields=[("id", "long"), ("name", "string"), ("note", "string")])
        table.append([{"id": 90, "name": "y", "note": "new"}])
    gone = _table(tmp_path / "gone")
    lost = sorted(gone.folder.glob("*.parquet"))[1]
    kept = lost.with_suffix(".kept")
    lost.rename(kept)
    tables["gone"] = {"path": str(gone.folder), "from": "0"}
    tables["missing"] = {"path": str(tmp_path / "no"), "from": "0"}
    config = configured(tmp_path, tables)

    async def scenario() -> None:
        run = await run_to_heads(spark, config)
        await _agree(config, tmp_path, [name for name in tables if name.startswith("t")])
        failures = {name: run.of(PipelineFailed, name) for name in tables}
        assert {n: [e.error_code for e in found] for n, found in failures.items() if found} == {
            "gone": ["missing_data_file"],
            "missing": ["not_a_table"],
        }
        # Nothing of the broken one's commit, and it stands where it stood before.
        assert lines(tmp_path, "gone") == []
        assert run.of(OffsetSaved, "gone") == []
        stands = spark_offset(config, "gone")
        assert stands is not None
        assert stands.version == 0

        kept.rename(lost)
        again = await run_to_heads(spark, config)
        await _agree(config, tmp_path, [name for name in tables if name != "missing"])
        assert again.delivered("gone") == 6
        assert sum(again.delivered(name) for name in tables) == 6

    asyncio.run(scenario())


async def _agree(config: Config, folder: Path, names: list[str]) -> None:
    for name in names:
        given = lines(folder, name)
        assert Counter(given) == await arrow_lines(config.tables[name]), name
        assert versions(given) == sorted(versions(given)), name


@pytest.mark.full
def test_tables_join_leave_and_pause_while_the_others_go_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    built, tables = _tables(tmp_path, 3)
    first = configured(tmp_path, {name: tables[name] for name in ("t0", "t1")})
    both = configured(tmp_path, tables)

    async def scenario() -> None:
        async with grouped(spark, first) as run:
            await run.until(lambda: all(run.delivered(name) == 6 for name in ("t0", "t1")))
            await run.manager.set_members(run.members(both))
            await run.until(lambda: run.delivered("t2") == 4)
            await run.manager.pause("t0")
            for table in built:
                table.append([{"id": 70, "name": "live"}])
            await run.until(lambda: run.delivered("t1") == 7 and run.delivered("t2") == 5)
            assert run.delivered("t0") == 6
            await run.manager.resume("t0")
            await run.until(lambda: run.delivered("t0") == 7)
            alone = configured(tmp_path, {"t2": tables["t2"]})
            await run.manager.set_members(run.members(alone))
            built[0].append([{"id": 80, "name": "unheard"}])
            built[2].append([{"id": 80, "name": "live"}])
            await run.until(lambda: run.delivered("t2") == 6)
            assert not run.manager.errors
        assert run.delivered("t0") == 7

        # Whoever left goes on where it was when it comes back.
        again = await run_to_heads(spark, both)
        assert [again.delivered(name) for name in ("t0", "t1", "t2")] == [1, 0, 0]
        await _agree(both, tmp_path, list(tables))

    asyncio.run(scenario())


@pytest.mark.full
def test_a_repeated_batch_replaces_its_own_files_whoever_is_still_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    built, tables = _tables(tmp_path, 3)
    config = configured(tmp_path, tables)

    async def scenario() -> None:
        await run_to_heads(spark, config)
        for table in built:
            table.append([{"id": 70, "name": "late"}])
        await run_to_heads(spark, config)
        before = {name: lines(tmp_path, name) for name in tables}
        # As if the driver had died before Spark's note, in the middle of giving names.
        group = tmp_path / "state/spark/_groups/lines-001"
        (group / "checkpoint/commits/1").unlink()
        (group / "checkpoint/commits/.1.crc").unlink()
        published = json.loads((group / "published.json").read_text())
        assert (published["batch_id"], len(published["end"])) == (1, 64)
        (group / "published.json").write_text(json.dumps({**published, "batch_id": 0}))
        last = sorted((tmp_path / "out/t0").glob("*.jsonl"))[-1]
        last.write_bytes(b"half a li")
        (tmp_path / "out/t1/.tailerd-group-t1-abc.tmp").write_bytes(b"{}")
        # Meanwhile one of them was taken out of the configuration, and another's file vacuumed.
        rest = configured(tmp_path, {name: tables[name] for name in ("t0", "t2")})
        newest = max((built[2].folder).glob("*.parquet"), key=lambda p: p.name)
        newest.rename(newest.with_suffix(".kept"))
        run = await run_to_heads(spark, rest)
        assert lines(tmp_path, "t0") == before["t0"]
        assert lines(tmp_path, "t1") == before["t1"]
        assert not list((tmp_path / "out/t1").glob(".*.tmp"))
        assert [e.error_code for e in run.of(PipelineFailed, "t2")] == ["missing_data_file"]
        assert len(lines(tmp_path, "t2")) == len(before["t2"]) - 1

        newest.with_suffix(".kept").rename(newest)
        await run_to_heads(spark, config)
        assert {name: lines(tmp_path, name) for name in tables} == before

    asyncio.run(scenario())


@pytest.mark.full
def test_a_table_of_a_group_is_reset_and_the_others_stay(
    spark: SparkSession, tmp_path: Path
) -> None:
    _, tables = _tables(tmp_path, 2, ("0",))
    config = configured(tmp_path, tables)

    async def scenario() -> None:
        await run_to_heads(spark, config)
        offset = await reset_offset(config, "t0", "1", state=FolderState(Path(config.state)))
        assert offset.version == 1
        assert await saved_offset(config, "t0") == offset
        run = await run_to_heads(spark, config)
        assert [run.delivered(name) for name in tables] == [4, 0]
        # One that has nothing to do says where it is too.
        assert [[e.version for e in run.of(OffsetChosen, n)] for n in tables] == [[1], [3]]
        assert versions(lines(tmp_path, "t0")) == [0, 0, 1, 1, 2, 2, 1, 1, 2, 2]
        now = await saved_offset(config, "t0")
        assert now is not None
        assert now.version == 3

    asyncio.run(scenario())


@pytest.mark.full
def test_a_query_of_the_tables_own_becomes_part_of_a_group(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = _table(tmp_path / "table")
    out = tmp_path / "out" / "t"
    query = (
        spark.readStream.format("tailerd")
        .options(startingVersion="0", maxFilesPerTrigger="1")
        .load(str(table.folder))
        .writeStream.format("tailerd")
        .options(path=str(out), checkpointLocation=str(tmp_path / "state/spark/t"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    before = sorted(file.name for file in out.iterdir())
    # Its last batch was not noted as done.
    (tmp_path / "state/spark/t/commits/2").unlink()
    table.append([{"id": 70, "name": "late"}])
    config = configured(tmp_path, {"t": {"path": str(table.folder), "from": "latest"}})

    run = asyncio.run(run_to_heads(spark, config))

    assert run.delivered("t") == 3
    assert sorted(json.loads(line)["id"] for line in lines(tmp_path, "t")) == [
        *(0, 1, 10, 11, 20, 21, 70),
    ]
    left = sorted(file.name for file in out.glob("*.jsonl"))
    assert left == [*before[:2], "group-000001-0000000000-00000.jsonl"]
    shutil.rmtree(tmp_path / "state")


@pytest.mark.full
@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_tables_into_kafka_share_a_query_and_a_broken_one_is_held_back(
    spark: SparkSession, kafka_broker: Broker, topics: Topics, tmp_path: Path, delivery: str
) -> None:
    built, tables = _tables(tmp_path, 3, ("0",))
    names = {name: topics.create(partitions=2) for name in tables}
    for name, table in tables.items():
        table["sink"] = {
            "kind": "kafka",
            "bootstrap_servers": kafka_broker.plain,
            "topic": names[name],
            "key": ["id"],
            "delivery": delivery,
        }
    config = configured(tmp_path, tables)
    lost = max(built[1].folder.glob("*.parquet"), key=lambda path: path.name)
    kept = lost.with_suffix(".kept")
    lost.rename(kept)

    async def scenario() -> None:
        run = await run_to_heads(spark, config)
        assert [e.error_code for e in run.of(PipelineFailed, "t1")] == ["missing_data_file"]
        assert [run.delivered(name) for name in ("t0", "t2")] == [6, 6]
        kept.rename(lost)
        built[0].append([{"id": 0, "name": "later"}])
        again = await run_to_heads(spark, config)
        assert [again.delivered(name) for name in tables] == [1, 6, 0]
        for name, topic in names.items():
            found = read_topic(kafka_broker.plain, topic)
            values = Counter(record.value for record in found)
            # What a failed try left may come again where that is what was asked for.
            given = values if delivery == "exactly-once" else Counter(set(values))
            assert given == await arrow_lines(config.tables[name]), name

    asyncio.run(scenario())
