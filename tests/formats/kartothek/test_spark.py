"""Datasets through Spark: batches, and streams that go on."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.formats.conftest import ROOT
from tests.spark_session import require_java

pytestmark = [pytest.mark.spark, pytest.mark.full]

PROGRAM = """
    import json, pathlib, sys
    from tests.tables.dataset_writer import DatasetWriter
    from tailerd.spark import register
    from tailerd.spark.session import local_session
    store, folder = map(pathlib.Path, sys.argv[1:])
    writer = DatasetWriter(store)
    def rows(*ids):
        return [{"id": number, "name": f"n{number}"} for number in ids]
    [first] = writer.commit(rows(1, 2))
    spark = local_session("tests", "local[2]", {"spark.sql.shuffle.partitions": "1"})
    register(spark)
    place = str(writer.place)
    def shown(found):
        return sorted([r["_change_type"], r["id"], r["_commit_version"]] for r in found)
    def streamed(ledger, out):
        (
            spark.readStream.format("tailerd").option("ledger", str(ledger)).load(place)
            .writeStream.format("parquet").option("path", str(folder / out))
            .option("checkpointLocation", str(folder / f"{out}-checkpoint"))
            .trigger(availableNow=True).start()
        ).awaitTermination()
        return shown(spark.read.parquet(str(folder / out)).collect())
    table = spark.read.format("tailerd").option("snapshot", "true").load(place)
    found = {"snapshot": shown(table.collect())}
    found["filtered"] = shown(table.filter("id = 2").collect())
    streamed(folder / "ledger", "streamed")
    writer.commit(rows(2, 3), without=lambda label: label == first)
    writer.commit(rows(4))
    found["stream"] = streamed(folder / "ledger", "streamed")
    batch = spark.read.format("tailerd").option("ledger", str(folder / "ledger"))
    found["batch"] = shown(batch.option("startingVersion", 2).load(place).collect())
    try:
        spark.read.format("tailerd").option("startingVersion", 0).load(place).collect()
    except Exception as error:
        found["refused"] = str(error)
    print(json.dumps(found))
    spark.stop()
"""


def test_spark_reads_batches_and_streams_that_go_on(tmp_path: Path) -> None:
    require_java()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path / "store"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["snapshot"] == [["insert", 1, 0], ["insert", 2, 0]]
    assert found["filtered"] == [["insert", 2, 0]]
    # The program ends before it is told of: two commits between two looks are one state.
    assert found["stream"] == sorted(
        [
            ["insert", 1, 0],
            ["insert", 2, 0],
            ["delete", 1, 1],
            ["insert", 3, 1],
            ["insert", 4, 1],
        ]
    )
    assert found["batch"] == []
    assert "there is no ledger" in found["refused"]
