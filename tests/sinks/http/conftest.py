"""An endpoint for each test, and the words in which tests speak of deliveries to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.telemetry.events import Event
from tests.http.receiver import ACCEPT, Receiver, Reply, Request, Rule, running_receiver
from tests.sinks.http.deliveries import delivery, make_sink, offset


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with running_receiver() as made:
        yield made


async def deliver(
    receiver: Receiver, tmp_path: Path, *batches: ChangeBatch, **fields: Any
) -> list[Event]:
    """Deliver with a sink of its own, whose state is in `tmp_path`; return the reported events."""
    reported: list[Event] = []
    sink = make_sink(receiver.url, tmp_path / "state", reported, **fields)
    try:
        await sink.resume(offset(0))
        assert await sink.write(delivery(0, *batches)) == sum(each.num_rows for each in batches)
    finally:
        await sink.aclose()
    return reported


def answer_first(*first: Reply | int) -> Rule:
    """Answer the first requests so, and accept all later ones."""
    left = list(first)
    return lambda _: left.pop(0) if left else ACCEPT


def reject(*ids: int, status: int = 422, body: bytes = b"") -> Rule:
    """Reject each request that has one of these rows."""

    def answer(request: Request) -> Reply | int:
        found = {event.get("data", event)["id"] for event in request.events}
        return Reply(status, body=body) if found & {*ids} else ACCEPT

    return answer


def row_ids(receiver: Receiver) -> list[int]:
    """The column `id` of the accepted events."""
    return [event.get("data", event)["id"] for event in receiver.events]


def dead_letters(tmp_path: Path) -> list[dict[str, Any]]:
    path = tmp_path / "state/dead_letters/orders.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]
