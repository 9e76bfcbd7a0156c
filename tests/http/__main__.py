"""`python -m tests.http [--port PORT]`: an endpoint to try the sink `http` with."""

from __future__ import annotations

import argparse
import signal
import sys
import threading

from tests.http.receiver import ACCEPT, Request, running_receiver


def main() -> None:
    """Accept events and print each on a line, until Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m tests.http", description=main.__doc__)
    parser.add_argument("--port", type=int, default=8088, help="port of the endpoint (8088)")
    arguments = parser.parse_args()
    # A shell starts what it puts into the background with Ctrl-C ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    with running_receiver(print_events, port=arguments.port) as receiver:
        print(f"POST {receiver.url}", flush=True)
        threading.Event().wait()


def print_events(request: Request) -> int:
    if request.method == "POST":
        for event in request.events:
            print(event.get("id", ""), event.get("data", event), flush=True)
    return ACCEPT


if __name__ == "__main__":
    main()
