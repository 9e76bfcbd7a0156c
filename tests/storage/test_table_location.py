"""A table's location is resolved once, and passed down."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType

import pytest

from tailerd.storage.local import LocalStore
from tailerd.storage.table_location import confine, locate_table
from tests.cli.commands import Commands
from tests.tables.builder import TableBuilder


def test_one_tail_resolves_at_most_three_locations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = TableBuilder(tmp_path)
    for n in range(20):
        table.append([{"id": n}])
    entered: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.endswith("storage/stores.py"):
            caller = frame.f_back
            if caller and caller.f_code.co_filename != frame.f_code.co_filename:
                entered[frame.f_code.co_name] += 1

    before = sys.getprofile()
    threading.setprofile(count)
    sys.setprofile(count)
    try:
        ran = Commands(capsys).tail(tmp_path, "--from", "0")
    finally:
        threading.setprofile(None)
        sys.setprofile(before)
    assert len(ran.rows) == 20
    assert 1 <= entered.total() <= 3, entered


def test_commits_next_to_the_table_widen_the_folders_that_links_may_lead_to(tmp_path: Path) -> None:
    location = locate_table(str(tmp_path / "store/uuid"))
    assert location.links is not None
    assert location.with_commits(f"{location.root}/_delta_log") is location
    wide = location.with_commits(str(tmp_path / "store"))
    assert wide.links is not None
    assert wide.links.root == str(tmp_path / "store")
    assert isinstance(wide.store, LocalStore)
    assert wide.store.locations is wide.links


def test_a_store_is_confined_to_its_first_table_only(tmp_path: Path) -> None:
    store = locate_table(str(tmp_path / "one")).store
    assert confine(store, str(tmp_path / "two")) is store
    free = confine(LocalStore(), str(tmp_path / "two"))
    assert isinstance(free, LocalStore)
    assert free.locations is not None


def test_a_location_in_a_bucket_follows_no_links() -> None:
    location = locate_table("memory://lake/orders/", ["/lake", "memory://lake/other/"])
    assert (location.root, location.url) == ("/orders", "memory://lake/orders")
    assert location.allowed == ("/lake", "memory://lake/other")
    assert location.links is None
    assert location.with_commits("/elsewhere") is location
