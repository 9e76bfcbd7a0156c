"""What Spark's Java process writes: the noise is left out, all else is passed on unchanged."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path

import pytest

from tailerd.errors import ConfigError, EngineError, TailerdError
from tailerd.java import java_home_or_version
from tailerd.spark.session import explain_end, pass_on

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


@pytest.mark.attack
@pytest.mark.parametrize(
    ("written", "kind"),
    [
        (b"", EngineError),
        (b"OpenJDK warning: something\n", EngineError),
        (b"Error occurred during initialization of VM\nCould not reserve enough space\n"
         b"Error: Could not create the Java Virtual Machine.\n", EngineError),
        (b'Exception in thread "main" java.io.IOException: No space left on device\n', EngineError),
        (b'Exception in thread "main" java.lang.OutOfMemoryError: native thread\n', EngineError),
        (b"Invalid maximum heap size: -Xmx1q\nError: Could not create the JVM.\n", ConfigError),
        (b"Unrecognized VM option 'Nothing'\n", ConfigError),
        (b'Exception in thread "main" java.lang.IllegalArgumentException: x\n', ConfigError),
    ],
)  # fmt: skip
def test_only_a_refused_option_is_a_configuration_error(
    written: bytes, kind: type[TailerdError]
) -> None:
    error = explain_end(written)
    assert type(error) is kind
    assert error.retryable == (kind is EngineError)


@pytest.mark.attack
@pytest.mark.parametrize(("end", "is_passing"), [("kill -9 $$", True), ("exit 1", False)])
def test_a_java_that_is_killed_as_it_tells_its_version_may_be_tried_again(
    tmp_path: Path, end: str, is_passing: bool
) -> None:
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\n{end}\n")
    java.chmod(0o700)
    found = java_home_or_version({"PATH": str(tmp_path)})
    assert (found.is_usable, found.is_passing) == (False, is_passing)


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
