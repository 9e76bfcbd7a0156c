"""Prints the files of tailerd that a commit of one row crosses, and the calls of their functions.

`python -m tests.trace_commit [tail] [kafka] [spark]`. What counts are calls and resumptions of
functions in this process, from before the commit until its row is delivered, on an idle pipeline;
the fewest of several commits. Without names all three are traced; Kafka and Spark start a broker,
Spark a Java too.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import tailerd
from tests.tables.builder import TableBuilder

WAYS = ("tail", "kafka", "spark")
COMMITS = 3
SECONDS = 120
SETTLE_SECONDS = 1.0
"""After a first commit, until nothing more is done for it."""

_PACKAGE = str(Path(tailerd.__file__).parent) + os.sep


class CallTrace:
    """Counts the calls of tailerd's functions by file, in threads that start after `install`."""

    def __init__(self) -> None:
        self.is_on = False
        self.calls: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if self.is_on and event == "call":
            name = frame.f_code.co_filename
            if name.startswith(_PACKAGE):
                self.calls[name.removeprefix(_PACKAGE)] += 1

    @contextlib.contextmanager
    def install(self) -> Any:
        """Count while it is on, in this thread and in new ones."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def trace(way: str, folder: Path, bootstrap: str = "") -> Mapping[str, int]:
    """Return the calls of each file of tailerd that a commit of one row crosses.

    Args:
        way: One of `WAYS`.
        folder: An empty one, for the table, the state and the configuration.
        bootstrap: The broker's address.
    """
    table = TableBuilder(folder / "table")
    table.append([{"id": 1, "name": "a"}])
    calls, delivered = CallTrace(), threading.Semaphore(0)
    traced: list[Counter[str]] = []

    def commit_while_tracing() -> None:
        for row in range(2, 3 + COMMITS):
            _wait(delivered)
            time.sleep(SETTLE_SECONDS)
            calls.calls = Counter()
            # The first commits load what later ones find loaded.
            calls.is_on = row > 2
            table.append([{"id": row, "name": "b"}])
            if calls.is_on:
                _wait(delivered)
                calls.is_on = False
                traced.append(calls.calls)
                delivered.release()
        os.kill(os.getpid(), signal.SIGINT)

    writer = threading.Thread(target=commit_while_tracing, daemon=True)
    writer.start()
    with calls.install():
        if way == "tail":
            _tail(folder / "table", delivered)
        else:
            _run_daemon(way, folder, bootstrap, delivered)
    writer.join()
    # Polls by the clock fall into some of them.
    return min(traced, key=Counter.total)


def _wait(delivered: threading.Semaphore) -> None:
    if not delivered.acquire(timeout=SECONDS):
        os.kill(os.getpid(), signal.SIGINT)
        raise TimeoutError(f"nothing was delivered in {SECONDS} s")


def _tail(table: Path, delivered: threading.Semaphore) -> None:
    from tailerd.cli import run

    class Output(io.TextIOWrapper):
        def write(self, text: str) -> int:
            for _ in range(text.count('"_change_type"')):
                delivered.release()
            return len(text)

    class Bytes(io.BytesIO):
        def write(self, data: Any) -> int:
            for _ in range(bytes(data).count(b'"_change_type"')):
                delivered.release()
            return len(data)

    with contextlib.redirect_stdout(Output(Bytes())):
        run(["tail", str(table), "--from", "0", "--format", "jsonl"])


def _run_daemon(way: str, folder: Path, bootstrap: str, delivered: threading.Semaphore) -> None:
    from tailerd.config import Config
    from tailerd.daemon.daemon import Daemon
    from tailerd.telemetry import events

    def note(event: events.Event) -> None:
        if isinstance(event, events.DeliveryAcknowledged):
            delivered.release()

    sink = {
        "kind": "kafka",
        "bootstrap_servers": bootstrap,
        "topic": f"trace-{way}-{os.getpid()}",
        "create_topic": {"partitions": 1},
    }
    config = Config.model_validate(
        {
            "name": f"trace-{way}",
            "engine": "spark" if way == "spark" else "arrow",
            "state": str(folder / "state"),
            "http": {"listen": "127.0.0.1:0"},
            "tables": {"orders": {"path": str(folder / "table"), "from": 0, "sink": sink}},
        }
    )
    asyncio.run(Daemon(config, handlers=[note]).run())


def main() -> None:
    """Trace the ways that are named, print their files and totals."""
    ways = sys.argv[1:] or WAYS
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bootstrap = ""
        if set(ways) - {"tail"}:
            from tests.kafka.broker import Broker

            broker = Broker(folder / "broker")
            broker.start()
            stack.callback(broker.stop)
            bootstrap = broker.plain
        totals: list[str] = []
        for way in ways:
            (folder / way).mkdir()
            calls = trace(way, folder / way, bootstrap)
            print(f"\n{way}")
            for name, count in sorted(calls.items()):
                print(f"{count:6d}  {name}")
            totals.append(f"{way}: {len(calls)} files, {sum(calls.values())} calls")
    print("\n" + "\n".join(totals))


if __name__ == "__main__":
    main()
