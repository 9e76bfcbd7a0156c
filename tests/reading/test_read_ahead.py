"""What is read in another thread comes as it is, and ends where nobody wants it."""

from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

from tailerd.reading.read_ahead import read_ahead


class Parts:
    """Numbers from 0 on, and what became of whoever gives them."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.count = count
        self.error = error
        self.given = 0
        self.is_closed = False
        self.threads: set[str] = set()

    def __call__(self) -> Generator[int, None, None]:
        try:
            for number in range(self.count):
                self.given += 1
                self.threads.add(threading.current_thread().name)
                yield number
            if self.error is not None:
                raise self.error
        finally:
            self.is_closed = True


@pytest.mark.parametrize("count", [0, 1, 5])
def test_all_parts_come_in_order(count: int) -> None:
    parts = Parts(count)
    assert list(read_ahead(parts(), int.bit_length)) == list(range(count))
    assert threading.main_thread().name not in parts.threads
    assert parts.is_closed


def test_an_error_comes_behind_the_parts_before_it() -> None:
    parts = Parts(2, OSError("torn"))
    ahead = read_ahead(parts(), int.bit_length)
    assert [next(ahead), next(ahead)] == [0, 1]
    with pytest.raises(OSError, match="torn"):
        next(ahead)
    assert parts.is_closed


def test_no_more_than_one_part_is_read_ahead_and_none_once_it_is_closed() -> None:
    parts = Parts(100)
    ahead = read_ahead(parts(), int.bit_length)
    assert next(ahead) == 0
    ahead.close()
    assert parts.given <= 2
    assert parts.is_closed
    assert not [each for each in threading.enumerate() if each.name.startswith("read-ahead")]
