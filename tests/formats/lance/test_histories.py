"""The law: what a version was, and its changes, is what the next version is, by the library."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import Version
from tests.formats.lance.following import applied, batches, changes, opened, rest, text
from tests.formats.lance.random_table import RandomTable

EVERY_DAY, ALL, CHANGES = 5, 40, 13


def kinds_of_tables(count: int) -> list[object]:
    return [
        pytest.param(
            seed, seed % 2 == 0, ("2.0", None)[seed // 2 % 2], marks=(
                () if seed < EVERY_DAY else (pytest.mark.full,)
            ), id=f"{seed}"
        )
        for seed in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize(("chance", "stable_ids", "version"), kinds_of_tables(ALL))
async def test_each_commits_changes_lead_to_the_next_snapshot(
    tmp_path: Path, chance: int, stable_ids: bool, version: str | None
) -> None:
    table = RandomTable(tmp_path / "t", chance, stable_ids=stable_ids, version=version)
    for _ in range(CHANGES):
        table.change()
    head = table.dataset.version
    source = await opened(tmp_path / "t")
    for number in range(1, head + 1):
        begin = await source.offset_at(Version(number))
        found = await batches(source, begin, begin.after_version(source))
        before = table.state_seen_from(number - 1, number) if number > 1 else Counter()
        same_names = changes(found)
        if number > 1:
            same_names = [
                (kind, row)
                if kind != "delete"
                else (kind, table.renamed([row], number - 1, number)[0])
                for kind, row in same_names
            ]
        after = Counter(text(row) for row in table.state(number))
        assert applied(before, same_names) == after, (number, table.done)
        assert {each.version for each in found} <= {number}
        ids = [each for batch in found for each in (batch.ids() or [])]
        assert len({each.as_py() for each in ids}) == len(ids), "each row has an id of its own"


@pytest.mark.parametrize("chance", [1, 2])
async def test_one_net_step_leads_from_any_version_to_any_later_one(
    tmp_path: Path, chance: int
) -> None:
    table = RandomTable(tmp_path / "t", chance, stable_ids=chance % 2 == 0, version=None)
    for _ in range(10):
        table.change()
    head = table.dataset.version
    source = await opened(tmp_path / "t", changes=ChangeMode.NET)
    for first in range(1, head + 1, 3):
        start = await source.offset_at(Version(first + 1))
        found, _ = await rest(source, start) if first < head else ([], start)
        if first == head or set(table.names(first)) != set(table.names(head)):
            continue
        before = table.state_seen_from(first, head)
        assert applied(before, changes(found)) == table.state_seen_from(head, head), table.done
        assert {batch.version for batch in found} <= {head}


async def test_small_steps_give_the_same_rows(tmp_path: Path) -> None:
    table = RandomTable(tmp_path / "t", 3, stable_ids=True, version=None)
    for _ in range(8):
        table.change()
    source = await opened(tmp_path / "t")
    start = await source.initial_offset("1")
    whole, end = await rest(source, start)
    small, same = await rest(source, start, ReadLimit(max_files=1, max_bytes=1))
    assert end == same
    assert changes(small) == changes(whole)
