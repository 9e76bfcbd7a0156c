"""What Spark's Java process writes: the noise is left out, all else is passed on unchanged."""

from __future__ import annotations

import os
import tempfile
import threading

import pytest

from tailerd.spark.java_process import pass_on

NOISE = (
    b"WARNING: Using incubator modules: jdk.incubator.vector\n"
    b"Picked up JAVA_TOOL_OPTIONS: -Xmx1g\n"
    b"NOTE: Picked up JDK_JAVA_OPTIONS: -Xmx1g\n"
)


def passed(*pieces: bytes) -> bytes:
    """What comes out when Java writes these pieces, one after the other, and ends."""
    java_reads, java_writes = os.pipe()
    with tempfile.TemporaryFile() as out:
        copying = threading.Thread(target=pass_on, args=(java_reads, out.fileno()))
        copying.start()
        for piece in pieces:
            os.write(java_writes, piece)
        os.close(java_writes)
        copying.join(10)
        out.seek(0)
        return out.read()


def test_noise_is_left_out_and_errors_stay() -> None:
    error = b"Error: Unable to initialize main class\nCaused by: x\n"
    assert passed(NOISE, error, NOISE) == error


def test_lines_come_whole_however_they_are_written() -> None:
    text = NOISE + b"26/11/23 ERROR Executor: lost\n" + NOISE
    assert passed(*(text[n : n + 7] for n in range(0, len(text), 7))) == (
        b"26/11/23 ERROR Executor: lost\n"
    )


@pytest.mark.parametrize("last", [b"no line end", b""])
def test_what_has_no_line_end_comes_too(last: bytes) -> None:
    assert passed(b"a\n", last) == b"a\n" + last


def test_a_line_without_an_end_is_not_kept_in_memory() -> None:
    line = b"x" * 50_000
    assert passed(line, line, line, b"\n") == line * 3 + b"\n"


def test_when_nobody_reads_on_java_is_not_held_up() -> None:
    (java_reads, java_writes), (out_reads, out_writes) = os.pipe(), os.pipe()
    os.close(out_reads)
    copying = threading.Thread(target=pass_on, args=(java_reads, out_writes))
    copying.start()
    for _ in range(10):
        os.write(java_writes, b"x" * 60_000 + b"\n")
    os.close(java_writes)
    copying.join(10)
    os.close(out_writes)
    assert not copying.is_alive()
