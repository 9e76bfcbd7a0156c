"""Random histories: folding the change rows of a range over a version gives the later version."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.limits import BatchLimit, ReadLimit
from tailerd.changefeed.offset import Offset
from tailerd.formats.base import OpenRequest
from tests.tables.builder import CDF, TableBuilder
from tests.tables.naive_log import Action
from tests.tables.opened import open_delta

Rows = Counter[tuple[int, str]]

STEPS = st.tuples(
    st.sampled_from(
        ["insert", "delete", "update", "rewrite", "vector", "restore", "optimize", "nothing"]
    ),
    st.integers(0, 2**16),
    st.booleans(),
)
HISTORIES = st.lists(STEPS, min_size=1, max_size=12)


@dataclass(slots=True)
class History:
    """A table, the files that are live in it, and what each version held."""

    table: TableBuilder
    has_feed: bool
    live: list[Action] = field(default_factory=list)
    states: list[Rows] = field(default_factory=list)
    names: Any = field(default_factory=lambda: itertools.count(1))

    def begin(self) -> None:
        self.live = self.table.create(*self.files(3), *self.files(2)).adds
        self.note()

    def files(self, count: int) -> list[Action]:
        rows = [{"id": next(self.names) % 7, "name": f"n{next(self.names)}"} for _ in range(count)]
        return [self.table.data_file(rows)]

    def rows_in(self, add: Action) -> list[tuple[int, dict[str, Any]]]:
        """Return the rows a file still has, with their positions."""
        body = add["add"]
        vector = body.get("deletionVector")
        gone = frozenset[int]()
        if vector is not None:
            offset = "" if vector.get("offset") is None else f"@{vector['offset']}"
            name = f"{vector['storageType']}{vector['pathOrInlineDv']}{offset}"
            gone = self.table.deleted[name]
        rows = self.table.contents[body["path"]]
        return [(position, row) for position, row in enumerate(rows) if position not in gone]

    def note(self) -> None:
        found: Rows = Counter()
        for add in self.live:
            found.update((row["id"], row["name"]) for _, row in self.rows_in(add))
        self.states.append(found)

    def commit(self, removed: list[Action], added: list[Action], changes: list[Any]) -> None:
        actions = [*added, *map(self.table.remove, removed)]
        if self.has_feed and changes:
            actions.append(self.table.cdc_file(changes))
        self.table.commit(*actions)
        self.live = [add for add in self.live if add not in removed] + added
        self.note()

    def step(self, kind: str, choice: int, by_vector: bool) -> None:
        target = self.live[choice % len(self.live)] if self.live else None
        rows = self.rows_in(target) if target is not None else []
        if kind == "insert" or target is None or not rows:
            self.commit([], self.files(1 + choice % 3), [])
        elif kind == "nothing":
            self.commit([], [], [])
        elif kind == "optimize":
            self.optimize(target, rows)
        elif kind in ("delete", "update", "vector"):
            chosen = [position for position, _ in rows if (choice >> position) & 1] or [rows[0][0]]
            self.change(target, rows, chosen, kind == "update", by_vector or kind == "vector")
        elif kind == "restore" and "deletionVector" in target["add"]:
            plain = {"add": {k: v for k, v in target["add"].items() if k != "deletionVector"}}
            self.commit([target], [plain], [])
        else:
            fresh = self.files(2)
            self.commit([target], fresh, [])

    def optimize(self, target: Action, rows: list[Any]) -> None:
        fresh = self.table.data_file([row for _, row in rows], data_change=False)
        self.table.commit(fresh, self.table.remove(target, data_change=False))
        self.live = [add for add in self.live if add is not target] + [fresh]
        self.note()

    def change(
        self, target: Action, rows: list[Any], chosen: list[int], is_update: bool, by_vector: bool
    ) -> None:
        old = [row for position, row in rows if position in chosen]
        new = [{**row, "name": f"n{next(self.names)}"} for row in old] if is_update else []
        kept = [row for position, row in rows if position not in chosen]
        changes = [
            {**row, "_change_type": "update_preimage" if is_update else "delete"} for row in old
        ] + [{**row, "_change_type": "update_postimage"} for row in new]
        if by_vector:
            gone = [
                position
                for position in range(len(self.table.contents[target["add"]["path"]]))
                if position in chosen or position not in [known for known, _ in rows]
            ]
            added = [self.table.with_vector(target, gone)]
            added += [self.table.data_file(new)] if new else []
        else:
            added = [self.table.data_file(kept + new)] if kept + new else []
        self.commit([target], added, changes)


def fold(state: Rows, rows: list[dict[str, Any]]) -> Rows:
    """Apply change rows; deletes of a commit come before its inserts."""
    found = Counter(state)
    for kinds, sign in ((("delete", "update_preimage"), -1), (("insert", "update_postimage"), 1)):
        for row in rows:
            if row["_change_type"] in kinds:
                found[row["id"], row["name"]] += sign
    return found


async def read(
    folder: Path, start: int, end: int, mode: ChangeMode, limits: list[ReadLimit]
) -> list[dict[str, Any]]:
    """Read the versions start..end in steps of these limits in turn."""
    source = await open_delta(str(folder), OpenRequest(changes=mode))
    at = await source.initial_offset(str(start))
    rows: list[dict[str, Any]] = []
    for limit in itertools.cycle(limits):
        if at.version > end:
            return rows
        reached = await source.latest_offset(at, limit)
        if reached.version > end + 1:
            reached = Offset(table_id=at.table_id, version=type(at.version)(end + 1))
        async for group in source.plan(at, reached):
            for task in group.tasks:
                for batch in source.read(task, BatchLimit(max_rows=2)):
                    rows += batch.to_arrow().to_pylist()
        at = reached
    raise AssertionError("there are limits")


LIMITS = st.lists(
    st.builds(ReadLimit, max_files=st.integers(1, 6), max_bytes=st.sampled_from([1, 3000, 10**9])),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("mode", list(ChangeMode), ids=str)
def test_folding_the_changes_of_any_range_gives_the_later_version(
    tmp_path_factory: pytest.TempPathFactory, mode: ChangeMode
) -> None:
    @settings(max_examples=40)
    @given(
        steps=HISTORIES,
        has_feed=st.just(True) if mode is ChangeMode.CDF else st.booleans(),
        limits=LIMITS,
        ends=st.tuples(st.integers(0, 99), st.integers(0, 99)),
        checkpoint=st.booleans(),
    )
    def check(
        steps: list[tuple[str, int, bool]],
        has_feed: bool,
        limits: list[ReadLimit],
        ends: tuple[int, int],
        checkpoint: bool,
    ) -> None:
        table = TableBuilder(
            tmp_path_factory.mktemp("history"),
            reader_features=["deletionVectors"],
            properties=CDF if has_feed else {},
        )
        history = History(table, has_feed)
        history.begin()
        for step in steps:
            history.step(*step)
        if checkpoint:
            table.checkpoint(table.version // 2)
        start, end = sorted(number % (table.version + 1) for number in ends)
        before = history.states[start - 1] if start else Counter()

        rows = asyncio.run(read(table.folder, start, end, mode, limits))

        assert fold(before, rows) == history.states[end]
        versions = [row["_commit_version"] for row in rows]
        assert versions == sorted(versions)
        whole = asyncio.run(read(table.folder, start, end, mode, [ReadLimit(max_files=10**6)]))
        assert [sorted(row.items()) for row in whole] == [sorted(row.items()) for row in rows]
        snapshot = Counter((row["id"], row["name"]) for row in table.rows())
        assert snapshot == history.states[-1], "the model and the builder agree"

    check()
