"""`tailerd demo`: a table that keeps changing, and its changes arriving."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import tempfile
import threading
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tailerd.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from tailerd.config import Config
    from tailerd.daemon.daemon import Daemon
    from tailerd.formats.parts import DemoTable
    from tailerd.telemetry.events import Event

_EXAMPLES = """\b
Examples:
  tailerd demo
  tailerd demo --keep ./lake
  tailerd demo --seconds 120 --engine arrow
  tailerd demo --format kartothek
  tailerd demo --format lance
  tailerd demo --seconds 120 --open
"""
_STARTUP_SECONDS = 120.0
"""How long the first rows may take: a cold Spark on a busy machine needs its time."""
_PAUSE_SECONDS = 1.0
_NAMES = ("orders", "payments", "refunds")
_NEXT = """The tables stay in {folder}. Type next:
  tailerd history {folder}/orders         # what each commit did
  tailerd tail {folder}/orders -n 5       # the last changes, and those that follow
  tailerd init {folder} --sink file > tailerd.yaml
  tailerd run --once                     # deliver the changes of both tables to files"""
_MASTER = "local[2]"


@click.command("demo", epilog=_EXAMPLES)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1, max=86_400),
    default=30.0,
    show_default=True,
    help="How long to run after the first rows of each table have arrived.",
)
@click.option(
    "--engine",
    type=click.Choice(["spark", "arrow"]),
    help="Spark where Java 17 or newer is found, else arrow.",
)
@click.option(
    "--format",
    "table_format",
    default="auto",
    metavar="FORMAT",
    help="Format of the table, such as kartothek; Delta by default.",
)
@click.option(
    "--keep",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Make two tables in FOLDER that stay when the demo ends.",
)
@click.option(
    "--open",
    "is_opening",
    is_flag=True,
    help="Open the console in a browser, with two more tables.",
)
def command(
    seconds: float, engine: str | None, keep: Path | None, is_opening: bool, table_format: str
) -> None:
    """Run a small table that keeps changing, and print its changes.

    The demo needs no setup. At the end it deletes the table, unless you give --keep. Rows go to
    standard output as JSON lines. Ctrl-C ends the demo early.
    """
    names = _NAMES[: 3 if is_opening else 1 if keep is None else 2]
    for table in [] if keep is None else [keep / name for name in names]:
        if table.exists():
            raise UsageError(
                f"{table} exists already.",
                remedy=f"Name another folder, or read it: tailerd tail {shlex.quote(str(table))}",
            )
    chosen = _choose_engine(engine)
    folder = Path(tempfile.mkdtemp(prefix="tailerd-demo-"))
    try:
        demo = _Demo(folder, keep, names, chosen, seconds, table_format=table_format)
        asyncio.run(demo.run(is_opening=is_opening))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if keep is not None and keep.exists():
            _say(_NEXT.format(folder=shlex.quote(str(keep))))


def _choose_engine(requested: str | None) -> str:
    if requested == "arrow":
        _say("Engine: Arrow, in this process, as asked.")
        return requested
    if find_spec("pyspark") is None:
        if requested == "spark":
            raise MissingExtraError(
                "The demo is to run on Spark, but PySpark is not installed.",
                remedy="Install it: pip install 'tailerd[spark]'. Or leave out --engine.",
            )
        _say("Engine: Arrow, in this process; Spark is not used because PySpark is not installed.")
        return "arrow"
    from tailerd.java import java_home_or_version

    java = java_home_or_version()
    if requested == "spark" or java.is_usable:
        _say(f"Engine: Spark, on Java {java.version}.")
        return "spark"
    _say(f"Engine: Arrow, in this process; Spark is not used because {java.reason}.")
    return "arrow"


def _say(text: str) -> None:
    click.echo(text, err=True)


