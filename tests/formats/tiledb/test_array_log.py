"""Listings of commits while others merge commit files and delete them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import tiledb

from tailerd.errors import LogChangedError
from tailerd.formats.tiledb.array_log import ArrayLog
from tailerd.formats.tiledb.protocol.timeline import find_vanished
from tailerd.storage.base import FileMeta
from tailerd.storage.local import LocalStore
from tests.formats.tiledb import arrays

NOW_MS = 10_000


class RacingStore(LocalStore):
    """Merges commit files when one is read, or after each listing of them."""

    def __init__(self, root: Path, *, in_listings: int = 0) -> None:
        super().__init__()
        self.root, self.in_listings, self.is_done = root, in_listings, False
        self.time_ms = 100

    async def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        if path.endswith(".con") and not self.is_done:
            self.is_done = True
            merge(self.root)
        return await super().get(path, start, length)

    async def list_from(self, folder: str, start_after: str = "") -> AsyncIterator[FileMeta]:
        async for file in super().list_from(folder, start_after):
            yield file
        if folder.endswith("__commits") and self.in_listings:
            self.in_listings -= 1
            for _ in range(2):
                self.time_ms += 1
                write(self.root, self.time_ms)
            merge(self.root)


def write(root: Path, time_ms: int) -> None:
    arrays.write(root, time_ms, [(time_ms % 40,)], arrays.values(1, random.Random(1)))


def merge(root: Path) -> None:
    config = tiledb.Config({"sm.consolidation.mode": "commits", "sm.vacuum.mode": "commits"})
    # Fails if all is merged already.
    with suppress(tiledb.TileDBError):
        tiledb.consolidate(str(root), config=config)
    tiledb.vacuum(str(root), config=config)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "array"
    arrays.create(root)
    for time_ms in (1, 2, 3):
        write(root, time_ms)
    merge(root)
    write(root, 4)
    write(root, 5)
    return root


@pytest.mark.attack
@pytest.mark.parametrize("in_listings", [0, 1, 3])
@pytest.mark.parametrize("has_looked", [True, False])
async def test_a_poll_that_races_with_merging_sees_every_commit(
    root: Path, in_listings: int, has_looked: bool
) -> None:
    store = RacingStore(root)
    store.is_done = has_looked
    log = ArrayLog(store, str(root), "it")
    if has_looked:
        await log.refresh(NOW_MS)
        write(root, 6)
    known = (await ArrayLog(LocalStore(), str(root), "it").refresh(NOW_MS)).commits.fragments
    store.is_done, store.in_listings = False, in_listings
    assert find_vanished(known, await log.refresh(NOW_MS)) == ()


@pytest.mark.attack
async def test_commits_that_are_merged_in_every_listing_are_listed_again_later(root: Path) -> None:
    with pytest.raises(LogChangedError) as error:
        await ArrayLog(RacingStore(root, in_listings=99), str(root), "it").refresh(NOW_MS)
    assert error.value.retryable


@pytest.mark.attack
async def test_commits_that_somebody_deletes_are_gone(root: Path) -> None:
    log = ArrayLog(LocalStore(), str(root), "it")
    before = await log.refresh(NOW_MS)
    [path] = (root / "__commits").glob("__5_5_*")
    path.unlink()
    after = await log.refresh(NOW_MS)
    assert len(after.commits.fragments) == len(before.commits.fragments) - 1
