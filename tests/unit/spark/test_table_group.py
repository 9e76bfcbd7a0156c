"""A group of tables while it runs: who is written down, held back and stopped, without a Spark."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest

from tailerd.changefeed.offset import Offset, Version
from tailerd.config import Config, TableConfig
from tailerd.config.sections import read_sink
from tailerd.errors import ConfigError, OffsetError, TailerdError
from tailerd.formats.delta.protocol.data_file import data_file
from tailerd.sinks.kafka.producer_options import revealed
from tailerd.spark.attribution import attribute_to_table
from tailerd.spark.engine import SparkEngine
from tailerd.spark.group.assignments import Assignments
from tailerd.spark.group.followed_member import FollowedMember
from tailerd.spark.group.follower import GroupFollower
from tailerd.spark.group.group_offset import Entry, GroupOffset
from tailerd.spark.group.group_query import kafka_sections
from tailerd.spark.group.members import GroupTable, Members
from tailerd.spark.group.quarantine import Hold, held_back, read_holds, write_holds
from tailerd.spark.group.report import SourceReport
from tailerd.spark.group.table_group import TableGroup
from tailerd.telemetry import Telemetry
from tests.tables.builder import TableBuilder

LINES: Mapping[str, object] = {"kind": "file", "path": "/out"}
KAFKA: Mapping[str, object] = {
    "kind": "kafka",
    "bootstrap_servers": "127.0.0.1:9092",
    "topic": "{table}",
    "producer": {
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "u",
        "sasl_plain_password": "secret",
        "security_protocol": "SASL_PLAINTEXT",
        "max_request_size": 10485760,
    },
}


def table(name: str, sink: Mapping[str, object] = LINES, **fields: object) -> GroupTable:
    given = {**sink, **fields}
    if given["kind"] == "file":
        given["path"] = f"{given['path']}/{name}"
    section = {"path": f"/lake/{name}", "sink": read_sink("sink", given)}
    return GroupTable(name=name, config=TableConfig.model_validate(section))


class PipelineRunner:
    """A table's part in a group; keeps what it is told."""

    max_attempts: int | None = None

    def __init__(self, of: GroupTable) -> None:
        self.table = of
        self.errors: list[TailerdError | None] = []
        self.waits: list[TailerdError] = []
        self.heards = 0

    def heard(self, report: SourceReport) -> None:
        self.heards += 1

    def moved(self, end: GroupOffset, duration_seconds: float) -> None:
        pass

    def retries(self, error: TailerdError, attempt: int, wait_seconds: float) -> None:
        self.waits.append(error)

    def ended(self, error: TailerdError | None) -> None:
        self.errors.append(error)


class Group(TableGroup):
    """A group whose query never starts: what the daemon does around it is called by tests."""

    def __init__(self, folder: Path, *tables: GroupTable) -> None:
        config = Config(state=str(folder), tables={t.name: t.config for t in tables})
        super().__init__(SparkEngine(config, Telemetry(), once=False), "group-001", folder)
        self.runners = {each.name: PipelineRunner(each) for each in tables}
        self._runners.update(self.runners)


def at(version: int) -> Offset:
    return Offset(table_id="id", version=Version(version))


def log_batch(folder: Path, names: str) -> GroupOffset:
    """Log the end of a first batch of some tables, as Spark does before it asks for rows."""
    steps = {
        name: (at(0), Entry(offset=at(1), generation=1, moved=1, changes="auto")) for name in names
    }
    end = GroupOffset().next(steps)
    for name in ("offsets", "commits"):
        (folder / "checkpoint" / name).mkdir(parents=True)
    (folder / "checkpoint/offsets/0").write_text(f"v1\n{{}}\n{json.dumps(end.fields())}")
    return end


def members_of_another_release(folder: Path, *names: str) -> None:
    """Tables of which one field is not known here."""
    Members(number=5, tables=tuple(table(name) for name in names)).write(folder)
    document = json.loads((folder / "members.json").read_text())
    for each in document["tables"]:
        each["config"]["new_field"] = 1
    (folder / "members.json").write_text(json.dumps(document))


