"""Runs supervised queries in a process of its own: `python -m ... CONFIG.json`, events on stderr.

Spark has one session per process, and the supervisor ends the one it starts. SIGTERM stops it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import signal
import sys
from pathlib import Path

from tailerd.config import Config
from tailerd.errors import TailerdError
from tailerd.spark.engine import SparkEngine
from tailerd.spark.supervisor import SparkPipeline
from tailerd.telemetry import Telemetry
from tailerd.telemetry.events import Event


def _show(event: Event) -> None:
    line = {"event": type(event).__name__, **dataclasses.asdict(event)}
    print(json.dumps(line), file=sys.stderr, flush=True)


async def _main(config: Config, once: bool) -> None:
    """Run all tables until SIGTERM, or with `once` to their heads; raise what ended the first."""
    engine = SparkEngine(config, Telemetry([_show]), once=once)
    pipelines = [SparkPipeline(engine, name, table) for name, table in config.tables.items()]

    def stop() -> None:
        for pipeline in pipelines:
            pipeline.stop()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    try:
        async with asyncio.TaskGroup() as group:
            for pipeline in pipelines:
                group.create_task(pipeline.run())
    finally:
        await engine.close()
    for pipeline in pipelines:
        if pipeline.error is not None:
            raise pipeline.error


if __name__ == "__main__":
    settings = Config(**json.loads(Path(sys.argv[1]).read_text()))
    try:
        asyncio.run(_main(settings, once="--once" in sys.argv))
    except TailerdError as error:
        print(json.dumps({"event": "raised", "error_code": error.code}), file=sys.stderr)
        sys.exit(error.exit_status)
