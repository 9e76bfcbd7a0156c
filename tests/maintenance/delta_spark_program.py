"""Delta Spark in its own process: a line of JSON in, a line of JSON out.

Another session of this test run may hold the one JVM that PySpark allows a process, without the
jars of Delta.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from typing import Any

PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
# Hadoop's S3 of the release that Spark has, and those parts of Amazon's client that it uses: all of
# them in one jar are 600 MB.
S3_PACKAGES = [
    "org.apache.hadoop:hadoop-aws:3.5.0",
    *(f"software.amazon.awssdk:{part}:2.35.4" for part in ("s3", "sts", "s3-transfer-manager")),
]
CONF = {
    "spark.jars.packages": ",".join([PACKAGE, *S3_PACKAGES]),
    "spark.jars.excludes": "software.amazon.awssdk:bundle,org.wildfly.openssl:wildfly-openssl",
    "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    "spark.hadoop.fs.s3a.path.style.access": "true",
    "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.databricks.delta.checksum.mismatch.fatal": "true",
    "spark.databricks.delta.snapshotLogging.async": "false",
    # A feed of renamed columns has the names of its end.
    "spark.databricks.delta.changeDataFeed.defaultSchemaModeForColumnMappingTable": "endVersion",
    "spark.databricks.delta.restore.protocolDowngradeAllowed": "true",
}
FOR_FEW_ROWS = {
    "spark.sql.shuffle.partitions": "1",
    # Compiling its queries would take a fifth of its time, for tables of a few rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # A log is read in as many tasks, and each makes code anew for all that actions may have.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.files.minPartitionNum": "1",
    # Fewer collections of garbage, and none for want of room.
    "spark.driver.memory": "2g",
    "spark.driver.extraJavaOptions": "-Xmn700m",
}
"""What makes tests short, and would slow the reference down where it is measured."""


def serve(*, is_measured: bool) -> None:
    """Answer requests until the input ends."""
    from pyspark.sql import SparkSession

    import tailerd.spark

    os.environ["TZ"] = "UTC"
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    time.tzset()
    builder = SparkSession.builder.master("local[2]")
    for name, value in (CONF if is_measured else CONF | FOR_FEW_ROWS).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    tailerd.spark.register(spark)
    print(json.dumps({"ready": spark.version}), flush=True)
    for line in sys.stdin:
        try:
            answer = {"answer": _answer(spark, json.loads(line))}
        except Exception as error:  # noqa: BLE001 - whatever it is, the test is told
            answer = {"error": f"{type(error).__name__}: {error}"[:4000]}
        print("@" + json.dumps(answer, default=str), flush=True)
    spark.stop()


def _answer(spark: Any, request: dict[str, Any]) -> Any:
    match request["do"]:
        case "bucket":
            return _know_bucket(spark, **request["account"])
        case "change":
            spark.sql(request["text"]).collect()
            return _columns(spark, request["path"])
        case "rows":
            from tests.integration.spark.canonical import canonical

            frame = spark.read.format(request["format"]).options(**request["options"])
            rows = frame.load(request["path"]).collect()
            return [canonical(row.asDict(recursive=True)) for row in rows]
        case "snapshots":
            return _snapshots(spark, request["path"], request["versions"])
        case _:
            return _answer_anew(spark, request)


def _snapshots(spark: Any, path: str, versions: list[int]) -> list[list[str]]:
    """Return the rows of versions of one schema, by one query."""
    from pyspark.sql.functions import lit, struct

    from tests.integration.spark.canonical import canonical

    frames = [
        spark.read.format("delta").option("versionAsOf", version).load(path) for version in versions
    ]
    frames = [frame.select(lit(index), struct("*")) for index, frame in enumerate(frames)]
    found: list[list[str]] = [[] for _ in versions]
    for index, row in functools.reduce(lambda one, other: one.union(other), frames).collect():
        found[index].append(canonical(row.asDict(recursive=True)))
    return found


def _know_bucket(spark: Any, bucket: str, endpoint: str, key: str, secret: str) -> None:
    """Let the reference find a bucket from now on."""
    known = spark.sparkContext._jsc.hadoopConfiguration()
    values = {"endpoint": endpoint, "access.key": key, "secret.key": secret}
    for name, value in values.items():
        known.set(f"fs.s3a.bucket.{bucket}.{name}", value)


def _columns(spark: Any, path: str) -> Any:
    schema = spark.read.format("delta").load(path).schema
    return [(field.name, field.dataType.simpleString()) for field in schema]


def _answer_anew(spark: Any, request: dict[str, Any]) -> Any:
    """Answer without remembering anything of the table."""
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    match request["do"]:
        case "read":
            reader = spark.read.format("delta")
            if request.get("version") is not None:
                reader = reader.option("versionAsOf", request["version"])
            frame = reader.load(request["path"])
            if request.get("where"):
                frame = frame.where(request["where"])
            return [row.asDict(recursive=True) for row in frame.collect()]
        case "sql":
            return [row.asDict(recursive=True) for row in spark.sql(request["text"]).collect()]
        case "checkpoint":
            log = spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(
                spark._jsparkSession, request["path"]
            )
            log.checkpoint()
            return None
        case "timed checkpoint":
            log = _log(spark, request["path"])
            log.unsafeVolatileSnapshot().numOfFiles()
            start = time.perf_counter()
            log.checkpoint()
            return time.perf_counter() - start
        case "timed open":
            start = time.perf_counter()
            files = _log(spark, request["path"]).unsafeVolatileSnapshot().numOfFiles()
            return {"seconds": time.perf_counter() - start, "files": files}
        case "snapshot":
            log = spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(
                spark._jsparkSession, request["path"]
            )
            snapshot = log.update(False, getattr(log, "update$default$2")(),
                                  getattr(log, "update$default$3")())  # fmt: skip
            segment = snapshot.logSegment()
            return {
                "version": snapshot.version(),
                "files": snapshot.numOfFiles(),
                "bytes": snapshot.sizeInBytes(),
                "is_valid": snapshot.validateChecksum(
                    getattr(snapshot, "validateChecksum$default$1")()
                ),
                "checkpoint": segment.checkpointProvider().version(),
                "deltas": segment.deltas().mkString(","),
            }
        case other:
            raise ValueError(other)


def _log(spark: Any, path: str) -> Any:
    return spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)


if __name__ == "__main__":
    serve(is_measured="--measured" in sys.argv[1:])
