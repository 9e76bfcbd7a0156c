"""Starts Spark's Java process, and suppresses its irrelevant messages.

Java warns of a module that Spark itself asks for, and of options that a user set in the environment
on purpose. Everything else that it, or a worker of Spark, writes to standard error is passed on.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

from tailerd.spark.remote import temporary_folder

_NOISE = re.compile(
    rb"WARNING: Using incubator modules: "
    rb"|(?:NOTE: )?Picked up \w+_OPTIONS: "
    rb"|WARNING: package sun\.security\.action not in java\.base"
    rb"|Using Spark's default log4j profile: "
    rb"|Setting default log level to "
    rb"|To adjust logging level use "
)
_STANDARD_ERROR = 2
_PIECE_BYTES = 65_536


def start_java(settings: Mapping[str, str], *, has_own_workers: bool) -> None:
    """Start the Java process of this Python process, unless it has one; blocking, some seconds.

    Args:
        settings: Of Spark; those of the driver's Java take effect only here.
        has_own_workers: Python workers run on this machine, as children of Java.

    Raises:
        PySparkRuntimeError: Java ended while it started; what it wrote is on standard error.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    conf = SparkConf()
    for key, value in settings.items():
        conf.set(key, value)
    reading, writing = os.pipe()
    try:
        # Before Java starts: it would wait once the pipe is full.
        threading.Thread(target=pass_on, args=(reading,), name="java-stderr", daemon=True).start()
        with _own_home() if has_own_workers else nullcontext():
            gateway = launch_gateway(conf, {"stderr": writing})  # type: ignore[no-untyped-call]
    finally:
        os.close(writing)
    SparkContext._ensure_initialized(gateway=gateway)


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


def pass_on(reading: int, writing: int = _STANDARD_ERROR) -> None:
    """Copy lines from one file descriptor to another without the noise; closes the first."""
    rest = b""
    with os.fdopen(reading, "rb", buffering=0) as stream:
        while piece := stream.read(_PIECE_BYTES):
            *lines, rest = (rest + piece).split(b"\n")
            _write(writing, b"".join(line + b"\n" for line in lines if not _NOISE.match(line)))
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
