"""Two tiers of tests: what everybody runs every day, and all of it.

`python -m pytest` leaves out what is marked `full`: kills, races, the oracle, long simulations,
further variants of tests that start processes. `--full` runs all, and so does naming a location.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from zlib import crc32

import pytest

WORKERS = 4
"""On two cores: many tests wait for servers."""

KEPT_RUNS = 20

LATE_GROUPS = {"image", "cluster"}
"""What they need is built beside the tests, where nothing of it is kept from another run."""

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java of tests lives for seconds, and would spend a fifth of them on compiling for hours."""
SPARK_OPTIONS = " ".join(
    (
        JAVA_OPTIONS,
        # For some rows, compiling a query takes longer than interpreting it.
        "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN",
        # Java that compiles little has too little room for the code of Spark: it would throw
        # methods away and compile them again. And queries leave much garbage that is soon free.
        "-XX:ReservedCodeCacheSize=240m -XX:-UseCodeCacheFlushing -Xmn256m",
    )
)


def choose(config: pytest.Config) -> None:
    """Settle what a run takes, in the process that was started: its workers get what it settles.

    Where no location is named and no number of processes either, several are used, and the
    durations are kept beside those of the last runs.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    option = config.option
    is_named = config.args_source is pytest.Config.ArgsSource.ARGS
    implied = ("benchmark", "all_tables", "seeds", "kills", "race_seconds")
    option.full = option.full or is_named or any(getattr(option, name) for name in implied)
    if not option.benchmark and not option.collectonly:
        # Benchmarks run Java as users run it.
        os.environ.setdefault("KAFKA_OPTS", JAVA_OPTIONS)
        os.environ.setdefault("SPARK_SUBMIT_OPTS", SPARK_OPTIONS)
    if is_named or option.collectonly:
        return
    if option.numprocesses is None and not option.usepdb:
        option.numprocesses = WORKERS
        option.dist = "loadgroup"
    if not option.xmlpath:
        option.xmlpath = _make_durations_path()


def _make_durations_path() -> str:
    folder = Path.home() / ".cache/tailerd/durations"
    folder.mkdir(parents=True, exist_ok=True)
    for former in sorted(folder.glob("*.xml"))[: -KEPT_RUNS + 1]:
        former.unlink(missing_ok=True)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return str(folder / f"{stamp}-{os.getpid()}.xml")


def mixed(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return tests in the order in which several processes take them.

    Those without a group come in an order that has nothing to do with their locations: neighbours
    wait for the same things, and all processes would wait at one time and none at another. What is
    marked `full` comes first, as a long test at the end leaves the other processes without work.
    """
    return sorted(items, key=_turn)


def _turn(item: pytest.Item) -> tuple[int, int]:
    if group := item.get_closest_marker("xdist_group"):
        # Those of a group are alike, so that they stay in their order.
        return 0, int(group.args[0] in LATE_GROUPS)
    return 1 if item.get_closest_marker("full") else 2, crc32(item.nodeid.encode())


def left_out(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return (tests of every day, tests marked `full`), each in order."""
    every_day = [item for item in items if not item.get_closest_marker("full")]
    rest = [item for item in items if item.get_closest_marker("full")]
    return every_day, rest
