"""deltalake following a table, in its own process: it would hold up a proxy in ours.

python -m tests.s3.peer URL

Reads one word a line and answers each with a line: `open`, `look` (is there something new?) or
`changes N` (the rows of that version, by its change feed).
"""

from __future__ import annotations

import os
import subprocess
import sys
from types import TracebackType
from typing import Self

from tests.clouds.buckets import BucketServer

_OPTIONS = {"allow_http": "true"}


class Peer:
    """Talks to such a process."""

    def __init__(self, server: BucketServer, location: str, endpoint: str = "") -> None:
        """Start it; it asks at `endpoint` where that is given."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.s3.peer", location],
            env={**os.environ, **server.environment(endpoint)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()

    def ask(self, words: str) -> float:
        """Let it do something; return the number it answers with."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(words + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


def _answer(location: str) -> None:
    import time

    import deltalake
    import pyarrow as pa

    table: deltalake.DeltaTable | None = None
    for line in sys.stdin:
        match line.split():
            case ["open"]:
                table = deltalake.DeltaTable(location, storage_options=_OPTIONS)
                print(table.version(), flush=True)
            case ["look"] if table is not None:
                table.update_incremental()
                print(table.version(), flush=True)
            case ["changes", version] if table is not None:
                number = int(version)
                rows = table.load_cdf(starting_version=number, ending_version=number)
                print(pa.table(rows.read_all()).num_rows, flush=True)
            case ["time", start, end] if table is not None:
                began = time.monotonic()
                found = table.load_cdf(starting_version=int(start), ending_version=int(end))
                assert pa.table(found.read_all()).num_rows
                print(time.monotonic() - began, flush=True)


if __name__ == "__main__":
    _answer(sys.argv[1])
