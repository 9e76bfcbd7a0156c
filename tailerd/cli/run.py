"""`tailerd run`: the daemon."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from tailerd.cli.paragraphs import say_error
from tailerd.cli.table_options import config_option, file_argument

if TYPE_CHECKING:
    from tailerd.cli.run_progress import RunProgress
    from tailerd.config import Config
    from tailerd.daemon.daemon import Daemon

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8

_EXAMPLES = """\b
Examples:
  tailerd run                                    # the tables of ./tailerd.yaml
  tailerd run config/quickstart.yaml --once
  tailerd run --config tailerd.yaml --once --retry-for 30s
  tailerd run --config tailerd.yaml --engine arrow --log-format json
  TAILERD__HTTP__LISTEN=127.0.0.1:9000 tailerd run --config tailerd.yaml
"""


@click.command("run", epilog=_EXAMPLES)
@file_argument
@config_option("The configuration, a YAML file")
@click.option("--once", is_flag=True, help="Deliver the commits that exist now, then stop.")
@click.option(
    "--retry-for",
    metavar="TIME",
    help="With --once: retry temporary errors for this long (30s, 5m), then exit with 1. The time"
    " begins with the first failed attempt, and again after each delivery.  [default: 5m]",
)
@click.option(
    "--engine",
    type=click.Choice(["auto", "spark", "arrow"]),
    help="Run every table with this engine.",
)
@click.option(
    "--watch-config",
    is_flag=True,
    help="Reload the configuration when the file changes, not only on SIGHUP.",
)
@click.option(
    "--log-format",
    type=click.Choice(["auto", "human", "json"]),
    default="auto",
    show_default=True,
    help="`auto` is `human` on a terminal and `json` elsewhere.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Minimum level of log lines.",
)
@click.pass_obj
def command(
    about: dict[str, bool],
    config_path: Path,
    once: bool,
    retry_for: str | None,
    engine: str | None,
    watch_config: bool,
    log_format: Literal["auto", "human", "json"],
    log_level: Literal["debug", "info", "warning", "error"],
) -> None:
    """Deliver the changes of every table of the configuration FILE until stopped.

    SIGTERM and Ctrl-C finish pending deliveries, save the offsets and end; a second one ends at
    once. SIGHUP reads the configuration again: tables are added, removed and altered without
    touching the others, and a file that is wrong changes nothing. Standard output carries nothing
    but the rows of console sinks; the log goes to standard error.
    """
    from tailerd.cli.run_progress import RunProgress
    from tailerd.config import load_config
    from tailerd.daemon.daemon import Daemon
    from tailerd.telemetry.logs import log_handler

    if is_own_process := about["is_own_process"]:
        _prepare_process()
    hangups = _Hangups(is_listening=is_own_process and not once)

    def load() -> Config:
        config = load_config(config_path, engine=engine)
        make_demo_tables(config)
        return config

    config = load()
    log = log_handler(sys.stderr, log_format, log_level)
    progress = RunProgress(log, is_counting=once and not _prints_rows(config))
    daemon = Daemon(
        config,
        is_once=once,
        retry_seconds=_read_retry_time(retry_for, is_once=once),
        handlers=[progress.handle],
        on_stuck=_leave,
        config_path=config_path,
        reload=None if once else load,
        is_watching_config=watch_config and not once,
        is_own_process=is_own_process,
    )
    hangups.pass_to(daemon.ask_reload)
    _run(daemon, progress)


def _read_retry_time(text: str | None, *, is_once: bool) -> float | None:
    """Return the seconds of `--retry-for`; None for the default."""
    from tailerd.config.values import parse_duration
    from tailerd.errors import UsageError

    if text is None:
        return None
    if not is_once:
        raise UsageError(
            "--retry-for needs --once: a daemon retries errors that may pass until they do.",
            remedy="Set `max_attempts` of a table to stop its pipeline earlier.",
        )
    try:
        return float(str(parse_duration(text)))
    except ValueError as error:
        raise UsageError(f"--retry-for is {text!r}, but {error}.") from error


def _run(daemon: Daemon, progress: RunProgress) -> None:
    with progress:
        asyncio.run(daemon.run())
    if daemon.shutdown.interrupted_by is signal.SIGINT:
        raise KeyboardInterrupt


def _prints_rows(config: Config) -> bool:
    """Return whether rows are printed to the terminal that would show progress."""
    kinds = {table.sink.kind for table in config.tables.values()}
    return sys.stdout.isatty() and "console" in kinds


def _prepare_process() -> None:
    """Load pandas only if it is needed, and return freed memory to the system.

    By default glibc keeps them in a heap for each thread: after listing a table with millions of
    files, the process would stay twice as large as necessary.
    """
    from tailerd.arrow_start import start_arrow

    start_arrow()
    try:
        set_option = ctypes.CDLL(None).mallopt
    except AttributeError:
        # Another C library: musl and macOS return memory by default.
        return
    set_option(_M_MMAP_THRESHOLD, 4 * 1024 * 1024)
    set_option(_M_ARENA_MAX, 2)


class _Hangups:
    """Catches `SIGHUP` before the daemon does: by default it would end the process."""

    def __init__(self, *, is_listening: bool) -> None:
        self._is_listening = is_listening
        self._has_come = False
        if is_listening:
            signal.signal(signal.SIGHUP, self._catch)

    def _catch(self, *_: object) -> None:
        self._has_come = True

    def pass_to(self, ask_reload: Callable[[], None]) -> None:
        """Call `ask_reload` for signals from now on, and once for earlier ones."""
        if self._is_listening:
            signal.signal(signal.SIGHUP, lambda *_: ask_reload())
        if self._has_come:
            ask_reload()


def make_demo_tables(config: Config) -> None:
    """Create the tables with `create: demo` that do not exist yet."""
    from tailerd.daemon.tables import lacks_demo_table
    from tailerd.formats.detect import find_demo
    from tailerd.formats.parts import make_demo_table
    from tailerd.storage.table_location import locate_table

    for table in config.tables.values():
        if lacks_demo_table(table):
            make_demo_table(find_demo(table.format), Path(locate_table(table.path).root))


def _leave() -> None:
    """End the process despite a hanging thread. Offsets stay valid, as after a kill."""
    say_error(
        "stuck",
        "A read or write hangs and did not end in time, so the process exits without it. The next"
        " run repeats pending deliveries.",
    )
    os._exit(1)
