"""`kill -9` in the middle of deliveries: no event is lost, and repeated ones have the same ids."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.http.receiver import ACCEPT, Receiver, Request, running_receiver
from tests.integration.daemon.running import daemon, write_config
from tests.integration.faults.test_kills import BusyTable
from tests.tables.builder import TableBuilder
from tests.waiting import eventually

KILLS = 4
BAD = 17
"""An id whose events are rejected."""


def answer_slowly(request: Request) -> int:
    time.sleep(0.02)
    return 422 if any(event["data"]["id"] == BAD for event in request.events) else ACCEPT


def count_repeated(receiver: Receiver) -> int:
    """Check that equal ids mean equal events and requests; return how many events came again."""
    events: dict[str, object] = {}
    bodies: dict[str, bytes] = {}
    for request in receiver.posts:
        key = request.headers["Idempotency-Key"]
        assert bodies.setdefault(key, request.body) == request.body
    for event in receiver.events:
        assert events.setdefault(event["id"], event) == event
    return len(receiver.events) - len(events)


@pytest.mark.full
def test_a_daemon_that_is_killed_again_and_again_loses_nothing(tmp_path: Path) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    chances = random.Random(seed)
    table = BusyTable(TableBuilder(tmp_path / "table", start_ms=None))
    table.builder.create()
    for _ in range(20):
        table.commit(3)
    with running_receiver(answer_slowly) as receiver:
        sink = {"kind": "http", "url": receiver.url, "key": ["id"], "batch": {"max_events": 2}}
        path = str(tmp_path / "table")
        orders = {"path": path, "from": "snapshot", "max_files_per_batch": 40, "sink": sink}
        config = write_config(tmp_path, orders=orders)
        for _ in range(KILLS):
            end = len(receiver.posts) + chances.randrange(3, 15)
            with daemon(config) as process:
                eventually(lambda: len(receiver.posts) >= end)  # noqa: B023 - called here
                process.kill()
                process.wait(10)
            for _ in range(5):
                table.commit(9)
        expected = set(table.version_of) - {BAD}
        with daemon(config):
            eventually(lambda: {e["data"]["id"] for e in receiver.events} == expected)
        repeated = count_repeated(receiver)
        print(f"{len(receiver.events)} events, {repeated} of them again")
        assert repeated > 0, "no kill met a delivery"
        letters = (tmp_path / "state/dead_letters/orders.jsonl").read_text()
        assert f'"id":{BAD},' in letters
