"""Both phases of a shutdown, who asks for them, and what ends a process that hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

import pytest

from tailerd.daemon import shutdown as module
from tailerd.daemon.shutdown import Shutdown
from tailerd.telemetry import Telemetry, events
from tests.waiting import PATIENCE_SECONDS


def shutdown_of(
    reported: list[events.Event] | None = None,
    *,
    timeout: float = 60,
    stuck: threading.Event | None = None,
) -> Shutdown:
    heard: list[events.Event] = [] if reported is None else reported
    return Shutdown(
        Telemetry([heard.append]),
        timeout=lambda: timeout,
        has_spark=lambda: False,
        on_stuck=None if stuck is None else stuck.set,
        is_own_process=False,
    )


async def test_the_second_request_ends_the_patience_of_the_first() -> None:
    shutdown = shutdown_of()
    assert not shutdown.is_begun
    shutdown.begin()
    await asyncio.wait_for(shutdown.wait(), PATIENCE_SECONDS)
    assert shutdown.is_begun
    waiting = asyncio.create_task(shutdown.patience(600))
    await asyncio.sleep(0)
    assert not waiting.done()
    shutdown.begin()
    await asyncio.wait_for(waiting, PATIENCE_SECONDS)


async def test_patience_ends_by_itself() -> None:
    shutdown = shutdown_of()
    shutdown.begin()
    await asyncio.wait_for(shutdown.patience(0.01), PATIENCE_SECONDS)


async def test_a_signal_begins_it_and_the_first_is_remembered() -> None:
    reported: list[events.Event] = []
    shutdown = shutdown_of(reported)
    with shutdown.signals(None):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(shutdown.wait(), PATIENCE_SECONDS)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.wait_for(shutdown.patience(600), PATIENCE_SECONDS)
    assert shutdown.interrupted_by is signal.SIGTERM
    reasons = [each.reason for each in reported if isinstance(each, events.ShutdownRequested)]
    assert reasons == ["SIGTERM", "SIGINT"]


async def test_a_hangup_is_passed_on_and_begins_nothing() -> None:
    heard = asyncio.Event()
    shutdown = shutdown_of()
    with shutdown.signals(heard.set):
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.wait_for(heard.wait(), PATIENCE_SECONDS)
    assert not shutdown.is_begun


async def test_handlers_of_before_are_back_afterwards() -> None:
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    with shutdown_of().signals(lambda: None):
        assert signal.getsignal(signal.SIGTERM) is not before[0]
    after = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    assert after == before


async def test_a_loop_that_hangs_after_a_signal_is_ended_by_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CANCEL_SECONDS", 0.05)
    stuck = threading.Event()
    shutdown = shutdown_of(timeout=0.05, stuck=stuck)
    with shutdown.signals(None):
        os.kill(os.getpid(), signal.SIGTERM)
        # Not a wait of the loop: it stands still, as in a call that never returns.
        end = time.monotonic() + 5
        while not stuck.is_set() and time.monotonic() < end:
            time.sleep(0.01)  # noqa: ASYNC251 - the loop is to hang
    assert stuck.is_set()


async def test_a_shutdown_that_ends_in_time_ends_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CANCEL_SECONDS", 0.2)
    stuck = threading.Event()
    shutdown = shutdown_of(timeout=0.2, stuck=stuck)
    with shutdown.signals(None):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(shutdown.wait(), PATIENCE_SECONDS)
    assert not await asyncio.to_thread(stuck.wait, 0.5)


async def test_at_once_is_both_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LEAVE_SECONDS", 0.05)
    stuck = threading.Event()
    shutdown = shutdown_of(stuck=stuck)
    shutdown.begin_at_once()
    await asyncio.wait_for(shutdown.patience(600), PATIENCE_SECONDS)
    assert await asyncio.to_thread(stuck.wait, 5)
