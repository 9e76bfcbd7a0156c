"""`tailerd demo`: a table that keeps changing, and its changes arriving."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tailerd.cli.demo_table import DemoTable
    from tailerd.config import Config
    from tailerd.daemon import Daemon
    from tailerd.telemetry.events import Event

_EXAMPLES = """\b
Examples:
  tailerd demo
  tailerd demo --seconds 120 --engine arrow
"""
_STARTUP_SECONDS = 120.0
"""How long the first rows may take: a cold Spark on a busy machine needs its time."""
_PAUSE_SECONDS = 1.0


@click.command("demo", epilog=_EXAMPLES)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1, max=86_400),
    default=30.0,
    show_default=True,
    help="How long to go on once the first rows have arrived.",
)
@click.option(
    "--engine",
    type=click.Choice(["spark", "arrow"]),
    help="Spark where Java 17 or newer is found, else arrow.",
)
def command(seconds: float, engine: str | None) -> None:
    """Make a small Delta table that keeps changing, and show its changes arriving.

    Needs nothing. The table lives in a temporary folder that is removed at the end. Rows go to
    standard output as JSON lines; Ctrl-C ends the demo early.
    """
    chosen = _choose_engine(engine)
    folder = Path(tempfile.mkdtemp(prefix="tailerd-demo-"))
    try:
        asyncio.run(_Demo(folder, chosen, seconds).run())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _choose_engine(asked: str | None) -> str:
    if asked == "arrow":
        _say("Engine: Arrow, in this process, as asked.")
        return asked
    from tailerd.spark.session import java_home_or_version

    java = java_home_or_version()
    if asked == "spark" or java.is_usable:
        _say(f"Engine: Spark, on Java {java.version}. It takes some seconds to start.")
        return "spark"
    _say(f"Engine: Arrow, in this process; Spark is not used because {java.reason}.")
    return "arrow"


def _say(text: str) -> None:
    click.echo(text, err=True)


class _Demo:
    """One demonstration: a writer, a daemon, and a clock."""

    def __init__(self, folder: Path, engine: str, seconds: float) -> None:
        self._folder = folder
        self._engine = engine
        self._seconds = seconds
        self._has_rows = asyncio.Event()
        self._rows = 0
        self._versions = 0

    def _config(self) -> Config:
        from tailerd.config import Config

        table = {
            "path": str(self._folder / "orders"),
            "from": "snapshot",
            "sink": {"kind": "console"},
        }
        return Config.model_validate(
            {
                "engine": self._engine,
                "state": str(self._folder / "state"),
                "http": {"listen": "127.0.0.1:0"},
                "spark": {"master": "local[2]"},
                "tables": {"orders": table},
            }
        )

    async def run(self) -> None:
        """Run until the time is over or Ctrl-C."""
        from tailerd.cli.demo_table import DemoTable
        from tailerd.daemon import Daemon

        table = DemoTable(self._folder / "orders")
        await asyncio.to_thread(table.create)
        _say(f"Table:  {table.folder}, one commit a second.")
        daemon = Daemon(self._config(), handlers=[self._handle])
        async with asyncio.TaskGroup() as group:
            writer = group.create_task(_keep_changing(table))
            timer = group.create_task(self._stop_in_time(daemon))
            await daemon.run()
            writer.cancel()
            timer.cancel()
        _say(
            f"{self._rows} change rows of {self._versions} versions arrived. The table is removed."
        )
        if daemon.interrupted_by is not None:
            raise KeyboardInterrupt

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
                _say(f"Metrics: {address}/metrics, status: {address}/status")
            case events.DeliveryAcknowledged():
                self._rows += sum(event.rows.values())
                self._versions += event.end_version - event.start_version + 1
                self._has_rows.set()
            case events.RetryScheduled(error_code=code, hint=hint):
                _say(f"Trying again after {code}: {hint}")
            case _:
                pass


async def _keep_changing(table: DemoTable) -> None:
    while True:
        await asyncio.sleep(_PAUSE_SECONDS)
        await asyncio.to_thread(table.change)
