"""`python -m tests.postgres [--port PORT]`: a PostgreSQL to try things with."""

from __future__ import annotations

import argparse
import signal
import sys
import time

from tests.postgres.server import USER, PostgresServer


def main() -> None:
    """Run a server on the loopback interface until Ctrl-C or SIGTERM; its data goes with it."""
    parser = argparse.ArgumentParser(prog="python -m tests.postgres", description=main.__doc__)
    parser.add_argument("--port", type=int, default=5432, help="of the listener (5432)")
    port = parser.parse_args().port
    # A shell starts what it puts into the background with Ctrl-C ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    server = PostgresServer(listen_addresses="127.0.0.1", port=str(port))
    try:
        server.start()
        print(f"postgresql://{USER}@127.0.0.1:{port}/postgres", flush=True)
        while True:
            time.sleep(0.2)
    finally:
        server.remove()


if __name__ == "__main__":
    main()
