"""Finds a Java for Spark, and starts one session, with few log messages, driven by this process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tailerd.errors import ConfigError, EngineError, TailerdError
from tailerd.java import java_home_or_version
from tailerd.spark.query_errors import AS_DATA, parse_error
from tailerd.spark.remote import (
    PYTHON,
    is_local,
    remote_settings,
    ship_package,
    temporary_folder,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_JAVA_END_SECONDS = 2.0

_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n
"""
# Failing queries and tasks reach the supervisor as exceptions; Spark's own copies of them (a page
# of Java frames each) would hide the one clear error.
_SILENCED = (
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2Exec",
    "org.apache.spark.sql.execution.datasources.v2.DataWritingSparkTask",
    "org.apache.spark.util.Utils",
)


def local_session(
    app_name: str, master: str = "local[*]", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Start the process's Spark session, or return the one it has; blocking, 4 to 10 seconds.

    Times are UTC, nothing is printed to stdout, and `format("tailerd")` is registered. With a local
    master nothing listens beyond loopback; executors of any other get this package. `conf`
    overrides every setting made here.

    Raises:
        ConfigError: There is no usable Java, or Spark refuses a setting.
        EngineError: Java ended while it started.
    """
    settings = start_session_java(master, conf)
    from pyspark.sql import SparkSession

    from tailerd.spark import register

    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _start_errors(master):
        spark = builder.getOrCreate()
        if not is_local(master):
            # Before the format is registered, so that its modules are on the executors by then.
            ship_package(spark)
        register(spark)
    return spark


def start_session_java(master: str, conf: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """Start the Java that `local_session` will use, unless it runs; blocks for some seconds.

    For programs that load libraries which do not support fork: starting Java forks.

    Returns:
        The settings of the session.

    Raises:
        ConfigError: There is no usable Java, or Spark refuses a setting.
        EngineError: Java ended while it started.
    """
    found = java_home_or_version()
    if not found.is_usable:
        kind = EngineError if found.is_passing else ConfigError
        raise kind(
            f"The Spark engine cannot start, because {found.reason}.",
            remedy="Install a Java runtime 17 or newer, or choose `engine: arrow`.",
        )
    with _start_errors(master):
        settings = {**_settings(master), **(conf or {})}
        _prepare_environment(master, settings)
        start_java(settings, has_own_workers=is_local(master))
    return settings


@contextmanager
def _start_errors(master: str) -> Iterator[None]:
    """Map errors of a start: only refused settings are permanent."""
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except Py4JJavaError as error:
        raise parse_error(str(error)) from error
    except (Py4JError, ConnectionError) as error:
        forget_session()
        raise EngineError(
            f"Spark's Java process ended while it started, and another is started: {error}.",
            remedy="Its messages on stderr may say why; no offset is lost.",
        ) from error
    except OSError as error:
        raise EngineError(
            f"Spark cannot start: {error}.",
            remedy="Free space in the temporary folder, and check the machine's limits.",
        ) from error
    except (PySparkException, RuntimeError) as error:
        raise ConfigError(
            f"Spark cannot start on master {master!r}: {error}.",
            remedy="Check `spark.master` and `spark.conf`.",
        ) from error


def forget_session() -> int | None:
    """Let the next `local_session` start another Java, if the current one has ended; blocking.

    Returns:
        The exit status of the Java that ended, negative for a signal; None, without any change, if
        it is alive, its state is unknown, or it was forgotten already.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return None
    try:
        status = int(process.wait(_JAVA_END_SECONDS))
    except subprocess.TimeoutExpired:
        return None
    with suppress(Exception):
        # Closes this side of its sockets, some of which are broken.
        gateway.shutdown()
    # PySpark keeps these for the life of the process, and has no API for a Java that died.
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None
    return status


def _settings(master: str) -> dict[str, str]:
    loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return {
        **(loopback if is_local(master) else remote_settings()),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": (
            f"-Duser.timezone=UTC -Dlog4j2.configurationFile={_log4j_file().as_uri()}"
        ),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        # How long a task that was killed may go on before its Python worker is.
        "spark.python.task.killTimeout": "500ms",
        # The checkpoint keeps offsets of this many batches; a supervised query needs few.
        "spark.sql.streaming.minBatchesToRetain": "20",
        # A query killed while it writes its first offsets leaves a temporary file. With this
        # check it would never start again.
        "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
    }


def _prepare_environment(master: str, settings: Mapping[str, str]) -> None:
    # The workers must use this interpreter: the `python3` of PATH may have no pyarrow.
    if PYTHON in settings:
        # Only spark-submit reads the property.
        os.environ["PYSPARK_PYTHON"] = settings[PYTHON]
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["TZ"] = "UTC"
    os.environ[AS_DATA] = "1"
    time.tzset()


def _log4j_file() -> Path:
    lines = [_LOG4J]
    for number, name in enumerate(_SILENCED):
        lines.append(f"logger.quiet{number}.name = {name}\nlogger.quiet{number}.level = off\n")
    file = temporary_folder("tailerd-spark-") / "log4j2.properties"
    file.write_text("".join(lines), encoding="utf-8")
    return file


