"""Files linked when they are first seen: removed rows outlive garbage collection."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tailerd.errors import ConfigError
from tests.formats.kartothek.observing import Follower, deleted, inserted
from tests.formats.kartothek.test_daemon import rows
from tests.tables.dataset_writer import DatasetWriter


def keys(*ids: int) -> Counter[tuple[object, ...]]:
    return Counter((str(number), f"'n{number}'") for number in ids)


def links(ledger: Path) -> int:
    return sum(path.is_file() for path in (ledger / "files").rglob("*.parquet"))


async def test_rows_of_collected_files_come_all_the_same(tmp_path: Path) -> None:
    writer, ledger = DatasetWriter(tmp_path / "store"), tmp_path / "ledger"
    [first] = writer.commit(rows(1, 2))
    follower = await Follower.open(writer.location, ledger=ledger, spool="link")
    await follower.rest()
    [second] = writer.commit(rows(2, 3), without=first.__eq__)
    writer.collect_garbage()
    found = await follower.rest()
    assert (deleted(found), inserted(found)) == (keys(1), keys(3))
    assert links(ledger) == 1, "what no kept state names is linked no more"
    # Another process goes on with what this one linked.
    again = await Follower.open(writer.location, "latest", ledger=ledger, spool="link")
    writer.commit(without=second.__eq__)
    writer.collect_garbage()
    assert deleted(await again.rest()) == keys(2, 3)
    assert links(ledger) == 0


async def test_a_symbolic_link_in_a_dataset_is_not_linked(tmp_path: Path) -> None:
    writer, ledger = DatasetWriter(tmp_path / "store"), tmp_path / "ledger"
    writer.commit(rows(1))
    [path] = writer.location.rglob("*.parquet")
    path.rename(tmp_path / "elsewhere.parquet")
    path.symlink_to(tmp_path / "elsewhere.parquet")
    await Follower.open(writer.location, ledger=ledger, spool="link")
    assert links(ledger) == 0


@pytest.mark.parametrize(
    ("spool", "has_ledger"), [("copy", True), ("link", False)], ids=["unknown", "no ledger"]
)
async def test_what_cannot_be_spooled_is_refused(
    tmp_path: Path, spool: str, has_ledger: bool
) -> None:
    writer = DatasetWriter(tmp_path / "store")
    writer.commit(rows(1))
    ledger = tmp_path / "ledger" if has_ledger else None
    with pytest.raises(ConfigError):
        await Follower.open(writer.location, ledger=ledger, spool=spool)
