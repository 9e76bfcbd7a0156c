"""`python -m tests.kafka [FOLDER]`: a broker to try things with, until Ctrl-C."""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tests.kafka.broker import Broker


def main() -> None:
    """Run a broker; its data goes with it unless a folder is given."""
    with tempfile.TemporaryDirectory(prefix="tailerd-kafka-") as temporary:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(temporary)
        broker = Broker(folder.resolve())
        broker.start()
        print(f"PLAINTEXT {broker.plain}", flush=True)
        print(f"SASL_PLAINTEXT, SCRAM-SHA-256, tailerd:tailerd-secret {broker.sasl}", flush=True)
        print(f"SSL {broker.tls}, authority {broker.certificates.authority}", flush=True)
        with suppress(KeyboardInterrupt):
            while broker.is_running:
                time.sleep(0.2)
        broker.stop()


if __name__ == "__main__":
    main()
