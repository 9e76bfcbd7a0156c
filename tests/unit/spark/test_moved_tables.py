"""Tables that go from one group to another: each row is delivered by one of the two."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest

from tailerd.backoff import Backoff
from tailerd.changefeed.offset import Offset, Version
from tailerd.config import Config, SinkConfig, TableConfig
from tailerd.config.sections import read_sink
from tailerd.errors import ConfigError, SinkError
from tailerd.spark.engine import SparkEngine
from tailerd.spark.group.assignments import Assignments, group_kind
from tailerd.spark.group.follower import GroupFollower
from tailerd.spark.group.group_offset import Entry, GroupOffset
from tailerd.spark.group.grouped_pipeline import GroupedPipeline, Groups
from tailerd.spark.group.left_groups import Delivered, LeftGroups, PendingPlacement
from tailerd.spark.group.members import GroupTable, Members
from tailerd.spark.group.published import write_published
from tailerd.spark.group.quarantine import Hold, write_holds
from tailerd.spark.group.table_group import TableGroup
from tailerd.telemetry import Telemetry, events
from tests.tables.builder import TableBuilder

PASSWORD = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "u",
    "sasl_plain_password": "old",
}


def kafka(**producer: Any) -> SinkConfig:
    section = {"kind": "kafka", "bootstrap_servers": "127.0.0.1:9092", "topic": "{table}"}
    return read_sink("sink", {**section, "delivery": "exactly-once", "producer": producer})


def at(version: int) -> Offset:
    return Offset(table_id="id-1", version=Version(version))


def log(folder: Path, batch_id: int, end: GroupOffset, *, is_done: bool) -> None:
    for name in ("offsets", "commits"):
        (folder / "checkpoint" / name).mkdir(parents=True, exist_ok=True)
    text = f"v1\n{{}}\n{json.dumps(end.fields())}"
    (folder / f"checkpoint/offsets/{batch_id}").write_text(text)
    if is_done:
        (folder / f"checkpoint/commits/{batch_id}").write_text("v1\n{}")


def place(assignments: Assignments, name: str, sink: SinkConfig, most: int = 9) -> str:
    kind = group_kind(sink)
    assert kind is not None
    return assignments.assign(name, kind, {}, most).group


def test_a_new_password_moves_nobody_and_another_user_does(tmp_path: Path) -> None:
    assignments = Assignments(tmp_path)
    group = place(assignments, "a", kafka(**PASSWORD))
    assert place(assignments, "a", kafka(**{**PASSWORD, "sasl_plain_password": "new"})) == group
    assert place(assignments, "b", kafka(**{**PASSWORD, "sasl_plain_password": "new"})) == group
    assert place(assignments, "a", kafka(**{**PASSWORD, "sasl_plain_username": "v"})) != group
    assert place(assignments, "b", kafka(**PASSWORD, max_request_size=2000000)) != group


def test_a_new_table_beside_thousands_is_placed_in_the_time_of_reading_and_writing(
    tmp_path: Path,
) -> None:
    groups = [f"lines-{number:03}" for number in range(1, 101)]
    fields = {"generation": 1, "begin": None, "kind": "lines"}
    file = tmp_path / "_groups/assignments.json"
    file.parent.mkdir()
    tables = {f"t{n}-{group}": {"group": group, **fields} for group in groups for n in range(40)}
    file.write_text(json.dumps(tables))
    assignments, running = Assignments(tmp_path), dict.fromkeys(groups, 40)

    def cpu_seconds(call: Callable[[str], object]) -> float:
        seconds = []
        for number in range(3):
            before = time.process_time()
            call(f"new-{number}")
            seconds.append(time.process_time() - before)
        return min(seconds)

    placing = cpu_seconds(lambda name: assignments.assign(name, "lines", running, 40))
    assert placing < 12 * cpu_seconds(assignments.find)
    # Its group is the first that has room, of those of its kind.
    assert assignments.assign("last", "lines", {**running, "lines-007": 1}, 40).group == "lines-007"


@pytest.mark.parametrize(
    ("delivered", "is_held", "version"),
    [(None, False, 5), (0, False, 5), (1, False, 8), (1, True, 5)],
)
def test_a_table_begins_behind_what_the_sink_has_for_certain(
    tmp_path: Path, delivered: int | None, is_held: bool, version: int
) -> None:
    assignments, old, new = Assignments(tmp_path), kafka(), kafka(compression_type="zstd")
    for name in "abc":
        place(assignments, name, old)
    folder = assignments.folder(f"{group_kind(old)}-001")
    one = GroupOffset().next(
        {
            name: (at(0), Entry(offset=at(5), generation=1, moved=1, changes="auto"))
            for name in "abc"
        }
    )
    two = one.next(
        {name: (at(5), Entry(offset=at(8), generation=1, moved=2, changes="auto")) for name in "ab"}
    )
    log(folder, 0, one, is_done=True)
    log(folder, 1, two, is_done=False)
    if is_held:
        write_holds(folder, {"a": Hold(number=2, generation=1, begin=at(5))})
    kind = group_kind(new) or ""
    assert assignments.unfinished("a", kind) == 1
    # Of those that stay, that are not in the batch, and that are in no group, it is nobody's.
    assert assignments.unfinished("a", group_kind(old) or "") is None
    assert assignments.unfinished("c", kind) is None
    assert assignments.unfinished("d", kind) is None
    moved = assignments.assign("a", kind, {}, 9, delivered=delivered)
    assert moved.begin == at(version)
    assert assignments.assign("c", kind, {}, 9, delivered=delivered).begin == at(5)


@pytest.mark.parametrize("is_published", [False, True])
def test_a_table_that_leaves_files_of_lines_begins_behind_the_batch_whose_lines_are_there(
    tmp_path: Path, is_published: bool
) -> None:
    lines = read_sink("sink", {"kind": "file", "path": "/out"})

    async def scenario() -> Offset | None:
        state = tmp_path / "spark"
        assert place(Assignments(state), "a", lines) == "lines-001"
        folder = Assignments(state).folder("lines-001")
        one = GroupOffset().next(
            {"a": (at(0), Entry(offset=at(5), generation=1, moved=1, changes="auto"))}
        )
        log(folder, 0, one, is_done=True)
        two = one.next({"a": (at(5), Entry(offset=at(8), generation=1, moved=2, changes="auto"))})
        log(folder, 1, two, is_done=False)
        if is_published:
            write_published(folder, 1, "")
        section = {"path": "/lake/a", "sink": kafka()}
        config = Config(state=str(tmp_path), tables={"a": TableConfig.model_validate(section)})
        groups = Groups(SparkEngine(config, Telemetry(), once=False), 9)
        placed = await groups.place("a", config.tables["a"])
        assert not isinstance(placed, PendingPlacement)
        return placed[1].begin

    assert asyncio.run(scenario()) == at(8 if is_published else 5)


def test_a_batch_that_is_repeated_has_no_rows_of_a_table_that_is_elsewhere_by_then(
    tmp_path: Path,
) -> None:
    assignments = Assignments(tmp_path / "spark")
    tables = {name: TableBuilder(tmp_path / name) for name in "ab"}
    old, new = kafka(), kafka(compression_type="zstd")

    def section(name: str) -> TableConfig:
        return TableConfig.model_validate(
            {"path": str(tables[name].folder), "from": "0", "sink": old}
        )

    async def scenario() -> None:
        for name, builder in tables.items():
            builder.append([{"id": 0}])
            place(assignments, name, old)
        folder = assignments.folder(f"{group_kind(old)}-001")
        members = tuple(GroupTable(name=name, config=section(name)) for name in "ab")
        Members(number=1, tables=members).write(folder)
        follower = GroupFollower(folder)
        end = await follower.latest(GroupOffset())
        log(folder, 0, end, is_done=False)
        await follower.aclose()
        place(assignments, "a", new)
        # Neither as one that leaves nor as one that nobody knows any more.
        for number, left in ((2, (members[0].leaving(),)), (3, ())):
            Members(number=number, tables=(members[1], *left)).write(folder)
            follower = GroupFollower(folder)
            assert [rows.name for rows in await follower.rows(GroupOffset(), end)] == ["b"]
            await follower.aclose()

    with patch("tailerd.spark.group.follower.WAIT_SECONDS", 0.0):
        asyncio.run(scenario())


def left_behind(tmp_path: Path, names: str) -> Config:
    """Return a configuration of tables that leave a group with a batch that is not finished."""
    old, new = kafka(), kafka(compression_type="zstd")
    tables: Any = {name: {"path": f"/{name}", "sink": new} for name in names}
    fields: Any = {"state": str(tmp_path / "state"), "tables": tables}
    assignments = Assignments(tmp_path / "state/spark")
    for name in names:
        place(assignments, name, old)
    folder = assignments.folder(f"{group_kind(old)}-001")
    one = GroupOffset().next(
        {
            name: (at(2), Entry(offset=at(5), generation=1, moved=1, changes="auto"))
            for name in names
        }
    )
    log(folder, 0, one, is_done=False)
    return Config(**fields)


def test_tables_that_leave_a_group_together_ask_its_sink_once_and_wait_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(folder: Path, group: str, name: str, sink: SinkConfig) -> int:
        asked.append(name)
        return 0

    monkeypatch.setattr("tailerd.spark.group.grouped_pipeline.delivered_by", answer)
    config = left_behind(tmp_path, "abcd")

    async def scenario() -> None:
        groups = Groups(SparkEngine(config, Telemetry(), once=False), 9)
        for name in "ab":
            placed = await groups.place(name, config.tables[name])
            assert not isinstance(placed, PendingPlacement)
            assert placed[1].begin == at(5)
        assert asked == ["a"]
        # One that stays goes there: what the group has delivered is asked for anew behind that.
        stays = config.tables["d"].model_copy(update={"sink": kafka()})
        placed = await groups.place("d", stays)
        assert not isinstance(placed, PendingPlacement)
        placed[0]._task = asyncio.ensure_future(asyncio.sleep(60))
        assert isinstance(await groups.place("c", config.tables["c"]), PendingPlacement)
        placed[0]._task.cancel()
        await asyncio.wait([placed[0]._task])
        assert not isinstance(await groups.place("c", config.tables["c"]), PendingPlacement)
        assert asked == ["a", "c"]

    asyncio.run(scenario())


async def test_no_table_waits_while_another_asks_dead_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    is_over, joined, all_told = threading.Event(), asyncio.Event(), asyncio.Event()

    def answer(folder: Path, group: str, name: str, sink: SinkConfig) -> int:
        asked.append(name)
        assert is_over.wait(10)
        raise SinkError("No broker answers.")

    def join(group: TableGroup, runner: GroupedPipeline) -> None:
        assert runner.table.name == "lines"
        joined.set()

    def hear(event: events.Event) -> None:
        if isinstance(event, events.RetryScheduled):
            told.append(event)
            if len(told) == 4:
                all_told.set()

    monkeypatch.setattr("tailerd.spark.group.grouped_pipeline.delivered_by", answer)
    monkeypatch.setattr("tailerd.spark.group.left_groups.Backoff", lambda: Backoff(first_seconds=9))
    monkeypatch.setattr(TableGroup, "join", join)
    config, told = left_behind(tmp_path, "abcde"), list[events.RetryScheduled]()
    groups = Groups(SparkEngine(config, Telemetry([hear]), once=False), 9)
    sink = read_sink("sink", {"kind": "file", "path": str(tmp_path / "out")})
    tables = {name: config.tables[name] for name in "abcd"}
    tables["lines"] = TableConfig.model_validate({"path": "/l", "sink": sink})
    pipelines = [GroupedPipeline(groups, name, table) for name, table in tables.items()]
    runs = [asyncio.create_task(pipeline.run()) for pipeline in pipelines]
    try:
        async with asyncio.timeout(5):
            await joined.wait()
            # Nor does one that stays start the group while it is asked.
            stays = config.tables["e"].model_copy(update={"sink": kafka()})
            placing = asyncio.create_task(groups.place("e", stays))
            await asyncio.sleep(0.05)
            assert not placing.done()
            is_over.set()
            assert not isinstance(await placing, PendingPlacement)
            await all_told.wait()
        assert len(asked) == 1
        assert [event.error for event in told] == ["No broker answers."] * 4
    finally:
        is_over.set()
        for pipeline in pipelines:
            pipeline.stop()
        await asyncio.gather(*runs)
        await groups.close()


async def test_tables_that_wait_until_a_group_was_asked_count_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over = threading.Event()

    def answer(folder: Path, group: str, name: str, sink: SinkConfig) -> int:
        assert is_over.wait(10)
        return 0

    monkeypatch.setattr("tailerd.spark.group.grouped_pipeline.delivered_by", answer)
    config = left_behind(tmp_path, "ab")
    groups = Groups(SparkEngine(config, Telemetry(), once=False), 4)
    leaves = asyncio.create_task(groups.place("a", config.tables["a"]))
    await asyncio.sleep(0.05)
    stays = config.tables["b"].model_copy(update={"sink": kafka()})

    async def enter(name: str) -> TableGroup:
        placed = await groups.place(name, stays)
        assert not isinstance(placed, PendingPlacement)
        # What joining does to how many it has.
        placed[0]._runners[name] = cast("Any", None)
        return placed[0]

    try:
        placing = [asyncio.create_task(enter(f"new{n}")) for n in range(9)]
        await asyncio.sleep(0.05)
        is_over.set()
        async with asyncio.timeout(5):
            found = {await each for each in placing}
            await leaves
    finally:
        is_over.set()
        await groups.close()
    assert sorted(map(len, found)) == [1, 4, 4]


async def test_what_is_wrong_with_the_brokers_asked_is_the_trouble_of_who_asked() -> None:
    left, is_over = LeftGroups(), threading.Event()

    def wrong() -> int:
        assert is_over.wait(10)
        raise ConfigError("No such topic there.")

    first = asyncio.create_task(left.ask("g", "one", wrong))
    await asyncio.sleep(0.01)
    other = asyncio.create_task(left.ask("g", "two", lambda: 7))
    await asyncio.sleep(0.01)
    is_over.set()
    with pytest.raises(ConfigError):
        await first
    await other
    assert left.answer("g", "two") is None
    await left.ask("g", "two", lambda: 7)
    assert left.answer("g", "two") == Delivered(batch_id=7)


async def test_a_table_that_waits_for_the_group_it_leaves_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, has_said = list[events.RetryScheduled](), asyncio.Event()

    def hear(event: events.Event) -> None:
        if isinstance(event, events.RetryScheduled):
            heard.append(event)
            has_said.set()

    monkeypatch.setattr("tailerd.spark.group.grouped_pipeline._LOOK_SECONDS", 0.001)
    config = left_behind(tmp_path, "ab")
    groups = Groups(SparkEngine(config, Telemetry([hear]), once=False), 9)
    stays = config.tables["b"].model_copy(update={"sink": kafka()})
    placed = await groups.place("b", stays)
    assert not isinstance(placed, PendingPlacement)
    # It is tried again for ever: its brokers are gone.
    placed[0]._task = asyncio.ensure_future(asyncio.sleep(60))
    pipeline = GroupedPipeline(groups, "a", config.tables["a"])
    run = asyncio.create_task(pipeline.run())
    async with asyncio.timeout(5):
        await has_said.wait()
    pipeline.stop()
    await run
    await groups.close()
    assert (heard[0].table, heard[0].error_code, heard[0].attempt) == ("a", "engine", 1)
    for words in (f"the group {group_kind(kafka())}-001", "brokers", "offsets reset a"):
        assert words in heard[0].error
