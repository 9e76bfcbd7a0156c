"""Two threads read one array: the library's memory must survive it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.formats.tiledb.test_kills import ChangingArray

pytestmark = [pytest.mark.slow, pytest.mark.full]

_READ = """
import sys, threading, time
import tailerd

until = time.monotonic() + 20

def read():
    while time.monotonic() < until:
        for _ in tailerd.changes(sys.argv[1], since=sys.argv[2]):
            pass
    print("read")

threads = [threading.Thread(target=read) for _ in range(2)]
for each in threads:
    each.start()
for each in threads:
    each.join()
"""


def test_threads_that_read_an_array_at_a_time_do_not_end_the_process(tmp_path: Path) -> None:
    """Without a lock around open arrays it died of a corrupt heap, mostly within seconds."""
    table = ChangingArray(tmp_path)
    first = table.head_ms
    for _ in range(120):
        table.change()
    words = [sys.executable, "-c", _READ, table.location, str(first)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout.split()) == (0, ["read", "read"]), done.stderr[-2000:]
