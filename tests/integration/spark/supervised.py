"""Runs a daemon in its own process: `python -m ... CONFIG.json`, every event on stderr.

Spark has one session per process, and the daemon ends the one it starts. SIGTERM stops it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from pathlib import Path

from tailerd.config import Config
from tailerd.daemon.daemon import Daemon
from tailerd.errors import TailerdError
from tailerd.telemetry.events import Event


def _show(event: Event) -> None:
    line = {"event": type(event).__name__, **dataclasses.asdict(event)}
    # In one piece: events come from several threads.
    sys.stderr.write(f"{json.dumps(line)}\n")
    sys.stderr.flush()


async def _main(config: Config, once: bool) -> None:
    """Run all tables until SIGTERM, or with `once` to their heads; raise what ended the first."""
    await Daemon(config, is_once=once, handlers=[_show]).run()


if __name__ == "__main__":
    settings = Config(**json.loads(Path(sys.argv[1]).read_text()))
    try:
        asyncio.run(_main(settings, once="--once" in sys.argv))
    except TailerdError as error:
        print(json.dumps({"event": "raised", "error_code": error.code}), file=sys.stderr)
        sys.exit(error.exit_status)
