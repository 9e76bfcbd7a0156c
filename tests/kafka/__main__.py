"""`python -m tests.kafka [--port PORT] [--folder FOLDER]`: a broker to try things with."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.kafka.broker import Broker, Ports
from tests.kafka.ports import require_free_port


def main() -> None:
    """Run a broker until Ctrl-C or SIGTERM; its data goes with it unless a folder is given."""
    parser = argparse.ArgumentParser(prog="python -m tests.kafka", description=main.__doc__)
    parser.add_argument("--port", type=int, default=9092, help="of the plain listener (9092)")
    parser.add_argument("--folder", type=Path, help="where its data stays")
    arguments = parser.parse_args()
    require_free_port(arguments.port)
    # A shell starts what it puts into the background with Ctrl-C ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="tailerd-kafka-") as temporary:
        folder = arguments.folder or Path(temporary)
        broker = Broker(folder.resolve(), ports=Ports(plain=arguments.port))
        try:
            _run(broker)
        finally:
            broker.stop()


def _run(broker: Broker) -> None:
    broker.start()
    print(f"PLAINTEXT {broker.plain}", flush=True)
    print(f"SASL_PLAINTEXT, SCRAM-SHA-256, tailerd:tailerd-secret {broker.sasl}", flush=True)
    print(f"SSL {broker.tls}, authority {broker.certificates.authority}", flush=True)
    while broker.is_running:
        time.sleep(0.2)


if __name__ == "__main__":
    main()
