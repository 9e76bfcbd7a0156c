"""Replay of a random history is the naive replay, at every version and from every checkpoint."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.protocol import file_index
from tailerd.storage.local import LocalStore
from tests.formats.delta.histories import (
    CHECKPOINT_KINDS,
    CheckpointKind,
    assert_described,
    assert_is,
    domain,
    live_files,
    stats,
    write_checkpoint,
)
from tests.formats.delta.log_bodies import add, remove, vector
from tests.tables.builder import TableBuilder
from tests.tables.naive_log import Action, key_of

PATHS = ["a", "b%20c", "b c", "p=%C3%BC/d", "p=ü/d", "e"]
VECTORS: list[Action] = [{}, vector("v1"), vector("v1", offset=0), vector("v2", offset=0)]

paths = st.sampled_from(PATHS)
vectors = st.sampled_from(VECTORS)


def added(path: str, dv: Action, size: int, change: bool) -> Action:
    value = None if size % 3 else str(size)
    return add(
        path, size=size, dataChange=change, partitionValues={"p": value}, stats=stats(size), **dv
    )


adds = st.builds(added, paths, vectors, st.integers(0, 1000), st.booleans())
removes = st.builds(lambda path, dv: remove(path, **dv), paths, vectors)
others = st.one_of(
    st.builds(
        lambda app, version: {"txn": {"appId": app, "version": version}},
        st.sampled_from("xy"),
        st.integers(0, 9),
    ),
    st.builds(
        lambda name, text, removed: domain(name, text, removed=removed),
        st.sampled_from("de"),
        st.text("ab", max_size=2),
        st.booleans(),
    ),
    st.just({"cdc": {"path": "_change_data/x", "partitionValues": {}, "size": 1}}),
    st.just({"futureAction": {"add": {"path": "a"}}}),
)
changes = st.fixed_dictionaries(
    {},
    optional={
        "name": st.text("nm", max_size=2),
        "configuration": st.dictionaries(st.sampled_from("kl"), st.text("v", max_size=1)),
    },
)
commits = st.tuples(
    st.lists(adds | removes | others, max_size=6),
    st.none() | changes,
    st.booleans(),
)


def write(
    table: TableBuilder, version: int, commit: tuple[list[Action], Action | None, bool]
) -> None:
    actions, changed, has_protocol = commit
    # One commit adds a logical file at most once.
    once = {key_of(action["add"]): action for action in actions if "add" in action}
    actions = [a for a in actions if "add" not in a or once[key_of(a["add"])] is a]
    if changed is not None or version == 0:
        actions.append(table.metadata(**(changed or {})))
    if has_protocol or version == 0:
        actions.append(table.protocol(minWriterVersion=7))
    # A compaction of nothing would be an empty file, which is as good as torn.
    table.commit(*actions, {"txn": {"appId": "z", "version": version}})


async def check(table: TableBuilder, base: int) -> None:
    reader = LogReader(LocalStore(), str(table.folder))
    advanced, _ = await reader.open_listed(base)
    for version in range(table.version + 1):
        state = table.state(version)
        snapshot, _ = await reader.open_listed(version)
        assert_is(snapshot, state)
        assert_described(await live_files(reader, snapshot), state)
        bare = await reader.open(version, with_files=False)
        assert_is(bare, state, with_files=False)
        if version > base:
            file = await reader.commit_file(version)
            assert file is not None
            advanced = advanced.advance((await reader.read_commit(file)).commit)
            assert_is(advanced, state)
            assert_described(await live_files(reader, advanced), state)


KINDS_WITH_STATS = [kind for kind in CHECKPOINT_KINDS if kind not in ("none", "classic-no-stats")]


@pytest.mark.parametrize("forms", ["dict", "arrays"])
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), history=st.lists(commits, min_size=1, max_size=6))
def test_replay_of_a_random_history_is_the_naive_one(
    forms: str, data: st.DataObject, history: list[Any]
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if forms == "arrays":
            patch.setattr(file_index, "FOLD_AT_LEAST", 1)
            patch.setattr(file_index, "BULK_COMMIT", 2)
        table = TableBuilder(Path(folder), reader_features=["deletionVectors", "v2Checkpoint"])
        for version, commit in enumerate(history):
            write(table, version, commit)
        versions = st.integers(0, table.version)
        kinds: st.SearchStrategy[CheckpointKind] = st.sampled_from(KINDS_WITH_STATS)
        for version, kind in data.draw(st.lists(st.tuples(versions, kinds), max_size=2)):
            write_checkpoint(table, kind, version)
        asyncio.run(check(table, data.draw(versions)))


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), history=st.lists(commits, min_size=3, max_size=7))
def test_compacted_ranges_replay_as_their_commits_do(
    data: st.DataObject, history: list[Any]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = TableBuilder(Path(folder), reader_features=["deletionVectors"])
        for version, commit in enumerate(history):
            write(table, version, commit)
        states = [table.state(version) for version in range(table.version + 1)]
        first = data.draw(st.integers(0, table.version - 1))
        last = data.draw(st.integers(first + 1, table.version))
        table.compact(first, last)
        for version in range(first, last + 1):
            table.commit_path(version).unlink()

        async def compare() -> None:
            reader = LogReader(LocalStore(), folder)
            for version in (*range(first), *range(last, len(states))):
                snapshot, _ = await reader.open_listed(version)
                assert_is(snapshot, states[version])
                assert_described(await live_files(reader, snapshot), states[version])

        asyncio.run(compare())
