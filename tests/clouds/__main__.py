"""`python -m tests.clouds azure|google [--port PORT]`: a server and a table to try things with."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.clouds.servers import Azurite, CloudServer, FakeGcs, prepare
from tests.tables.builder import TableBuilder

BUCKET = "lake"
KEY = Path("quickstart/gcs-key.json")
_PORTS = {"azure": 10000, "google": 4443}


def main() -> None:
    """Run an emulator until Ctrl-C or SIGTERM, with a table that changes every two seconds."""
    parser = argparse.ArgumentParser(prog="python -m tests.clouds", description=main.__doc__)
    parser.add_argument("cloud", choices=sorted(_PORTS))
    parser.add_argument("--port", type=int, help="of the server (10000 and 4443)")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between commits (2)")
    arguments = parser.parse_args()
    # A shell starts what it puts into the background with Ctrl-C ignored.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: sys.exit(0))
    prepare()
    port = arguments.port or _PORTS[arguments.cloud]
    with tempfile.TemporaryDirectory(prefix="tailerd-clouds-") as temporary:
        kind = Azurite if arguments.cloud == "azure" else FakeGcs
        server = kind(Path(temporary), port)
        server.start()
        try:
            _run(server, Path(temporary) / "table", arguments.every)
        finally:
            server.stop()


def _run(server: CloudServer, folder: Path, every_seconds: float) -> None:
    server.new_bucket(BUCKET)
    key = server.account().options().get("google_service_account")
    if key is not None:
        KEY.parent.mkdir(exist_ok=True)
        shutil.copyfile(key, KEY)
    table = TableBuilder(folder, start_ms=None)
    store, known = server.store(), set[Path]()
    print(f"Table {server.scheme}://{BUCKET}/orders at {server.endpoint}", flush=True)
    for number in itertools.count():
        table.append([{"id": number, "name": f"order {number}"}])
        found = {path for path in folder.rglob("*") if path.is_file()} - known
        for path in sorted(found, key=lambda path: ("_delta_log" in path.parts, path)):
            target = f"{BUCKET}/orders/{path.relative_to(folder).as_posix()}"
            asyncio.run(store.put(target, path.read_bytes()))
        known |= found
        time.sleep(every_seconds)


if __name__ == "__main__":
    main()
