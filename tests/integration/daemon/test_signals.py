"""Signals by the hundred, at any moment of the daemon's life: from the first import to the exit."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.daemon.running import (
    daemon,
    delivered_ids,
    file_table,
    page,
    read_log,
    run_to_end,
    write_config,
)
from tests.tables.builder import TableBuilder
from tests.waiting import eventually

ROWS = 10
DEFAULT_SEEDS = 3


class Busy:
    """A table that somebody writes to, and where its changes go."""

    def __init__(self, folder: Path, commits: int = 3) -> None:
        self.builder = TableBuilder(folder / "t", start_ms=None)
        self.builder.create()
        self.out = folder / "out"
        self.commits = 0
        for _ in range(commits):
            self.commit()
        self.config = write_config(folder, orders=file_table(folder / "t", self.out))

    def commit(self) -> None:
        first = self.commits * ROWS
        self.builder.append([{"id": first + n, "name": "x"} for n in range(ROWS)])
        self.commits += 1

    @property
    def all_ids(self) -> list[int]:
        return list(range(self.commits * ROWS))

    def is_delivered(self) -> bool:
        return self.out.exists() and sorted(delivered_ids(self.out)) == self.all_ids

    def deliver_the_rest(self) -> None:
        """What a run leaves is delivered by the next, nothing twice."""
        done = run_to_end("run", "--config", self.config, "--once")
        assert done.returncode == 0, done.stderr
        assert sorted(delivered_ids(self.out)) == self.all_ids


@contextmanager
def storm(process: subprocess.Popen[str], *numbers: signal.Signals) -> Iterator[None]:
    """Send these signals one after the other, again and again."""
    ends = threading.Event()

    def send() -> None:
        while not ends.wait(0.0003) and process.poll() is None:
            for number in numbers:
                process.send_signal(number)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        ends.set()
        sender.join()


def assert_no_crash(config: Path) -> None:
    log = read_log(config)
    assert "Traceback" not in log
    assert "unexpected error" not in log


@pytest.mark.full
def test_hundreds_of_hangups_under_load_lose_nothing(tmp_path: Path) -> None:
    busy = Busy(tmp_path)
    with daemon(busy.config) as process:
        eventually(busy.is_delivered)
        with storm(process, signal.SIGHUP):
            for _ in range(50):
                busy.commit()
                time.sleep(0.01)
            eventually(busy.is_delivered)
        assert page(busy.config, "/readyz") == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    assert read_log(busy.config).count("Pipeline starting") == 1
    assert "Configuration reloaded" in read_log(busy.config)
    assert_no_crash(busy.config)


@pytest.mark.full
def test_hangups_from_the_start_and_a_stop_among_them_end_with_status_0(
    tmp_path: Path, seed: int
) -> None:
    busy = Busy(tmp_path)
    with daemon(busy.config) as process:
        wait_for_the_command(process)
        with storm(process, signal.SIGHUP):
            eventually(lambda: "http://" in read_log(busy.config))
            busy.commit()
            time.sleep(random.Random(seed).random() * 0.2)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
    assert_no_crash(busy.config)
    busy.deliver_the_rest()


@pytest.mark.full
def test_stops_by_the_hundred_end_with_status_0_and_no_wrong_offset(
    tmp_path: Path, seed: int
) -> None:
    busy = Busy(tmp_path)
    with daemon(busy.config) as process:
        eventually(lambda: "http://" in read_log(busy.config))
        time.sleep(random.Random(seed).random() * 0.1)
        for _ in range(3):
            busy.commit()
        with storm(process, signal.SIGTERM, signal.SIGHUP):
            assert process.wait(20) == 0
    assert_no_crash(busy.config)
    busy.deliver_the_rest()


@pytest.mark.full
def test_a_second_stop_while_a_delivery_is_under_way_ends_at_once_and_repeats_nothing(
    tmp_path: Path,
) -> None:
    busy = Busy(tmp_path, commits=200)
    with daemon(busy.config) as process:
        eventually(lambda: "http://" in read_log(busy.config))
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0
    assert_no_crash(busy.config)
    busy.deliver_the_rest()


@pytest.mark.full
def test_a_hangup_while_the_daemon_starts_is_not_forgotten(tmp_path: Path) -> None:
    busy = Busy(tmp_path)
    with daemon(busy.config) as process:
        wait_for_the_command(process)
        process.send_signal(signal.SIGHUP)
        eventually(lambda: "Configuration reloaded" in read_log(busy.config))
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def wait_for_the_command(process: subprocess.Popen[str]) -> None:
    """Wait until the process runs our code: before that, Python itself ends at a hangup."""
    status = Path(f"/proc/{process.pid}/status")
    hangup = 1 << (signal.SIGHUP - 1)

    def is_caught() -> bool:
        lines = dict(line.split(":\t", 1) for line in status.read_text().splitlines())
        return bool(int(lines["SigCgt"], 16) & hangup)

    eventually(is_caught)
