"""Tables of three formats through one Spark, in batches and in streams that go on.

A process of its own, as the Lance library must not be loaded before Java runs. It prints one line
of JSON: name of the format -> what was found.

Usage: python -m tests.formats.spark_program MEMORY-TABLE FOLDER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from tailerd.spark import register
from tailerd.spark.session import local_session

Found = dict[str, Any]


def shown(rows: Iterable[Row], *columns: str) -> list[list[object]]:
    """Return kind, id, version and further columns of each row, in order."""
    names = ("_change_type", "id", "_commit_version", *columns)
    return sorted([row[name] for name in names] for row in rows)


def frame(spark: SparkSession, location: Path, **options: object) -> DataFrame:
    given = {name: str(value) for name, value in options.items()}
    return spark.read.format("tailerd").options(**given).load(str(location))


def streamed(spark: SparkSession, location: Path, out: Path, **options: object) -> list[Row]:
    """Stream what there is into files, and on from there the next time; return all rows."""
    given = {name: str(value) for name, value in options.items()}
    query = (
        spark.readStream.format("tailerd")
        .options(**given)
        .load(str(location))
        .writeStream.format("parquet")
        .option("path", str(out))
        .option("checkpointLocation", f"{out}-checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return spark.read.parquet(str(out)).collect()


def rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": number, "name": f"n{number}"} for number in ids]


def memory(spark: SparkSession, location: Path, folder: Path) -> Found:
    """Read a table of the tests' own format."""
    every = frame(spark, location, startingVersion=10)
    past = frame(spark, location, snapshot="true", endingVersion=20)
    stream = streamed(
        spark, location, folder / "streamed", startingVersion=10, maxFilesPerTrigger=2
    )
    return {
        "batch": shown(every.collect()),
        "filtered": shown(every.filter("id = 7 and _commit_version < 25").collect()),
        "snapshot": shown(past.collect()),
        "stream": shown(stream),
    }


def kartothek(spark: SparkSession, folder: Path) -> Found:
    """Write a dataset, and read it."""
    from tests.tables.dataset_writer import DatasetWriter

    writer, ledger = DatasetWriter(folder / "store"), folder / "ledger"
    [first] = writer.commit(rows(1, 2))
    table = frame(spark, writer.location, snapshot="true")
    found = {
        "snapshot": shown(table.collect()),
        "filtered": shown(table.filter("id = 2").collect()),
    }
    streamed(spark, writer.location, folder / "streamed", ledger=ledger)
    writer.commit(rows(2, 3), without=lambda label: label == first)
    writer.commit(rows(4))
    stream = streamed(spark, writer.location, folder / "streamed", ledger=ledger)
    batch = frame(spark, writer.location, ledger=ledger, startingVersion=2)
    found |= {"stream": shown(stream), "batch": shown(batch.collect())}
    try:
        frame(spark, writer.location, startingVersion=0).collect()
    except PySparkException as error:
        return {**found, "refused": str(error)}
    return found


def lance(spark: SparkSession, folder: Path) -> Found:
    """Write a table, and read it."""
    from tests.tables.lance_writer import LanceWriter

    location = folder / "table"
    writer = LanceWriter(location, stable_ids=True)
    writer.append(rows(1, 2, 3))
    first = streamed(spark, location, folder / "streamed", startingVersion=1)
    writer.dataset.update({"name": "'x'"}, where="id = 2")
    writer.delete("id = 1")
    second = streamed(spark, location, folder / "streamed", startingVersion=1)
    table = frame(spark, location, snapshot="true")
    batch = frame(spark, location, startingVersion=2)
    return {
        "first": shown(first, "name"),
        "second": shown(second, "name"),
        "snapshot": shown(table.filter("id > 2").collect(), "name"),
        "batch": shown(batch.collect(), "name"),
    }


def main(table: Path, folder: Path) -> None:
    spark = local_session("tests", "local[2]", {"spark.sql.shuffle.partitions": "1"})
    register(spark)
    found = {
        "memory": memory(spark, table, folder / "memory"),
        "kartothek": kartothek(spark, folder / "kartothek"),
        # Its library only once Java and the processes of Spark's Python are there.
        "lance": lance(spark, folder / "lance"),
    }
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
