"""Starts Spark's Java process, and suppresses its irrelevant messages.

Java warns of a module that Spark itself asks for, and of options that a user set in the environment
on purpose. Everything else that it, or a worker of Spark, writes to standard error is passed on.
"""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

from tailerd.errors import ConfigError, EngineError, TailerdError
from tailerd.spark.remote import temporary_folder

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
            said = [line + b"\n" for line in whole if not _NOISE.match(line)]
            if lines is not None:
                lines.extend(line[:_MAX_TEXT_CHARS] for line in said)
            _write(writing, b"".join(said))
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
