"""Files that others merge and delete while an array is opened and read."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
import tiledb
from tiledb.query_condition import QueryCondition

from tailerd.changefeed.offset import Version
from tailerd.errors import LogCleanedUpError, UnreadableDataFileError
from tailerd.formats.tiledb.library import open_array
from tailerd.storage.stores import Stores
from tests.formats.tiledb import arrays
from tests.formats.tiledb.reading import EVERYTHING, changes
from tests.formats.tiledb.reading import opened as opened_source

GONE = "IO Error: Cannot get file size of 'a.meta'; No such file or directory"


@pytest.fixture
def location(tmp_path: Path) -> str:
    arrays.create_named(tmp_path / "array")
    arrays.write_named(tmp_path / "array", 1000, [1, 2])
    return str(tmp_path / "array")


def failing(monkeypatch: pytest.MonkeyPatch, text: str, times: int) -> list[str]:
    """Let the library's next calls of `open` fail; return where the calls are noted."""
    calls: list[str] = []
    real = tiledb.open

    def fails(uri: str, **settings: Any) -> Any:
        calls.append(uri)
        if len(calls) <= times:
            raise tiledb.TileDBError(text)
        return real(uri, **settings)

    monkeypatch.setattr(tiledb, "open", fails)
    return calls


def test_an_array_is_opened_again_where_a_file_was_merged_away(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = failing(monkeypatch, GONE, times=4)
    with open_array(location, Stores(), 0, 2000) as array:
        assert array.nonempty_domain() is not None
    assert len(calls) == 5


def test_what_stays_away_is_looked_for_again_later(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = failing(monkeypatch, GONE, times=100)
    with pytest.raises(LogCleanedUpError) as found, open_array(location, Stores(), 0, 2000):
        pass
    assert found.value.retryable
    assert len(calls) == 5


def test_what_is_broken_stays_so(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = failing(monkeypatch, "Checksum mismatch for filter", times=100)
    with pytest.raises(UnreadableDataFileError), open_array(location, Stores(), 0, 2000):
        pass
    assert len(calls) == 1


def test_a_step_is_read_again_where_a_file_was_merged_away_between_two_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays.create(tmp_path / "array")
    arrays.write(tmp_path / "array", 1000, [(1,), (2,)], arrays.values(2, random.Random(0)))
    arrays.delete(tmp_path / "array", 1010, "v >= 0")
    expected = asyncio.run(step(tmp_path / "array"))
    real, calls = QueryCondition.init_query_condition, []

    def fails(self: Any, *arguments: Any) -> None:
        calls.append(self)
        if len(calls) <= 2:
            raise tiledb.TileDBError(GONE)
        real(self, *arguments)

    # Unlike opening an array, this has no second attempt of its own.
    monkeypatch.setattr(QueryCondition, "init_query_condition", fails)
    assert asyncio.run(step(tmp_path / "array")) == expected
    assert len(calls) > 2


async def step(path: Path) -> list[tuple[str, object]]:
    source = await opened_source(path)
    start = await source.offset_at(Version(1001))
    return list(await changes(source, start, await source.latest_offset(start, EVERYTHING)))
