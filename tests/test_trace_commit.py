"""A commit of one row stays on a short path through the code."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

MAX_FILES = {"tail": 65, "kafka": 115, "spark": 95}
MAX_CALLS = 1420


@pytest.mark.parametrize(
    "way",
    [
        "tail",
        pytest.param("kafka", marks=pytest.mark.kafka),
        pytest.param("spark", marks=[pytest.mark.kafka, pytest.mark.spark, pytest.mark.full]),
    ],
)
def test_a_commit_of_one_row_crosses_few_files(way: str, request: pytest.FixtureRequest) -> None:
    if way != "tail":
        request.getfixturevalue("kafka_jars")
    words = [sys.executable, "-m", "tests.trace_commit", way]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    [(files, calls)] = re.findall(rf"^{way}: (\d+) files, (\d+) calls$", done.stdout, re.M)
    assert int(files) <= MAX_FILES[way], done.stdout
    assert int(calls) <= MAX_CALLS, done.stdout
