"""Finds a Java for Spark, and starts one session, with few log messages, driven by this process."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tailerd.errors import ConfigError, EngineError
from tailerd.spark.java_process import start_java
from tailerd.spark.query_errors import error_of
from tailerd.spark.remote import (
    PYTHON,
    is_local,
    remote_settings,
    ship_package,
    temporary_folder,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_JAVA = 17
_JAVA_TIMEOUT_SECONDS = 20
_JAVA_END_SECONDS = 2.0
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')

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


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaFound:
    """The Java that was found.

    Attributes:
        version: Major version of a usable Java; 0 if there is none.
        reason: Why it is not usable; empty if it is.
        is_passing: Whether the reason may pass by itself: Java was killed, or took too long.
    """

    version: int
    reason: str = ""
    is_passing: bool = False

    @property
    def is_usable(self) -> bool:
        """Whether Spark can start on it."""
        return not self.reason


def java_home_or_version(environment: Mapping[str, str] | None = None) -> JavaFound:
    """Find the Java that Spark would use: `JAVA_HOME`, else `java` on the `PATH`."""
    environment = os.environ if environment is None else environment
    home = environment.get("JAVA_HOME", "")
    java = (
        str(Path(home) / "bin" / "java")
        if home
        else shutil.which("java", path=environment.get("PATH"))
    )
    if java is None:
        return JavaFound(
            version=0, reason="there is no `java` on the PATH and JAVA_HOME is not set"
        )
    try:
        answer = subprocess.run(
            [java, "-version"],
            capture_output=True,
            text=True,
            timeout=_JAVA_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        is_passing = not isinstance(error, FileNotFoundError | PermissionError)
        return JavaFound(
            version=0, reason=f"{java} cannot be started ({error})", is_passing=is_passing
        )
    match = _VERSION.search(answer.stderr) or _VERSION.search(answer.stdout)
    if match is None:
        reason = f"{java} does not print its version"
        return JavaFound(version=0, reason=reason, is_passing=answer.returncode < 0)
    # Java 8 calls itself 1.8.
    version = int(match[2] or 0) if match[1] == "1" else int(match[1])
    if version < MIN_JAVA:
        return JavaFound(
            version=version, reason=f"{java} is Java {version}, Spark needs {MIN_JAVA} or newer"
        )
    return JavaFound(version=version)


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
        raise error_of(str(error)) from error
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
    time.tzset()


def _log4j_file() -> Path:
    lines = [_LOG4J]
    for number, name in enumerate(_SILENCED):
        lines.append(f"logger.quiet{number}.name = {name}\nlogger.quiet{number}.level = off\n")
    file = temporary_folder("tailerd-spark-") / "log4j2.properties"
    file.write_text("".join(lines), encoding="utf-8")
    return file
