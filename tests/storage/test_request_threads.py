"""Requests side by side in threads: bounded, and never in the way of the end of a process."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from functools import partial

import pytest

from tailerd.storage.request_threads import RequestThreads


def test_no_more_requests_are_in_flight_than_allowed_and_all_are_done() -> None:
    threads, running, most = RequestThreads(3), 0, 0
    counting = threading.Lock()

    def request(number: int) -> int:
        nonlocal running, most
        with counting:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with counting:
            running -= 1
        return number

    futures = [threads.submit(partial(request, number)) for number in range(20)]
    assert [each.result(5) for each in futures] == list(range(20))
    assert most == 3


def test_an_error_is_the_callers_and_a_cancelled_request_is_not_sent() -> None:
    threads, held = RequestThreads(1), threading.Event()
    sent: list[int] = []
    first = threads.submit(lambda: held.wait(5))
    second = threads.submit(lambda: sent.append(1))
    third = threads.submit(lambda: 1 // 0)
    assert second.cancel()
    held.set()
    assert first.result(5)
    with pytest.raises(ZeroDivisionError):
        third.result(5)
    assert sent == []


@pytest.mark.parametrize(("seconds", "shortest", "longest"), [(0.5, 0.4, 2), (60, 1.9, 10)])
def test_a_process_waits_for_a_request_but_not_for_one_that_hangs(
    seconds: float, shortest: float, longest: float
) -> None:
    program = f"""
import time
from tailerd.storage.request_threads import RequestThreads
RequestThreads(2).submit(lambda: time.sleep({seconds}))
print("begun", flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        began = time.monotonic()
        assert process.wait(30) == 0
        assert shortest < time.monotonic() - began < longest
