"""What every ledger does: entries that last, one winner of a number, damage that is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tailerd.errors import OffsetError
from tailerd.state.ledger import Ledger, LedgerLocation, open_ledger
from tailerd.storage.memory import MemoryStore
from tailerd.storage.stores import Stores

Make = Callable[[Path], Ledger]
LEDGERS: dict[str, Make] = {
    "memory": lambda _: open_ledger(None, Stores()),
    "folder": lambda folder: open_ledger(LedgerLocation(str(folder / "ledger")), Stores()),
    "store": lambda _: Ledger(MemoryStore("ledgers"), "/orders"),
    "read only": lambda folder: open_ledger(
        LedgerLocation(str(folder / "none"), is_read_only=True), Stores()
    ),
}


@pytest.fixture(params=LEDGERS)
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    return LEDGERS[request.param](tmp_path)


async def test_an_entry_is_what_was_saved(ledger: Ledger) -> None:
    assert await ledger.numbers() == []
    assert await ledger.load(0) is None
    for number in (2, 0, 11):
        assert await ledger.save(number, b"entry %d" % number)
    assert await ledger.numbers() == [0, 2, 11]
    assert await ledger.load(11) == b"entry 11"
    assert await ledger.load(1) is None


async def test_the_first_to_save_a_number_wins(ledger: Ledger) -> None:
    assert await ledger.save(0, b"first")
    assert not await ledger.save(0, b"second")
    assert await ledger.load(0) == b"first"


async def test_large_entries_are_whole(ledger: Ledger) -> None:
    entry = bytes(range(256)) * 5000
    await ledger.save(0, entry)
    assert await ledger.load(0) == entry


async def test_a_mark_of_a_drop_lasts_until_it_is_settled(ledger: Ledger) -> None:
    if ledger.is_read_only:
        pytest.skip("what only looks marks nothing; it has a test of its own")
    await ledger.mark_dropped()
    assert await ledger.is_marked_dropped()
    await ledger.unmark_dropped()
    assert not await ledger.is_marked_dropped()
    await ledger.save(0, b"entry")
    await ledger.mark_dropped()
    await ledger.clear()
    assert not await ledger.is_marked_dropped()
    assert await ledger.numbers() == []


async def test_what_is_forgotten_is_gone_and_nothing_else(tmp_path: Path) -> None:
    for make in (LEDGERS["memory"], LEDGERS["folder"], LEDGERS["store"]):
        ledger = make(tmp_path)
        for number in range(5):
            await ledger.save(number, b"entry")
        await ledger.forget_before(3)
        assert await ledger.numbers() == [3, 4]
        await ledger.save(5, b"entry")
        await ledger.forget_before(5)
        assert await ledger.numbers() == [5]


async def test_another_process_finds_a_folders_entries(tmp_path: Path) -> None:
    await LEDGERS["folder"](tmp_path).save(3, b"entry")
    again = LEDGERS["folder"](tmp_path)
    assert again.is_durable
    assert await again.load(3) == b"entry"


async def test_a_process_that_only_looks_changes_nothing(tmp_path: Path) -> None:
    location = LedgerLocation(str(tmp_path / "ledger"))
    await open_ledger(location, Stores()).save(0, b"entry")
    looker = open_ledger(replace(location, is_read_only=True), Stores())
    assert not await looker.save(0, b"other")
    assert await looker.save(1, b"mine")
    assert await looker.numbers() == [0, 1]
    assert await looker.load(1) == b"mine"
    await looker.forget_before(9)
    await looker.mark_dropped()
    await looker.clear()
    assert await open_ledger(location, Stores()).numbers() == [0]
    assert not await looker.is_marked_dropped()


@pytest.mark.parametrize("at", [0, 12, 20, 26, -1])
async def test_a_damaged_entry_is_told(tmp_path: Path, at: int) -> None:
    ledger = LEDGERS["folder"](tmp_path)
    await ledger.save(0, b"entry" * 100)
    [path] = (tmp_path / "ledger").iterdir()
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(OffsetError):
        await ledger.load(0)
    path.write_bytes(content[:at])
    with pytest.raises(OffsetError):
        await ledger.load(0)