# Java warns of a module that Spark itself asks for, and of options that a user set in the
# environment on purpose. Everything else that it, or a worker of Spark, writes to standard error
# is passed on.

_NOISE = re.compile(
    rb"WARNING: Using incubator modules: "
    rb"|(?:NOTE: )?Picked up \w+_OPTIONS: "
    rb"|WARNING: package sun\.security\.action not in java\.base"
    rb"|Using Spark's default log4j profile: "
    rb"|Setting default log level to "
    rb"|To adjust logging level use "
)
_REFUSAL = re.compile(rb"^(?:Error: |Unrecognized |Invalid |Exception in thread )", re.MULTILINE)
"""Begins a line of Java or Spark about options that they do not accept."""
_SHORTAGE = re.compile(
    rb"reserve enough space|insufficient memory|OutOfMemory|Cannot allocate|No space left"
    rb"|Too many open files|Resource temporarily unavailable"
)
_LAST_LINES = 20
_LAST_LINES_SECONDS = 2.0
_MAX_TEXT_CHARS = 500
_STANDARD_ERROR = 2
_PIECE_BYTES = 65_536


def start_java(settings: Mapping[str, str], *, has_own_workers: bool) -> None:
    """Start the Java process of this Python process, unless it has one; blocking, some seconds.

    Args:
        settings: Of Spark; those of the driver's Java take effect only here.
        has_own_workers: Python workers run on this machine, as children of Java.

    Raises:
        ConfigError: Java or Spark refuses a setting.
        EngineError: Java ended while it started, for example because it was killed.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    conf = SparkConf()
    for key, value in settings.items():
        conf.set(key, value)
    reading, writing = os.pipe()
    lines: deque[bytes] = deque(maxlen=_LAST_LINES)
    copying = threading.Thread(
        target=pass_on, args=(reading, _STANDARD_ERROR, lines), name="java-stderr", daemon=True
    )
    try:
        # Before Java starts: it would wait once the pipe is full.
        copying.start()
        with _own_home() if has_own_workers else nullcontext():
            gateway = launch_gateway(conf, {"stderr": writing})  # type: ignore[no-untyped-call]
    except PySparkRuntimeError as error:
        os.close(writing)
        writing = -1
        copying.join(_LAST_LINES_SECONDS)
        raise explain_end(b"".join(lines)) from error
    finally:
        if writing >= 0:
            os.close(writing)
    SparkContext._ensure_initialized(gateway=gateway)


def explain_end(written: bytes) -> TailerdError:
    """Return the error for a Java process that ended while it started.

    Args:
        written: Its last lines on standard error.
    """
    text = " ".join(written.decode("utf-8", "replace").split())[:_MAX_TEXT_CHARS]
    if _REFUSAL.search(written) and not _SHORTAGE.search(written):
        return ConfigError(
            f"Java refuses to start for Spark: {text}.",
            remedy="Check `spark.conf`, JAVA_TOOL_OPTIONS and SPARK_SUBMIT_OPTS.",
        )
    return EngineError(
        "Spark's Java process ended while it started, and another is started:"
        f" {text or 'it printed nothing, as if it was killed'}.",
        remedy="Check the machine's free memory and the space in its temporary folder.",
    )


def link_home(folder: Path) -> None:
    """Make an empty folder a `SPARK_HOME` of links to PySpark, without its archive of modules.

    Java puts that archive first into every worker's path, and each process then compiles each
    module again: one CPU second for each of the eight kinds of workers. Without it they import the
    same modules, already compiled, from where pip installed them.
    """
    import pyspark

    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "python":
            (folder / entry.name).symlink_to(entry)


@contextmanager
def _own_home() -> Iterator[None]:
    """Start Java with such a `SPARK_HOME`, unless the user has set one."""
    if "SPARK_HOME" in os.environ:
        yield
        return
    home = temporary_folder("tailerd-spark-home-")
    link_home(home)
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]


def pass_on(
    reading: int, writing: int = _STANDARD_ERROR, lines: deque[bytes] | None = None
) -> None:
    """Copy lines from one file descriptor to another without the noise; closes the first.

    The last lines are kept in `lines`, if that is given.
    """
    rest = b""
    with os.fdopen(reading, "rb", buffering=0) as stream:
        while piece := stream.read(_PIECE_BYTES):
            *whole, rest = (rest + piece).split(b"\n")
            reported = [line + b"\n" for line in whole if not _NOISE.match(line)]
            if lines is not None:
                lines.extend(line[:_MAX_TEXT_CHARS] for line in reported)
            _write(writing, b"".join(reported))
            if len(rest) > _PIECE_BYTES:
                _write(writing, rest)
                rest = b""
    if rest and not _NOISE.match(rest):
        _write(writing, rest)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except OSError:
            # The reader has closed standard error: Java must not block on it.
            return
