"""How the Java of tests starts: with little compiling, and with archives of its classes.

Java processes of tests live for seconds, and spend a fifth of their time on compiling for hours
and half of their start on reading classes. An archive fits one Java and the jars it was made with;
Java reads the jars where it does not.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from tests.kafka.broker import Broker
from tests.kafka.jars import KafkaUnavailableError, java, kafka_jars

SPARK_SECONDS = 300
_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SPARK_OPTIONS = " ".join(
    (
        # For some rows, compiling a query takes longer than interpreting it.
        "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN",
        # Where Java compiles little, its room for what it compiled is too small for Spark: it would
        # throw methods away and compile them again. And queries leave much that is soon garbage.
        "-XX:ReservedCodeCacheSize=240m -XX:-UseCodeCacheFlushing -Xmn256m",
    )
)


_OF_HOME = ("bin", "jars", "sbin")
"""What Spark needs of PySpark's folder to start Java; workers find modules where pip put them."""
_KEPT_HOMES = 3
"""Of other releases of PySpark, Kafka or Java."""


def hasten_java(*, make: bool) -> None:
    """Set what Spark and Kafka pass to Java in this process and those it starts.

    What the user set stays; where there is no Java, nothing is done.

    Args:
        make: Make archives that are not there yet, which takes half a minute, once.
    """
    if "SPARK_SUBMIT_OPTS" in os.environ or "KAFKA_OPTS" in os.environ:
        return
    try:
        folder = _folder()
    except KafkaUnavailableError:
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    _use_home(folder.with_name(f"{folder.name}-home"))
    os.environ["KAFKA_OPTS"] = _OPTIONS
    os.environ["SPARK_SUBMIT_OPTS"] = f"{_OPTIONS} {_SPARK_OPTIONS}"
    if make and not folder.is_dir():
        try:
            _make(folder)
        except subprocess.SubprocessError as error:
            print(f"Java starts slowly in this run, without archives of its classes: {error}")
    if folder.is_dir():
        for name, archive in (("SPARK_SUBMIT_OPTS", "spark.jsa"), ("KAFKA_OPTS", "kafka.jsa")):
            os.environ[name] += f" -XX:SharedArchiveFile={folder / archive} -Xlog:disable"


def _use_home(home: Path) -> None:
    """Let all start Spark from one place: an archive fits the paths it was made with.

    Its files are PySpark's, linked: it outlives the environment that it was made in, and so does
    the archive.
    """
    if "SPARK_HOME" in os.environ:
        return
    if not home.is_dir():
        pyspark = find_spec("pyspark")
        assert pyspark is not None
        assert pyspark.origin is not None
        made = Path(tempfile.mkdtemp(dir=home.parent))
        for name in _OF_HOME:
            shutil.copytree(Path(pyspark.origin).parent / name, made / name, copy_function=_link)
        try:
            made.rename(home)
        except OSError:
            # Another run was faster.
            shutil.rmtree(made)
    os.environ["SPARK_HOME"] = str(home)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _folder() -> Path:
    """Return where the archives of this Java and these jars are; new where there are none.

    Raises:
        KafkaUnavailableError: There is no Java, or the jars cannot be fetched.
    """
    found = subprocess.run([java(), "-version"], capture_output=True, check=True).stderr
    kafka = f"{kafka_jars()} and the home's"
    parts = (found.decode(), kafka, version("pyspark"), _OPTIONS, _SPARK_OPTIONS)
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return Path.home() / ".cache/tailerd/java" / digest


def _make(folder: Path) -> None:
    own = folder.with_name(f"{folder.name}-home")
    former = sorted(
        set(folder.parent.glob("*-home")) - {own}, key=lambda path: path.stat().st_mtime
    )
    for home in former[:-_KEPT_HOMES]:
        shutil.rmtree(home, ignore_errors=True)
        shutil.rmtree(home.with_name(home.name.removesuffix("-home")), ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        complete = Path(made) / "complete"
        complete.mkdir()
        write_kafka_archive(complete / "kafka.jsa")
        write_spark_archive(complete / "spark.jsa")
        if not folder.is_dir():
            complete.rename(folder)


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
