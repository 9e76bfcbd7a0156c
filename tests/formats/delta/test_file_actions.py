"""File actions that the protocol forbids, or that change no file of the table."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.limits import ReadLimit
from tailerd.errors import CorruptLogError, TableError
from tailerd.formats.base import OpenRequest
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.storage.base import ObjectStore
from tailerd.storage.local import LocalStore
from tailerd.storage.metered import MeteredStore
from tests.formats.delta.test_messages import command
from tests.tables.builder import TableBuilder
from tests.tables.feed import COMMIT_BY_COMMIT, ONE_FILE, Row, changes
from tests.tables.naive_log import Action
from tests.tables.opened import open_delta

pytestmark = pytest.mark.attack

MODES = pytest.mark.parametrize(
    "mode", [mode for mode in COMMIT_BY_COMMIT if mode is not ChangeMode.CDF], ids=str
)


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    table = TableBuilder(
        tmp_path / "t", fields=[("id", "long")], reader_features=["deletionVectors"]
    )
    table.create()
    return table


def add_live_file(table: TableBuilder, rows: int = 3) -> Action:
    return table.append([{"id": number} for number in range(rows)]).adds[0]


async def changes_of_newest(table: TableBuilder, mode: ChangeMode) -> list[tuple[str, int]]:
    rows = await changes(table.folder, str(table.version), mode=mode)
    return sorted((str(row["_change_type"]), int(row["id"])) for row in rows)


def changed(action: Action, **fields: object) -> Action:
    [(kind, body)] = action.items()
    return {kind: {**body, **fields}}


@MODES
@pytest.mark.parametrize(
    "fields",
    [{}, {"stats": '{"numRecords":99}'}, {"dataChange": False}, {"baseRowId": 7}],
    ids=["same", "other statistics", "no data change", "row ids"],
)
async def test_an_add_of_a_live_file_gives_no_rows(
    table: TableBuilder, mode: ChangeMode, fields: dict[str, object]
) -> None:
    add = add_live_file(table)
    table.commit(changed(add, **fields))
    assert await changes_of_newest(table, mode) == []
    marked = table.delete_rows(add, [0]).adds[0]
    table.commit(changed(marked, **fields))
    assert await changes_of_newest(table, mode) == []


@MODES
async def test_a_remove_of_a_file_that_is_not_live_gives_no_rows(
    table: TableBuilder, mode: ChangeMode
) -> None:
    add = add_live_file(table)
    marked = table.delete_rows(add, [0]).adds[0]
    table.commit(table.remove(add))
    assert await changes_of_newest(table, mode) == []
    table.commit(table.remove(marked))
    assert await changes_of_newest(table, mode) == [("delete", 1), ("delete", 2)]
    table.commit(table.remove(marked))
    assert await changes_of_newest(table, mode) == []
    other = table.with_vector(add, [1])
    table.commit(table.remove(other))
    assert await changes_of_newest(table, mode) == []


@MODES
async def test_a_replacement_of_a_vector_that_is_not_live_adds_the_file(
    table: TableBuilder, mode: ChangeMode
) -> None:
    add = add_live_file(table)
    table.commit(table.remove(add))
    table.commit(table.remove(add), table.with_vector(add, [0]))
    assert await changes_of_newest(table, mode) == [("insert", 1), ("insert", 2)]


@MODES
async def test_actions_without_an_effect_do_not_change_those_beside_them(
    table: TableBuilder, mode: ChangeMode
) -> None:
    live, gone = add_live_file(table), add_live_file(table)
    table.commit(table.remove(gone))
    marked = table.with_vector(live, [2])
    fresh = table.data_file([{"id": 9}])
    again = add_live_file(table, 1)
    table.commit(again, table.remove(gone), table.remove(live), marked, fresh)
    assert await changes_of_newest(table, mode) == [("delete", 2), ("insert", 9)]
    steps = await changes(table.folder, str(table.version), mode=mode, limit=ONE_FILE)
    assert len(steps) == 2


def forbidden_commits(table: TableBuilder) -> dict[str, list[Action]]:
    live = add_live_file(table)
    fresh = table.data_file([{"id": 9}])
    one, two = table.with_vector(live, [0]), table.with_vector(live, [1])
    return {
        "one add twice": [fresh, fresh],
        "adds of two vectors": [table.remove(live), one, two],
        "one remove twice": [table.remove(live), table.remove(live)],
        "a second vector": [one],
    }


FORBIDDEN = ["one add twice", "adds of two vectors", "one remove twice", "a second vector"]


@MODES
@pytest.mark.parametrize("name", FORBIDDEN)
async def test_forbidden_actions_stop_the_table_and_name_the_file(
    table: TableBuilder, name: str, mode: ChangeMode
) -> None:
    actions = forbidden_commits(table)[name]
    version = table.commit(*actions).version
    path = next(iter(actions[-1].values()))["path"]
    with pytest.raises(CorruptLogError, match=f"Version {version} (adds|removes) '{path}'"):
        await changes(table.folder, str(version), mode=mode)


@pytest.mark.parametrize("name", [name for name in FORBIDDEN if name != "one remove twice"])
async def test_a_snapshot_after_forbidden_actions_is_refused(
    table: TableBuilder, name: str
) -> None:
    table.commit(*forbidden_commits(table)[name])
    with pytest.raises(CorruptLogError, match="which the protocol forbids"):
        await changes(table.folder, "snapshot")


@pytest.mark.parametrize("layout", ["v1", "v2-json", "v2-parquet"])
async def test_a_path_that_is_live_twice_is_found_in_a_checkpoint(
    tmp_path: Path, layout: str
) -> None:
    table = TableBuilder(tmp_path / "t", reader_features=["deletionVectors", "v2Checkpoint"])
    [add] = table.append([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]).adds
    table.commit(table.with_vector(add, [0]))
    table.checkpoint(layout=layout)  # type: ignore[arg-type]
    with pytest.raises(TableError, match="two deletion vectors"):
        await LogReader.at(str(table.folder)).open()


@pytest.mark.parametrize("name", [name for name in FORBIDDEN if name != "one remove twice"])
def test_maintenance_writes_no_checkpoint_after_forbidden_actions(
    table: TableBuilder, name: str
) -> None:
    table.change_metadata(properties={"delta.checkpointInterval": "1"})
    table.commit(*forbidden_commits(table)[name])
    done = command("maintain", table.folder, "--apply")
    assert "protocol forbids" in done.stderr + done.stdout
    assert not list(table.log.glob("*.checkpoint*"))


async def test_a_tail_reads_the_list_of_files_once(table: TableBuilder) -> None:
    add_live_file(table)
    table.checkpoint()
    store = MeteredStore(LocalStore())

    def meter(_: ObjectStore) -> ObjectStore:
        return store

    source = await open_delta(str(table.folder), OpenRequest(wrap_store=meter))
    at = await source.initial_offset("latest")
    for number in range(4):
        add_live_file(table)
        store.reset()
        end = await source.latest_offset(at, ReadLimit())
        tasks = [task async for group in source.plan(at, end) for task in group.tasks]
        await source.commit(end)
        assert len(tasks) == 1
        assert store.requests["open"] == (1 if number == 0 else 0)
        at = end


KINDS = st.sampled_from(["add", "remove", "mark", "again", "gone", "replace"])
STEPS = st.lists(
    st.lists(st.tuples(KINDS, st.integers(0, 3), st.booleans()), min_size=1, max_size=4),
    max_size=8,
)


class Model:
    """Four paths, each live with one vector, live without one, or not live."""

    def __init__(self, table: TableBuilder) -> None:
        self.table = table
        self.plain = [table.data_file([{"id": 10 * n + k} for k in range(3)]) for n in range(4)]
        self.live: list[Action | None] = [None] * 4
        self.vectors = 0

    def commit(self, step: list[tuple[str, int, bool]]) -> None:
        # A path has at most one `add` and one `remove` in a commit.
        chosen = {path: (kind, with_change) for kind, path, with_change in step}
        actions = [
            action
            for path, (kind, with_change) in chosen.items()
            for action in self.actions(kind, path, with_change)
        ]
        self.table.commit(*actions)

    def actions(self, kind: str, path: int, with_change: bool) -> list[Action]:
        live, plain = self.live[path], self.plain[path]
        if kind == "gone":
            self.vectors += 1
            return [self.table.remove(self.table.with_vector(plain, [self.vectors % 3]))]
        if live is None:
            removed = [self.table.remove(plain)] if kind in ("remove", "mark", "replace") else []
            if kind == "remove":
                return removed
            self.live[path] = self.table.with_vector(plain, [1]) if kind == "mark" else plain
            # An old tombstone may be repeated; the file itself is new, so its rows are changes.
            added = [self.live[path] or plain]
            return [*removed, *added] if kind == "mark" else added
        if kind in ("add", "again"):
            return [changed(live, dataChange=with_change, stats='{"numRecords":3}')]
        if kind == "remove":
            self.live[path] = None
            return [self.table.remove(live)]
        self.vectors += 1
        gone = [self.vectors % 3] if kind == "mark" else [0, self.vectors % 2 + 1]
        fresh = self.table.with_vector(plain, gone)
        self.live[path] = fresh
        return [fresh, self.table.remove(live)]


def fold(rows: list[Row]) -> Counter[int]:
    found: Counter[int] = Counter()
    for row in rows:
        found[int(row["id"])] += 1 if row["_change_type"] == "insert" else -1
        assert found[int(row["id"])] in (0, 1), "a row is never twice in the table, or gone twice"
    return +found


@MODES
def test_replayed_changes_are_the_table_whatever_legal_actions_commits_have(
    tmp_path_factory: pytest.TempPathFactory, mode: ChangeMode
) -> None:
    @settings(max_examples=60)
    @given(steps=STEPS, checkpoint=st.booleans(), is_split=st.booleans())
    def check(steps: list[list[tuple[str, int, bool]]], checkpoint: bool, is_split: bool) -> None:
        table = TableBuilder(
            tmp_path_factory.mktemp("t"),
            fields=[("id", "long")],
            reader_features=["deletionVectors"],
        )
        table.create()
        model = Model(table)
        for step in steps:
            model.commit(step)
        if checkpoint:
            table.checkpoint(table.version // 2)
        limit = ONE_FILE if is_split else ReadLimit()
        rows = asyncio.run(changes(table.folder, "0", mode=mode, limit=limit, restarts=is_split))
        snapshot = asyncio.run(changes(table.folder, "snapshot"))
        assert fold(rows) == Counter(int(row["id"]) for row in snapshot)

    check()


async def test_a_list_of_files_that_cannot_be_read_is_not_read_for_every_commit(
    table: TableBuilder,
) -> None:
    add_live_file(table)
    [checkpoint] = table.checkpoint()
    for version in range(table.version + 1):
        table.commit_path(version).unlink()
    table.checksum(numFiles=7)
    store = MeteredStore(LocalStore())

    def meter(_: ObjectStore) -> ObjectStore:
        return store

    source = await open_delta(str(table.folder), OpenRequest(wrap_store=meter))
    at = await source.initial_offset("latest")
    for number in range(3):
        add_live_file(table)
        store.reset()
        end = await source.latest_offset(at, ReadLimit())
        assert len([group async for group in source.plan(at, end)]) == 1
        assert store.requests["open"] == (1 if number == 0 else 0)
        at = end
    assert checkpoint.exists()
