"""Kafka's jars are fetched once, by one process at a time, and never half."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kafka import jars
from tests.kafka.jars import VERSION, KafkaUnavailableError

ROOT = Path(__file__).resolve().parents[2]
# Answers `-version` like Java 17, and else does what Ivy would: slowly.
_JAVA = f"""#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "17.0.1"' >&2; exit 0; fi
echo run >> "$RUNS"
mkdir lib
sleep 0.3
if [ -n "$REFUSED" ]; then echo 'UNRESOLVED DEPENDENCIES'; exit 1; fi
touch lib/kafka_2.13-{VERSION}.jar
"""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java of our own on the path; the file has a line for each of its runs as Ivy."""
    script = tmp_path / "bin/java"
    script.parent.mkdir()
    script.write_text(_JAVA)
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent), prepend=":")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("TAILERD_KAFKA", str(tmp_path / "kafka"))
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.mark.full
def test_three_processes_at_once_fetch_once(runs: Path) -> None:
    command = [sys.executable, "-m", "tests.kafka.jars"]
    started = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) for _ in range(3)]
    assert [process.wait(60) for process in started] == [0, 0, 0]
    assert runs.read_text() == "run\n"


def test_what_is_there_is_not_fetched_again(runs: Path) -> None:
    assert jars.kafka_jars() == jars.kafka_jars()
    assert runs.read_text() == "run\n"


def test_a_failed_fetch_leaves_no_folder_and_says_what_ivy_said(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFUSED", "1")
    with pytest.raises(KafkaUnavailableError, match=r"Central reachable.*UNRESOLVED"):
        jars.kafka_jars()
    assert [file.name for file in (runs.parent / "kafka").iterdir()] == [".lock"]
    monkeypatch.delenv("REFUSED")
    assert jars.kafka_jars().is_dir()
