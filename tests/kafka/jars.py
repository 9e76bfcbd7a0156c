"""Kafka's jars: fetched once by the Ivy that PySpark ships, kept outside the tree.

`python -m tests.kafka.jars` fetches them if need be and says where they are.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

VERSION = "4.1.0"
MODULE = ("org.apache.kafka", "kafka_2.13", VERSION)
FETCH_SECONDS = 600


class KafkaUnavailableError(Exception):
    """No broker can be started here. The message is one line that says why and what helps."""


def kafka_jars() -> Path:
    """Return the folder of the broker's jars, fetched if it is not there yet.

    It is $TAILERD_KAFKA/lib, or lib/ in a folder of the user's cache. Safe to call from several
    processes at once: one fetches, the others wait. A folder appears only when it is complete.

    Raises:
        KafkaUnavailableError: There is no Java 17, or the jars cannot be fetched.
    """
    java()
    home = _home()
    lib = home / "lib"
    if lib.is_dir():
        return lib
    try:
        home.mkdir(parents=True, exist_ok=True)
        with _only_one(home / ".lock"):
            if not lib.is_dir():
                _fetch(home)
    except OSError as error:
        raise KafkaUnavailableError(
            f"Kafka's jars cannot be kept in {home}: {error}; set TAILERD_KAFKA to another folder."
        ) from error
    return lib


def class_path() -> str:
    """Return Java's class path of a broker, with PySpark's logging: Kafka's module has none."""
    logging = [
        str(found[-1])
        for name in ("slf4j-api", "log4j-slf4j2-impl", "log4j-api", "log4j-core")
        if (found := sorted(_pyspark_jars().glob(f"{name}-*.jar")))
    ]
    return ":".join([*logging, f"{kafka_jars()}/*"])


def java() -> str:
    """Return the path of a Java that can run Kafka.

    Raises:
        KafkaUnavailableError: There is none, or it is older than 17.
    """
    # Imported here: most tests need no PySpark.
    from tailerd.java import java_home_or_version

    found = java_home_or_version()
    if not found.is_usable:
        raise KafkaUnavailableError(f"Kafka cannot start: {found.reason}")
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin/java") if home else shutil.which("java") or "java"


def _home() -> Path:
    if location := os.environ.get("TAILERD_KAFKA"):
        return Path(location)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / f"tailerd/kafka-{VERSION}"


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        # Let go by the kernel when the process ends, however it ends.
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(home: Path) -> None:
    with tempfile.TemporaryDirectory(dir=home, prefix="fetching-") as folder:
        _run_ivy(Path(folder))
        jars = Path(folder) / "lib"
        if not (jars / f"kafka_2.13-{VERSION}.jar").exists():
            raise KafkaUnavailableError(
                f"Ivy fetched no kafka_2.13-{VERSION}.jar for Kafka; try again."
            )
        jars.rename(home / "lib")


def _run_ivy(folder: Path) -> None:
    command = [
        *[java(), "-jar", str(_ivy()), "-cache", str(folder / "cache")],
        *["-dependency", *MODULE, "-confs", "default"],
        *["-retrieve", f"{folder}/lib/[artifact]-[revision].[ext]"],
    ]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise KafkaUnavailableError(
            f"Kafka's jars were not fetched in {FETCH_SECONDS} s; is Maven Central reachable?"
        ) from error
    if done.returncode != 0:
        reported = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise KafkaUnavailableError(
            "Kafka's jars cannot be fetched; is Maven Central reachable? Ivy said: "
            + " | ".join(line.strip() for line in reported[-3:])
        )


def _ivy() -> Path:
    found = sorted(_pyspark_jars().glob("ivy-*.jar"))
    if not found:
        raise KafkaUnavailableError("This PySpark ships no Ivy to fetch Kafka's jars with.")
    return found[-1]


def _pyspark_jars() -> Path:
    if home := os.environ.get("SPARK_HOME"):
        # One for all environments, so that archives of classes fit its paths in each.
        return Path(home) / "jars"
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise KafkaUnavailableError("Kafka's jars are fetched by PySpark's Ivy; it is missing.")
    return Path(spec.origin).parent / "jars"


if __name__ == "__main__":
    started = time.monotonic()
    location = kafka_jars()
    count = len(list(location.glob("*.jar")))
    print(f"{count} jars in {location}, after {time.monotonic() - started:.1f} s")
