"""One loop for a process, whoever asks."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from tailerd.storage.io_thread import io_thread
from tests.waiting import PATIENCE_SECONDS


async def _double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def test_threads_without_a_loop_and_loops_one_after_another_share_it() -> None:
    assert io_thread().call(_double(1)) == 2
    assert asyncio.run(io_thread().run(_double(2))) == 4
    assert asyncio.run(io_thread().run(_double(3))) == 6
    assert io_thread() is io_thread()


async def test_work_is_cancelled_with_who_asked_for_it() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def work() -> None:
        loop.call_soon_threadsafe(begun.set)
        try:
            await asyncio.sleep(60)
        finally:
            loop.call_soon_threadsafe(ended.set)

    requested = asyncio.create_task(io_thread().run(work()))
    await begun.wait()
    requested.cancel()
    with pytest.raises(asyncio.CancelledError):
        await requested
    async with asyncio.timeout(PATIENCE_SECONDS):
        await ended.wait()


def test_a_forked_process_has_a_loop_of_its_own_and_ends_at_once() -> None:
    program = """
import asyncio, os, sys, time
from tailerd.storage.io_thread import io_thread
async def one(): return 1
first = io_thread()
assert first.call(one()) == 1
child = os.fork()
if child == 0:
    assert io_thread() is not first and io_thread().call(one()) == 1
    sys.exit(0)
began = time.monotonic()
_, status = os.waitpid(child, 0)
assert status == 0, status
assert time.monotonic() - began < 1.9
assert first.call(one()) == 1
"""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert ran.returncode == 0, ran.stderr
