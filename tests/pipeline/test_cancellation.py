"""A pipeline that is cancelled ends, whatever else happens at that moment."""

from __future__ import annotations

import asyncio

import pytest

from tailerd.errors import SinkError
from tests.doubles.fake_source import FakeTable
from tests.pipeline.collecting_sink import CollectingSink
from tests.pipeline.runs import Run
from tests.waiting import PATIENCE_SECONDS


async def test_a_delivery_that_fails_while_the_pipeline_is_cancelled_does_not_hide_that() -> None:
    running: list[asyncio.Task[None]] = []

    def fails(location: str) -> None:
        if location == "in write":
            running[0].cancel()
            raise SinkError("It failed at the same moment.")

    table = FakeTable()
    table.commit([1])
    run = Run(table=table, sink=CollectingSink(fails), is_once=False)
    running.append(asyncio.create_task(run.pipeline().run()))
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(PATIENCE_SECONDS):
            await running[0]
    assert running[0].cancelled()
