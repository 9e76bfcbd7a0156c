"""Checks of this machine: Python, Java, disk, inotify; blocking."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from tailerd import __version__
from tailerd.checks.finding import Finding, run_check
from tailerd.config import Config
from tailerd.errors import ConfigError, StorageError
from tailerd.registry import is_remote

MIB = 1 << 20
MIN_FREE_BYTES = 64 * MIB
LITTLE_FREE_BYTES = 1024 * MIB
MAX_USED = 0.95
WATCHES_PER_TABLE = 2
_PYTHON_SECONDS = 30
_INOTIFY = Path("/proc/sys/fs/inotify")
_ASK_PYTHON = (
    "import json, sys\n"
    "found = {'version': list(sys.version_info[:2]), 'missing': ''}\n"
    "try:\n    import pyarrow, tailerd\nexcept ImportError as error:\n"
    "    found['missing'] = error.name or 'tailerd'\n"
    "print(json.dumps(found))\n"
)


def machine_findings(config: Config | None, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the findings about this machine.

    Args:
        config: What will run; None for what any configuration may need.
        environment: Of this process.
    """
    yield Finding.ok(
        "python", f"Python {platform.python_version()} with tailerd {__version__}, {sys.executable}"
    )
    if config is None or "spark" in _engines(config):
        yield from run_check("spark", lambda: _spark_findings(config, environment))
    yield from run_check("disk", lambda: disk_finding("disk", _state_folder(config)))
    yield from run_check("inotify", lambda: inotify_findings(config, _INOTIFY))


def _engines(config: Config) -> set[str]:
    engines: set[str] = {config.select_engine(name) for name in config.tables}
    return engines | {config.resolve_engine(g.template.engine) for g in config.discover.values()}


def _spark_findings(config: Config | None, environment: Mapping[str, str]) -> Iterator[Finding]:
    from tailerd.java import java_home_or_version

    is_needed = config is not None
    if find_spec("pyspark") is None:
        yield _lacking("spark", "PySpark is not installed.", is_needed=is_needed)
        return
    java = java_home_or_version(environment)
    if java.is_usable:
        yield Finding.ok("java", f"Java {java.version} for the Spark engine")
    else:
        yield _lacking("java", f"Spark cannot start: {java.reason}.", is_needed=is_needed)
    yield worker_python_finding({} if config is None else config.spark.conf, environment)


def _lacking(check: str, message: str, *, is_needed: bool) -> Finding:
    remedy = (
        "Install a Java runtime 17 or newer and `pip install 'tailerd[spark]'`, or set"
        " `engine: arrow`."
    )
    if is_needed:
        return Finding.problem(check, ConfigError(message, remedy=remedy))
    return Finding.warning(check, f"{message} The Arrow engine works without it.", remedy)


def worker_python_finding(conf: Mapping[str, str], environment: Mapping[str, str]) -> Finding:
    """Return whether Spark's workers run a Python that can do their work.

    Args:
        conf: `spark.conf` of the configuration.
        environment: Of this process.
    """
    check = "spark workers"
    python = conf.get("spark.pyspark.python") or environment.get("PYSPARK_PYTHON") or sys.executable
    if python == sys.executable:
        return Finding.ok(check, "Spark's workers run this Python")
    remedy = (
        f"Unset PYSPARK_PYTHON and `spark.pyspark.python`, or set them to {sys.executable}; on a"
        " cluster, install tailerd's dependencies into the Python of the workers."
    )
    try:
        done = subprocess.run(
            [python, "-c", _ASK_PYTHON],
            capture_output=True,
            text=True,
            timeout=_PYTHON_SECONDS,
            check=True,
            env=dict(environment),
        )
        found = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        error = ConfigError(
            f"Spark's workers would run {python}, which does not start here.", remedy=remedy
        )
        return Finding.problem(check, error)
    if tuple(found["version"]) != sys.version_info[:2]:
        version = ".".join(map(str, found["version"]))
        error = ConfigError(
            f"Spark's workers would run {python}, which is Python {version}, but this is Python"
            f" {sys.version_info[0]}.{sys.version_info[1]}: Spark refuses to mix them.",
            remedy=remedy,
        )
        return Finding.problem(check, error)
    if found["missing"]:
        error = ConfigError(
            f"Spark's workers would run {python}, which lacks the module {found['missing']}.",
            remedy=remedy,
        )
        return Finding.problem(check, error)
    return Finding.ok(check, f"Spark's workers run {python}")


def _state_folder(config: Config | None) -> Path:
    return Path.cwd() if config is None or is_remote(config.state) else Path(config.state)


def disk_finding(check: str, folder: Path) -> Finding:
    """Return whether the disk of a folder, which need not exist yet, has room."""
    location = folder.absolute()
    while not location.exists():
        location = location.parent
    usage = shutil.disk_usage(location)
    free = f"{usage.free / MIB:,.0f} MiB free for {folder}"
    remedy = "Free space, or set another folder."
    if usage.free < MIN_FREE_BYTES:
        return Finding.problem(check, StorageError(f"The disk is full: {free}.", remedy=remedy))
    if usage.free < LITTLE_FREE_BYTES and usage.used / usage.total > MAX_USED:
        return Finding.warning(check, f"The disk is nearly full: {free}.", remedy)
    return Finding.ok(check, free)


def inotify_findings(config: Config | None, limits: Path) -> Iterator[Finding]:
    """Yield whether commits of all local tables can be noticed at once.

    Args:
        config: What will run.
        limits: The folder of the kernel's limits; without it the kernel has no inotify.
    """
    try:
        watches = int((limits / "max_user_watches").read_text())
        instances = int((limits / "max_user_instances").read_text())
    except (OSError, ValueError):
        yield Finding.skip("inotify", "This kernel has no inotify: tables are polled.")
        return
    local = [] if config is None else [t for t in config.tables.values() if not is_remote(t.path)]
    needed = WATCHES_PER_TABLE * len(local)
    if needed > watches or instances < 1:
        yield Finding.warning(
            "inotify",
            f"{len(local)} local tables need {needed} watches, and this user may have {watches};"
            " tables without one are polled every 2 s.",
            f"Raise the limit: sysctl fs.inotify.max_user_watches={2 * needed}.",
        )
        return
    yield Finding.ok("inotify", f"{watches:,} watches allowed for {len(local)} local tables")
