"""Row 51: a newest commit that is still being written, met while the table is opened."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tailerd.errors import TornCommitError
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.storage.local import LocalStore
from tests.tables.builder import TableBuilder

pytestmark = pytest.mark.attack


def torn_table(folder: Path) -> tuple[Path, bytes]:
    """A table of three commits whose last is cut; its file and what it should hold."""
    table = TableBuilder(folder)
    for number in range(3):
        table.append([{"id": number, "name": "x"}])
    newest = table.commit_path(2)
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-20])
    return newest, whole


@pytest.mark.parametrize("with_files", [True, False])
async def test_row_51_opening_waits_for_a_torn_newest_commit(
    tmp_path: Path, with_files: bool
) -> None:
    newest, whole = torn_table(tmp_path)
    reader = LogReader(LocalStore(), str(tmp_path), torn_wait_seconds=20)
    opening = asyncio.create_task(reader.open(with_files=with_files))
    await asyncio.sleep(0.2)
    assert not opening.done()

    newest.write_bytes(whole)

    assert (await opening).version == 2


async def test_row_51_opening_a_table_that_stays_torn_says_so(tmp_path: Path) -> None:
    torn_table(tmp_path)
    reader = LogReader(LocalStore(), str(tmp_path), torn_wait_seconds=0.1)

    with pytest.raises(TornCommitError, match="remove the file: it was never committed"):
        await reader.open()
