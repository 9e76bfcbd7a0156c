"""What tasks and the driver tell each other while a job runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import pytest

from tailerd.spark.task_reports import ReportServer, TaskLink, TaskReporter
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.attack


@dataclass
class Receiver:
    """What the driver was told."""

    allowed: set[int] = field(default_factory=set)
    reported: list[tuple[object, ...]] = field(default_factory=list)

    def may_start(self, link: TaskLink, index: int) -> bool:
        self.reported.append(("start", link.job, link.task_id, index))
        return index in self.allowed

    def receive(self, link: TaskLink, index: int, result: bytes) -> None:
        self.reported.append(("result", index, link.item == index, result))

    def end(self, link: TaskLink) -> None:
        self.reported.append(("end", link.item))


async def test_a_task_starts_what_it_may_and_its_end_is_seen_however_it_ends() -> None:
    receiver = Receiver(allowed={0, 2})
    server = ReportServer(receiver)
    address = await server.open("127.0.0.1", 7)

    def task() -> None:
        reporter = TaskReporter(address, 41)
        for index in range(3):
            if reporter.may_start(index) and index == 0:
                assert reporter.send_result(index, b"done")
        reporter.close()

    await asyncio.to_thread(task)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while ("end", 2) not in receiver.reported:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.001)
    assert receiver.reported == [
        ("start", 7, 41, 0),
        ("result", 0, True, b"done"),
        ("start", 7, 41, 1),
        ("start", 7, 41, 2),
        ("end", 2),
    ]
    server.close()


async def test_a_task_whose_driver_is_gone_starts_nothing() -> None:
    server = ReportServer(Receiver(allowed={0}))
    address = await server.open("127.0.0.1", 0)
    stranger = replace(address, token=bytes(len(address.token)))
    reporter = await asyncio.to_thread(TaskReporter, stranger, 1)
    assert not await asyncio.to_thread(reporter.may_start, 0)
    reporter.close()
    server.close()
    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(TaskReporter, address, 1)
