"""Which files are under way while one is read."""

from __future__ import annotations

import io
from pathlib import Path
from typing import BinaryIO

import pytest

from tailerd.errors import FileMissingError
from tailerd.reading.files_ahead import AT_ONCE, FilesAhead
from tailerd.storage.base import PendingInput
from tailerd.storage.stores import Stores


class Pending:
    def __init__(self, url: str, log: list[str]) -> None:
        self._url = url
        self._log = log
        log.append(f"begin {url}")

    def open(self) -> BinaryIO:
        self._log.append(f"open {self._url}")
        return io.BytesIO(self._url.encode())

    def cancel(self) -> None:
        self._log.append(f"cancel {self._url}")


@pytest.fixture
def log() -> list[str]:
    """What a store was told whose files take their time."""
    return []


class SlowStores(Stores):
    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self._log = log

    def begin_data_file(self, url: str) -> PendingInput:
        return Pending(url, self._log)


def test_the_next_files_are_begun_before_the_first_is_waited_for(log: list[str]) -> None:
    urls = [f"u{number}" for number in range(AT_ONCE + 3)]
    with FilesAhead(urls, SlowStores(log)) as files:
        assert not log
        assert files.open("u0").read() == b"u0"
        assert log == [*(f"begin {url}" for url in urls[:AT_ONCE]), "open u0"]
        files.open("u1")
        assert log[-2:] == [f"begin u{AT_ONCE}", "open u1"]
        for url in urls[2:]:
            assert files.open(url).read() == url.encode()
    assert [line for line in log if line.startswith("cancel")] == []
    assert sorted(line[6:] for line in log if line.startswith("begin")) == sorted(urls)


def test_a_file_named_twice_is_begun_twice(log: list[str]) -> None:
    with FilesAhead(["a", "a", "b"], SlowStores(log)) as files:
        for url in ("a", "a", "b"):
            files.open(url)
    assert log == ["begin a", "begin a", "begin b", "open a", "open a", "open b"]


def test_what_is_passed_over_or_left_is_given_up(log: list[str]) -> None:
    with FilesAhead(["a", "b", "c", "d"], SlowStores(log)) as files:
        files.open("b")
        assert log[4:] == ["cancel a", "open b"]
    assert log[6:] == ["cancel c", "cancel d"]


def test_files_that_open_at_once_are_opened_when_they_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"there")
    with FilesAhead([str(tmp_path / name) for name in ("a", "b")], Stores()) as files:
        with files.open(str(tmp_path / "a")) as source:
            assert source.read() == b"there"
        (tmp_path / "b").write_bytes(b"later")
        with files.open(str(tmp_path / "b")) as source:
            assert source.read() == b"later"
        with pytest.raises(FileMissingError):
            files.open(str(tmp_path / "c"))
