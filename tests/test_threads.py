"""A step in a thread has ended when its caller goes on, however often it is cancelled."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tailerd.threads import in_thread


@pytest.mark.attack
@pytest.mark.parametrize("cancellations", [1, 2, 5])
async def test_a_cancelled_step_has_ended_before_its_caller_continues(cancellations: int) -> None:
    begun, may_end = threading.Event(), threading.Event()
    ended: list[str] = []

    def step() -> None:
        begun.set()
        may_end.wait(10)
        ended.append("step")

    async def caller() -> None:
        try:
            await in_thread(step)
        finally:
            ended.append("caller")

    task = asyncio.create_task(caller())
    await asyncio.to_thread(begun.wait, 10)
    for _ in range(cancellations):
        task.cancel()
        await asyncio.sleep(0.01)
    assert not ended
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["step", "caller"]


async def test_a_step_returns_its_result_or_raises_its_error() -> None:
    assert await in_thread(int, "12", base=8) == 10
    with pytest.raises(ValueError, match="invalid"):
        await in_thread(int, "x")