class _Demo:
    """One demonstration: a writer, a daemon, and a clock."""

    def __init__(
        self,
        folder: Path,
        keep: Path | None,
        names: Sequence[str],
        engine: str,
        seconds: float,
        *,
        table_format: str,
    ) -> None:
        from tailerd.formats.detect import find_demo

        self._format = table_format
        self._demo = find_demo(table_format)
        self._is_opening = False
        self._names = names
        self._folder = folder
        self._lake = folder if keep is None else keep
        self._engine = engine
        self._seconds = seconds
        self._has_rows = asyncio.Event()
        self._arrived: set[str] = set()
        self._rows = 0
        self._deliveries = 0

    def _config(self) -> Config:
        from tailerd.config import Config

        tables = {name: self._table(name) for name in self._names}
        return Config.model_validate(
            {
                "engine": self._engine,
                "state": str(self._folder / "state"),
                "http": {"listen": "127.0.0.1:0"},
                "web": {"rows": 50},
                "spark": {"master": _MASTER},
                "tables": tables,
            }
        )

    def _table(self, name: str) -> dict[str, object]:
        file = {"kind": "file", "path": str(self._folder / "changes" / name)}
        return {
            "path": str(self._lake / name),
            "from": "snapshot",
            "sink": {"kind": "console"} if name == self._names[0] else file,
            "format": self._format,
            **({} if self._demo.maintenance is None else {"maintenance": self._demo.maintenance}),
        }

    async def run(self, *, is_opening: bool) -> None:
        """Run until the time is over or Ctrl-C; show the page in a browser with `is_opening`."""
        self._is_opening = is_opening
        from tailerd.cli.run_progress import RunProgress
        from tailerd.daemon.daemon import Daemon
        from tailerd.errors import EngineError
        from tailerd.spark.session import start_session_java

        if self._engine == "spark":
            # Before a table is written: starting Java forks, of which libraries of formats warn.
            await asyncio.to_thread(start_session_java, _MASTER)
        tables = [
            self._demo.table(self._lake / name, seed) for seed, name in enumerate(self._names, 7)
        ]
        for table in tables:
            await asyncio.to_thread(table.create)
            _say(f"Table:  {table.folder}, one commit a second.")
        progress = RunProgress(self._handle, is_counting=False)
        daemon = Daemon(self._config(), handlers=[progress.handle])
        async with asyncio.TaskGroup() as group:
            writers = [group.create_task(_keep_changing(table)) for table in tables]
            timer = group.create_task(self._stop_in_time(daemon))
            with progress:
                await daemon.run()
            for task in (*writers, timer):
                task.cancel()
        deleted = "" if self._lake is not self._folder else " Demo table deleted."
        _say(f"{self._rows} change rows arrived in {self._deliveries} deliveries.{deleted}")
        if daemon.shutdown.interrupted_by is not None:
            raise KeyboardInterrupt
        if not self._rows:
            raise EngineError(
                f"No change row arrived within {_STARTUP_SECONDS + self._seconds:.0f} s on the"
                f" {self._engine} engine.",
                remedy="Try `tailerd demo --engine arrow`; `tailerd doctor` checks this machine.",
            )

    async def _stop_in_time(self, daemon: Daemon) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_STARTUP_SECONDS):
                await self._has_rows.wait()
        await asyncio.sleep(self._seconds)
        daemon.stop()

    def _handle(self, event: Event) -> None:
        from tailerd.telemetry import events

        match event:
            case events.DaemonStarted(path=address):
                _say(f"Page:   {address}/  (metrics: {address}/metrics)")
                if self._is_opening:
                    # In a thread: a browser may be slow, or missing.
                    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
            case events.DeliveryAcknowledged():
                self._rows += sum(event.rows.values())
                # Versions of some formats are times, of which a difference counts nothing.
                self._deliveries += 1
                self._arrived.add(event.table)
                if len(self._arrived) == len(self._names):
                    self._has_rows.set()
            case events.RetryScheduled(error_code=code, error=error):
                _say(f"Trying again after {code}: {error}")
            case _:
                pass


async def _keep_changing(table: DemoTable) -> None:
    while True:
        await asyncio.sleep(_PAUSE_SECONDS)
        await asyncio.to_thread(table.change)
