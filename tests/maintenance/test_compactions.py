"""A compaction says what its commits say, loses no remove, and is believed only when read again."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailerd.errors import CorruptLogError, MissingVersionError, UnsupportedFeatureError
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.log.log_writer import FileResult, LogWriter
from tailerd.formats.delta.protocol.log_compaction import compact, matches_commits
from tailerd.storage.base import ObjectStore
from tailerd.storage.local import LocalStore
from tests.formats.delta.histories import (
    HEAD,
    assert_described,
    assert_is,
    domain,
    live_files,
    write_history,
)
from tests.formats.delta.log_bodies import add, body_of, cdc, remove
from tests.maintenance.test_random_histories import histories, legal
from tests.property.test_log_replay import write
from tests.tables.builder import TableBuilder
from tests.tables.naive_log import NaiveState, read_commit, replay


def compact_range(
    table: Path, start: int, end: int, store: ObjectStore | None = None
) -> FileResult:
    async def job() -> FileResult:
        reader = LogReader(store or LocalStore(), str(table))
        snapshot, _ = await reader.open_listed(with_files=False)
        return await LogWriter(reader).write_compaction(snapshot.state, start, end)

    return asyncio.run(job())


def summed(actions: list[dict[str, Any]]) -> NaiveState:
    state = NaiveState()
    state.apply(0, actions)
    return state


def test_the_protocols_own_example_comes_out_as_it_says() -> None:
    commits = [
        body_of({"commitInfo": {}}, add("f2"), remove("f1")),
        body_of(
            {"commitInfo": {}}, add("f3"), add("f4"), {"txn": {"appId": "3ae", "version": 4389}}
        ),
        body_of({"commitInfo": {}}, remove("f3"), {"txn": {"appId": "3ae", "version": 4390}}),
    ]
    named = [(f"{number}.json", body) for number, body in enumerate(commits, 4)]
    body = compact(named, "")
    assert sorted(body.splitlines()) == sorted(
        body_of(
            add("f2"), add("f4"), remove("f1"), remove("f3"),
            {"txn": {"appId": "3ae", "version": 4390}},
        ).splitlines()
    )  # fmt: skip
    assert matches_commits(body, named, "")


@pytest.mark.parametrize(
    "wrong",
    [
        body_of(add("a"), remove("b")),
        body_of(add("a"), remove("b"), remove("c"), add("d")),
        body_of(add("a", size=11), remove("b"), remove("c")),
        body_of(add("a"), remove("b"), remove("c"), domain("d", "1")),
    ],
    ids=["a remove lost", "an add too many", "another size", "a domain too many"],
)
def test_what_is_no_compaction_is_noticed(wrong: bytes) -> None:
    commits = [("1.json", body_of(add("a"), remove("b"))), ("2.json", body_of(remove("c")))]
    assert matches_commits(compact(commits, ""), commits, "")
    assert not matches_commits(wrong, commits, "")


def test_lines_are_kept_as_they_are() -> None:
    line = b'{ "add" : {"path":"a", "size": 10 ,"future":{"x":null}}}'
    body = compact([("1.json", b'{"commitInfo":{}}\r\n\n' + line + b"\n")], "")
    assert body == line + b"\n"


def test_a_compacted_table_is_read_as_before(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    states = [table.state(version) for version in range(HEAD + 1)]
    result = compact_range(tmp_path, 1, 7)
    assert result.outcome == "written"
    path = table.log / result.name
    assert path.name == f"{1:020}.{7:020}.compacted.json"
    assert result.size_bytes == path.stat().st_size
    naive = replay(table.log, 7, first=1)
    found = summed(read_commit(path))
    assert (found.adds, found.removes) == (naive.adds, naive.removes)
    assert (found.transactions, found.domains) == (naive.transactions, naive.domains)
    assert not any("commitInfo" in action or "cdc" in action for action in read_commit(path))
    for version in range(1, 8):
        table.commit_path(version).unlink()

    async def read() -> None:
        reader = LogReader(LocalStore(), str(tmp_path))
        for version in (0, 7, 8, 9):
            snapshot = await reader.open(version)
            assert_is(snapshot, states[version])
            assert_described(await live_files(reader, snapshot), states[version])

    asyncio.run(read())


def test_a_compaction_that_is_there_stays(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    path = table.compact(1, 4)
    before = path.read_bytes()
    assert compact_range(tmp_path, 1, 4).outcome == "already_there"
    assert path.read_bytes() == before


def test_commits_that_change_nothing_have_no_compaction(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    table.commit(operation="VACUUM START")
    table.commit(cdc("x"), operation="VACUUM END")
    assert compact_range(tmp_path, HEAD + 1, HEAD + 2).outcome == "nothing_to_say"
    assert not list(table.log.glob("*.compacted.json"))


@pytest.mark.parametrize("is_missing", [True, False], ids=["missing", "damaged"])
def test_a_commit_that_cannot_be_read_stops_the_compaction(
    tmp_path: Path, is_missing: bool
) -> None:
    table = write_history(tmp_path)
    table.checkpoint(6)
    table.commit_path(3).write_bytes(b'{"add":{"path":7}}\n')
    if is_missing:
        table.commit_path(3).unlink()
    error = MissingVersionError if is_missing else CorruptLogError
    with pytest.raises(error, match="one is missing" if is_missing else None):
        compact_range(tmp_path, 1, 7)
    assert not list(table.log.glob("*.compacted.json"))


def test_a_file_that_is_read_back_wrong_is_withdrawn(tmp_path: Path) -> None:
    table = write_history(tmp_path)

    class Lossy(LocalStore):
        async def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
            body = await super().get(path, start, length)
            if path.endswith(".compacted.json"):
                return b"\n".join(body.split(b"\n")[1:])
            return body

    with pytest.raises(CorruptLogError, match="does not match its commits"):
        compact_range(tmp_path, 1, 7, Lossy())
    assert not list(table.log.glob("*.compacted.json"))


def test_a_table_with_unknown_writer_features_is_not_compacted(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, reader_features=[], writer_features=["somethingNew"])
    table.create(add("a"))
    table.commit(add("b"))
    with pytest.raises(UnsupportedFeatureError, match="somethingNew"):
        compact_range(tmp_path, 0, 1)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), history=histories)
def test_compactions_of_random_ranges_replay_as_their_commits(
    data: st.DataObject, history: list[Any]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = TableBuilder(Path(folder), reader_features=["deletionVectors"])
        for version, (actions, changed, protocol) in enumerate(history):
            write(table, version, (legal(table, actions), changed, protocol))
        states = [table.state(version) for version in range(table.version + 1)]
        first = data.draw(st.integers(0, table.version - 1))
        last = data.draw(st.integers(first + 1, table.version))
        naive = replay(table.log, last, first=first)
        result = compact_range(Path(folder), first, last)
        found = summed(read_commit(table.log / result.name))
        assert found.adds == naive.adds
        assert found.removes == naive.removes
        assert found.domains == naive.domains
        assert json.loads(json.dumps(found.protocol)) == naive.protocol
        for version in range(first, last + 1):
            table.commit_path(version).unlink()

        async def compare() -> None:
            reader = LogReader(LocalStore(), folder)
            for version in (*range(first), *range(last, len(states))):
                snapshot = await reader.open(version)
                assert_is(snapshot, states[version])
                assert_described(await live_files(reader, snapshot), states[version])

        asyncio.run(compare())
