"""`tailerd demo`: a table that keeps changing, and its changes arriving."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
import webbrowser
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tailerd.errors import MissingExtraError

if TYPE_CHECKING:
    from tailerd.config import Config
    from tailerd.daemon.daemon import Daemon
    from tailerd.formats.parts import DemoTable
    from tailerd.telemetry.events import Event

_EXAMPLES = """\b
Examples:
  tailerd demo
  tailerd demo --seconds 120 --engine arrow
  tailerd demo --format kartothek
  tailerd demo --format lance
  tailerd demo --seconds 120 --open
"""
_STARTUP_SECONDS = 120.0
"""How long the first rows may take: a cold Spark on a busy machine needs its time."""
_PAUSE_SECONDS = 1.0
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
    "--open",
    "is_opening",
    is_flag=True,
    help="Show the page of the daemon in a browser, with two more tables on it.",
)
def command(seconds: float, engine: str | None, is_opening: bool, table_format: str) -> None:
    """Make a small table that keeps changing, and show its changes arriving.

    Needs nothing. The table lives in a temporary folder that is removed at the end. Rows go to
    standard output as JSON lines; Ctrl-C ends the demo early.
    """
    chosen = _choose_engine(engine)
    folder = Path(tempfile.mkdtemp(prefix="tailerd-demo-"))
    try:
        asyncio.run(
            _Demo(folder, chosen, seconds, table_format=table_format, is_opening=is_opening).run()
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
    from tailerd.spark.session import java_home_or_version

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
        engine: str,
        seconds: float,
        *,
        table_format: str,
        is_opening: bool = False,
    ) -> None:
        from tailerd.formats.detect import find_demo

        self._format = table_format
        self._demo = find_demo(table_format)
        self._is_opening = is_opening
        self._names = ("orders", "payments", "refunds") if is_opening else ("orders",)
        self._folder = folder
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
            "path": str(self._folder / name),
            "from": "snapshot",
            "sink": {"kind": "console"} if name == self._names[0] else file,
            "format": self._format,
            **({} if self._demo.maintenance is None else {"maintenance": self._demo.maintenance}),
        }

    async def run(self) -> None:
        """Run until the time is over or Ctrl-C."""
        from tailerd.cli.run_progress import RunProgress
        from tailerd.daemon.daemon import Daemon
        from tailerd.errors import EngineError
        from tailerd.spark.session import start_session_java

        if self._engine == "spark":
            # Before a table is written: starting Java forks, of which libraries of formats warn.
            await asyncio.to_thread(start_session_java, _MASTER)
        tables = [
            self._demo.table(self._folder / name, seed) for seed, name in enumerate(self._names, 7)
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
        _say(f"{self._rows} change rows arrived in {self._deliveries} deliveries. All is removed.")
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
