"""Archives of the classes that Spark and Kafka load, with which their Java starts in half the time.

`python -m tests.java_archives FOLDER` writes `spark.jsa` and `kafka.jsa` there, for
`-XX:SharedArchiveFile`. They fit this Java and these jars; Java loads from the jars where they do
not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.kafka.broker import Broker

SPARK_SECONDS = 300


def write_spark_archive(archive: Path) -> None:
    """Run a query and a stream in a Spark that writes its classes there when it ends."""
    options = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {_writes(archive)}"
    subprocess.run(
        [sys.executable, "-c", "from tests.java_archives import use_spark; use_spark()"],
        env={**os.environ, "SPARK_SUBMIT_OPTS": options},
        timeout=SPARK_SECONDS,
        check=True,
    )


def use_spark() -> None:
    """Use what most tests use of Spark, and wait until its Java has ended."""
    from pyspark import SparkContext

    from tailerd.spark.session import local_session

    spark = local_session("archive", "local[2]")
    gateway = SparkContext._gateway
    assert gateway is not None
    java = gateway.proc
    with tempfile.TemporaryDirectory() as folder:
        spark.range(10).groupBy("id").count().write.parquet(f"{folder}/in")
        stream = spark.readStream.schema("id long, count long").parquet(f"{folder}/in")
        places = {"path": f"{folder}/out", "checkpointLocation": f"{folder}/checkpoint"}
        writer = stream.writeStream.format("json").options(**places).trigger(availableNow=True)
        writer.start().awaitTermination()
    spark.stop()
    java.stdin.close()
    java.wait()


def write_kafka_archive(archive: Path) -> None:
    """Run a broker that writes its classes there when it ends."""
    before = os.environ.get("KAFKA_OPTS", "")
    os.environ["KAFKA_OPTS"] = f"{before} {_writes(archive)}"
    try:
        with tempfile.TemporaryDirectory() as folder:
            broker = Broker(Path(folder) / "broker")
            broker.start()
            broker.stop()
    finally:
        os.environ["KAFKA_OPTS"] = before


def _writes(archive: Path) -> str:
    return f"-XX:ArchiveClassesAtExit={archive} -Xlog:disable"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    started = time.monotonic()
    write_kafka_archive(folder / "kafka.jsa")
    write_spark_archive(folder / "spark.jsa")
    sizes = ", ".join(
        f"{path.name} {path.stat().st_size >> 20} MiB" for path in folder.glob("*.jsa")
    )
    print(f"{sizes}, after {time.monotonic() - started:.1f} s")
