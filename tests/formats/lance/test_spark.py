"""Lance tables through Spark: batches, and a stream that goes on."""

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
    from tests.tables.lance_writer import LanceWriter
    from tailerd.spark import register
    from tailerd.spark.session import local_session
    place, folder = map(pathlib.Path, sys.argv[1:])
    spark = local_session("tests", "local[2]", {"spark.sql.shuffle.partitions": "1"})
    register(spark)
    # The library writes in this process only once the JVM and its workers' daemon are there.
    writer = LanceWriter(place, stable_ids=True)
    def rows(*ids):
        return [{"id": number, "name": f"n{number}"} for number in ids]
    writer.append(rows(1, 2, 3))
    def shown(found):
        return sorted([r["_change_type"], r["id"], r["name"], r["_commit_version"]] for r in found)
    def streamed():
        (
            spark.readStream.format("tailerd").option("startingVersion", 1).load(str(place))
            .writeStream.format("parquet").option("path", str(folder / "out"))
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True).start()
        ).awaitTermination()
        return shown(spark.read.parquet(str(folder / "out")).collect())
    first = streamed()
    writer.dataset.update({"name": "'x'"}, where="id = 2")
    writer.delete("id = 1")
    second = streamed()
    table = spark.read.format("tailerd").option("snapshot", "true").load(str(place))
    batch = spark.read.format("tailerd").option("startingVersion", 2).load(str(place))
    print(json.dumps({
        "first": first, "second": second, "snapshot": shown(table.filter("id > 2").collect()),
        "batch": shown(batch.collect()),
    }))
    spark.stop()
"""


def test_spark_reads_batches_and_streams_that_go_on(tmp_path: Path) -> None:
    require_java()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path / "t"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    inserted: list[list[object]] = [["insert", number, f"n{number}", 1] for number in (1, 2, 3)]
    later: list[list[object]] = [
        ["delete", 1, "n1", 3],
        ["update_postimage", 2, "x", 2],
        ["update_preimage", 2, "n2", 2],
    ]
    assert found["first"] == inserted
    assert found["second"] == sorted(inserted + later)
    assert found["snapshot"] == [["insert", 3, "n3", 3]]
    assert found["batch"] == later
