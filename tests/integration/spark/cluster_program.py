"""What a user submits to a cluster: a batch and a stream; one line of JSON on standard output."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

import tailerd.spark


def _location(_: int) -> tuple[str, str]:
    import time
    from pathlib import Path

    import tailerd

    # Long enough for every executor to get some.
    time.sleep(1.0)
    return str(Path.cwd()), str(tailerd.__file__)


def main(table: str, out: str) -> None:
    """Read the table's changes as a batch, and stream them into a folder."""
    spark = SparkSession.builder.getOrCreate()
    tailerd.spark.register(spark)
    changes = spark.read.format("tailerd").load(table)
    stream = spark.readStream.format("tailerd").option("maxFilesPerTrigger", 2).load(table)
    writer = stream.writeStream.format("json").option("path", f"{out}/rows")
    query = writer.option("checkpointLocation", f"{out}/checkpoint").trigger(availableNow=True)
    query.start().awaitTermination()
    locations = spark.sparkContext.parallelize(range(8), 8).map(_location).collect()
    answer = {
        "master": spark.sparkContext.master,
        "rows": sorted(row["id"] for row in changes.where("_commit_version > 0").collect()),
        "folders": sorted(set(locations)),
    }
    print(json.dumps(answer))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