def test_a_section_of_another_release_is_nobodys_trouble_while_no_batch_has_its_rows(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        members_of_another_release(tmp_path, "orders", "gone")
        group = Group(tmp_path, table("orders"))
        await group._load()
        await group._write_members()
        read = Members.read(tmp_path)
        assert (read.number, [each.name for each in read.tables]) == (6, ["orders"])

    asyncio.run(scenario())


def test_a_section_of_another_release_is_asked_for_while_a_batch_has_its_rows(
    tmp_path: Path,
) -> None:
    async def scenario(*names: str) -> None:
        members_of_another_release(tmp_path, "a", "b")
        await Group(tmp_path, *(table(name) for name in names))._load()

    log_batch(tmp_path, "a")
    with pytest.raises(ConfigError, match=r"of a in .*members\.json.*new_field.*Run the release"):
        asyncio.run(scenario("c"))
    asyncio.run(scenario("a"))
    (tmp_path / "members.json").write_text('{"number": 3, "tables": [{"name": "a"}]}')
    with pytest.raises(OffsetError, match=r"members\.json is damaged"):
        Members.read(tmp_path)


@pytest.mark.parametrize("why", ["moved", "held back"])
def test_a_section_of_another_release_is_nobodys_trouble_while_its_rows_are_left_out(
    tmp_path: Path, why: str
) -> None:
    async def scenario() -> None:
        await Group(folder, table("b"))._load()

    assignments = Assignments(tmp_path)
    folder = assignments.folder(assignments.assign("a", "lines", {}, 9).group)
    members_of_another_release(folder, "a", "b")
    batch = log_batch(folder, "a")
    with pytest.raises(ConfigError, match="of a in"):
        asyncio.run(scenario())
    if why == "moved":
        assignments.begin_at("a", at(1))
    else:
        write_holds(folder, held_back({}, batch, "a", attempt=1, retry_at=0.0))
    asyncio.run(scenario())


def test_a_table_that_joins_while_the_file_of_tables_is_read_is_not_one_that_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        Members(number=5, tables=tuple(table(name) for name in "abc")).write(tmp_path)
        group = Group(tmp_path, table("a"))
        read = Group._read

        def meanwhile(self: Group) -> object:
            found = read(self)
            asyncio.run_coroutine_threadsafe(come_and_go(), loop).result()
            return found

        async def come_and_go() -> None:
            group._runners["b"] = PipelineRunner(table("b"))
            group._runners["d"] = PipelineRunner(table("d"))
            group._take_out(group._runners["d"])

        loop = asyncio.get_running_loop()
        monkeypatch.setattr(Group, "_read", meanwhile)
        await group._load()
        await group._write_members()
        written = Members.read(tmp_path)
        assert [(each.name, each.is_leaving) for each in written.tables] == [
            *(("a", False), ("b", False), ("c", True), ("d", True)),
        ]
        # When the source goes by this file, nobody leaves any more.
        SourceReport(pid=1, members=written.number).write(tmp_path)
        await group._hear()
        assert group._leaving == {}

    asyncio.run(scenario())


def test_a_write_of_the_tables_that_nobody_waits_for_any_more_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        group = Group(tmp_path, table("a"), table("b"))
        sync, may_end = os.fsync, threading.Event()

        def slow(descriptor: int) -> None:
            may_end.wait(10)
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", slow)
        first = asyncio.ensure_future(group._write_members())
        await asyncio.sleep(0.05)
        first.cancel()
        await asyncio.wait([first])
        group._take_out(group.runners["b"])
        second = asyncio.ensure_future(group._write_members())
        await asyncio.sleep(0.05)
        may_end.set()
        await second
        read = Members.read(tmp_path)
        assert read.number == 2
        assert [(each.name, each.is_leaving) for each in read.tables] == [("a", False), ("b", True)]

    asyncio.run(scenario())


def test_a_table_that_is_resumed_within_the_batch_it_failed_in_is_tried_again(
    tmp_path: Path,
) -> None:
    builder = TableBuilder(tmp_path / "lake")
    builder.append([{"id": 0}])
    builder.append([{"id": 1}])
    good = builder.commit_path(1).read_bytes()
    builder.commit_path(1).write_bytes(
        b'{"protocol":{"minReaderVersion":9,"minWriterVersion":9}}\n'
    )
    lines = read_sink("sink", {"kind": "file", "path": str(tmp_path / "out")})
    section = {"path": str(builder.folder), "from": "0", "sink": lines}
    it = GroupTable(name="a", config=TableConfig.model_validate(section))

    async def scenario() -> None:
        group = Group(tmp_path, it, table("b"))
        first, again = group.runners["a"], PipelineRunner(it)
        await group._write_members()
        follower = GroupFollower(tmp_path)
        await follower.latest(GroupOffset())
        await group._hear()
        assert [type(error).__name__ for error in first.errors] == ["UnsupportedFeatureError"]
        # A long batch of others runs here: the source looks at no file and reports nothing.
        builder.commit_path(1).write_bytes(good)
        await group._write_members()
        group._task = asyncio.ensure_future(asyncio.sleep(0))
        group.join(again)
        group._heard = SourceReport()
        await group._hear()
        await group._write_members()
        await group._hear()
        assert again.errors == []
        end = await follower.latest(GroupOffset())
        await group._hear()
        await follower.aclose()
        assert end.tables["a"].offset.version == 2
        assert again.errors == []
        assert again.heards == 1

    with patch("tailerd.spark.group.follower.WAIT_SECONDS", 0.0):
        asyncio.run(scenario())


def test_a_clock_that_is_set_back_makes_nobody_wait_longer_than_the_longest_wait() -> None:
    async def scenario() -> None:
        later = Hold(number=1, generation=1, begin=at(1), attempt=1, retry_at=time.time() + 86400)
        wait = FollowedMember(table("a"), later, asyncio.Event()).seconds_to_retry
        assert wait is not None
        assert 29 < wait <= 30

    asyncio.run(scenario())


WRONG = ConfigError("Rows of c go to the topic dead.")


@pytest.mark.parametrize("names", ["abc", "ab"])
def test_what_is_wrong_with_one_table_stops_that_one_whether_the_batch_has_its_rows_or_not(
    tmp_path: Path, names: str
) -> None:
    async def scenario() -> None:
        group = Group(tmp_path, *(table(name) for name in "abc"))
        log_batch(tmp_path, names)
        assert await group._hold_back(attribute_to_table(WRONG, "c"))
        assert set(read_holds(tmp_path)) == set(names) & {"c"}
        assert [str(error) for error in group.runners["c"].errors] == [str(WRONG)]
        assert group.runners["a"].errors == group.runners["b"].errors == []
        assert set(group._runners) == {"a", "b"}

    asyncio.run(scenario())


def test_the_last_batch_of_a_group_has_the_options_of_its_producer(tmp_path: Path) -> None:
    tables = {name: table(name, KAFKA) for name in "abc"}
    Members(number=1, tables=tuple(tables.values())).write(tmp_path)
    [of_a_file] = [each for each in Members.read(tmp_path).tables if each.name == "c"]
    assert of_a_file.kafka is not None
    assert of_a_file.kafka.producer == {}
    leaving = {
        "c": of_a_file.leaving(),
        **{name: tables[name].leaving() for name in "ab"},
    }
    for sink in kafka_sections(leaving).values():
        assert revealed(sink.producer)["sasl_plain_password"] == "secret"
        assert sink.producer["max_request_size"] == 10485760


def test_what_a_running_table_says_of_the_producer_counts_more_than_what_one_that_leaves_says() -> (
    None
):
    old = table("a", KAFKA).leaving()
    new = table("b", KAFKA, producer={"client_id": "new"})
    for order in ({"a": old, "b": new}, {"b": new, "a": old}):
        assert {str(sink.producer) for sink in kafka_sections(order).values()} == {
            str({"client_id": "new"})
        }
    assert kafka_sections({"a": table("a")}) == {}


def test_a_table_of_a_group_is_planned_in_the_zone_of_its_section(tmp_path: Path) -> None:
    builder = TableBuilder(
        tmp_path / "lake", fields=[("id", "long"), ("at", "timestamp")], partition_by=["at"]
    )
    file = pa.table({"id": [1]})
    builder.create(builder.data_file(file, partition={"at": "2024-07-01 12:00:00"}))
    section = {
        "path": str(builder.folder),
        "from": "0",
        "partition_timezone": "Europe/Berlin",
        "sink": read_sink("sink", {"kind": "file", "path": str(tmp_path / "out")}),
    }
    member = GroupTable(name="a", config=TableConfig.model_validate(section))
    Members(number=1, tables=(member,)).write(tmp_path)

    async def scenario() -> None:
        followed = FollowedMember(Members.read(tmp_path).tables[0], None, asyncio.Event())
        step = await followed.look(None, member.limit, once=False)
        assert step is not None
        assert [data_file(task).partition_values for task in step.tasks] == [
            (("at", "2024-07-01 12:00:00+02:00:00"),)
        ]

    asyncio.run(scenario())
