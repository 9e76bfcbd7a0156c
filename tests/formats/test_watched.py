"""Watchers go by the names that a format's commits have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing

import pytest

from tailerd.formats.detect import presumed_format
from tailerd.storage.table_location import locate_table
from tailerd.watchers.base import Names
from tailerd.watchers.inotify import InotifyWatcher
from tailerd.watchers.local import FileWatcher, LocalWatcher
from tests.formats.conftest import Table
from tests.waiting import PATIENCE_SECONDS

Make = Callable[[Sequence[str], Names], FileWatcher]
WATCHERS: dict[str, Make] = {
    "local": lambda folders, names: LocalWatcher(folders, names=names, recheck_seconds=30),
    "inotify": lambda folders, names: InotifyWatcher(folders, names=names, recheck_seconds=30),
}


@pytest.mark.parametrize("make", WATCHERS.values(), ids=WATCHERS)
async def test_a_commit_is_hinted_whatever_its_name(table: Table, make: Make) -> None:
    table.append([1])
    found = presumed_format(locate_table(str(table.location)))
    folder = found.folder(locate_table(str(table.location)))
    watcher = make([folder], {folder: found.names.version_of})
    async with aclosing(watcher.events()) as events, asyncio.timeout(PATIENCE_SECONDS):
        assert (await anext(events)).folder == folder, "it is watched now"
        coming = asyncio.ensure_future(anext(events))
        while not coming.done():
            # The kernel's watch may begin a moment after the first hint.
            table.append([2])
            await asyncio.wait([coming], timeout=0.2)
        assert coming.result().folder == folder
