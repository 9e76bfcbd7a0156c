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
import uuid
from pathlib import Path

from tests.clouds.servers import Azurite, CloudServer, FakeGcs, prepare
from tests.kafka.proxy import Proxy
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
    with tempfile.TemporaryDirectory(prefix="tailerd-clouds-") as temporary:
        kind = Azurite if arguments.cloud == "azure" else FakeGcs
        server = kind(Path(temporary))
        server.start()
        try:
            _run(server, Path(temporary) / "table", arguments)
        finally:
            server.stop()


def _run(server: CloudServer, folder: Path, arguments: argparse.Namespace) -> None:
    server.new_bucket(BUCKET)
    key = server.account().options().get("google_service_account")
    if key is not None:
        KEY.parent.mkdir(exist_ok=True)
        shutil.copyfile(key, KEY)
    table = TableBuilder(folder, table_id=str(uuid.uuid4()), start_ms=None)
    known = _append(server, table, 0, set())
    port = arguments.port or _PORTS[arguments.cloud]
    # Who asks at this port finds the table there.
    with Proxy(port, server.port):
        print(f"Table {server.scheme}://{BUCKET}/orders at http://127.0.0.1:{port}", flush=True)
        for number in itertools.count(1):
            time.sleep(arguments.every)
            known = _append(server, table, number, known)


def _append(server: CloudServer, table: TableBuilder, number: int, known: set[Path]) -> set[Path]:
    """Commit a row, and put the files that are not in the bucket yet."""
    table.append([{"id": number, "name": f"order {number}"}])
    found = {path for path in table.folder.rglob("*") if path.is_file()}
    for path in sorted(found - known, key=lambda path: ("_delta_log" in path.parts, path)):
        target = f"{BUCKET}/orders/{path.relative_to(table.folder).as_posix()}"
        asyncio.run(server.store().put(target, path.read_bytes()))
    return found


if __name__ == "__main__":
    main()
