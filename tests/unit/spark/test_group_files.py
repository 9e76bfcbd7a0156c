"""What a group keeps in files: offsets of many tables, who is in it, who is held back, where."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailerd.changefeed.offset import Offset, Phase, Version
from tailerd.config import Config, TableConfig
from tailerd.config.sections import read_sink
from tailerd.errors import (
    BugError,
    ConfigError,
    MissingDataFileError,
    OffsetError,
    SinkError,
    StorageError,
    TailerdError,
    UnreadableDataFileError,
)
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.spark.attribution import attribute_to_table, attributed_to
from tailerd.spark.engine import SparkEngine
from tailerd.spark.group.assignments import Assignments, group_kind
from tailerd.spark.group.group_offset import Entry, GroupOffset
from tailerd.spark.group.grouped_pipeline import GroupedPipeline, Groups
from tailerd.spark.group.members import GroupTable, Members
from tailerd.spark.group.quarantine import Hold, read_holds, stands_at, write_holds
from tailerd.spark.group.report import Problem, SourceReport, Standing
from tailerd.spark.group.table_group import TableGroup
from tailerd.spark.progress import BatchReport
from tailerd.spark.query_errors import error_of, trailer_of
from tailerd.telemetry import Telemetry

NAMES = st.text("abcXYZ09._-", min_size=1, max_size=8)
OFFSETS = st.builds(
    Offset,
    table_id=st.sampled_from(["id-1", "id-2"]),
    version=st.integers(0, 10**12).map(Version),
    phase=st.sampled_from(Phase),
    position=st.integers(0, 2**64 - 1),
    mark=st.sampled_from(["", "4a1b", "4a1b/r"]),
)
ENTRIES = st.builds(
    Entry,
    offset=OFFSETS,
    generation=st.integers(1, 9),
    moved=st.integers(0, 10**9),
    changes=st.sampled_from(["auto", "files"]),
)


def at(version: int) -> Offset:
    return Offset(table_id="id-1", version=Version(version))


@given(
    st.integers(0, 10**9),
    st.dictionaries(NAMES, ENTRIES, max_size=5),
    st.dictionaries(NAMES, st.tuples(OFFSETS, ENTRIES), max_size=3),
)
def test_the_offset_of_a_group_survives_as_the_same_text(
    number: int, tables: dict[str, Entry], steps: dict[str, tuple[Offset, Entry]]
) -> None:
    offset = GroupOffset(number=number, tables=tables).next(steps)
    text = json.dumps(offset.fields())
    again = GroupOffset.of(json.loads(text))
    assert again == offset
    assert json.dumps(again.fields()) == text
    assert again.number == number + 1
    assert again.begins == {name: begin for name, (begin, _) in steps.items()}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"format": 2, "number": 0, "tables": {}, "begins": {}},
        {"format": 1, "table_id": "x", "version": 3, "phase": "follow", "position": 0},
        {"format": 1, "number": -1, "tables": {}, "begins": {}},
        {"format": 1, "number": 1, "tables": {"a": ["id", 1, "follow", 0, 1, 1]}, "begins": {}},
        {
            "format": 1,
            "number": 1,
            "tables": {"a": ["id", 1, "gone", 0, 1, 1, "auto"]},
            "begins": {},
        },
        {"format": 1, "number": 1, "tables": [], "begins": {}},
    ],
)
def test_what_is_no_offset_of_a_group_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(OffsetError):
        GroupOffset.of(fields)


@pytest.mark.parametrize("text", ["", "nul", "[1]", "3"])
def test_the_text_of_an_offset_that_is_damaged_is_refused(text: str) -> None:
    with pytest.raises(OffsetError, match="damaged"):
        GroupOffset.from_json(text)


async def test_a_batch_of_a_life_before_a_reset_moves_nothing(tmp_path: Path) -> None:
    settings = {"tables": {"t": {"path": "/t", "sink": {"kind": "file", "path": "/out"}}}}
    config = Config.model_validate(settings)
    engine = SparkEngine(config, Telemetry(), once=False)
    group = TableGroup(engine, "lines-001", tmp_path)
    told: list[int] = []

    class PipelineRunner(GroupedPipeline):
        def moved(self, end: GroupOffset, duration_seconds: float) -> None:
            told.append(end.tables["t"].generation)

    runner = PipelineRunner(Groups(engine, 2), "t", config.tables["t"])
    runner.table = GroupTable(name="t", config=config.tables["t"], generation=2)
    group._runners["t"] = runner
    for number, generation in ((1, 1), (2, 2)):
        entry = Entry(offset=at(9), generation=generation, moved=number, changes="auto")
        end = GroupOffset(number=number, tables={"t": entry}, begins={"t": at(9)})
        text = json.dumps(end.fields())
        group._progressed(
            BatchReport(start="", end=text, head="", observed={}, duration_seconds=0.1)
        )
    assert told == [2]


def test_a_hold_counts_until_a_later_batch_moves_the_table() -> None:
    hold = Hold(number=7, generation=1, begin=at(3))
    assert stands_at(Entry(offset=at(5), generation=1, moved=7, changes="auto"), hold) == at(3)
    assert stands_at(Entry(offset=at(6), generation=1, moved=8, changes="auto"), hold) == at(6)
    assert stands_at(Entry(offset=at(0), generation=2, moved=7, changes="auto"), hold) == at(0)
    assert stands_at(Entry(offset=at(5), generation=1, moved=7, changes="auto"), None) == at(5)


def test_holds_are_read_as_they_were_written(tmp_path: Path) -> None:
    assert read_holds(tmp_path) == {}
    holds = {"a": Hold(number=7, generation=2, begin=at(3), attempt=4, retry_at=1.5)}
    write_holds(tmp_path / "new", holds)
    assert read_holds(tmp_path / "new") == holds
    (tmp_path / "held.json").write_text('{"a": {"num')
    with pytest.raises(OffsetError, match=r"held\.json"):
        read_holds(tmp_path)


def test_a_state_folder_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"held\.json cannot be written"):
        write_holds(tmp_path / "file", {})


@pytest.mark.parametrize(
    "error",
    [MissingDataFileError("It is gone.", remedy="Look."), UnreadableDataFileError("No Parquet.")],
)
def test_an_error_of_one_tables_rows_comes_back_from_sparks_text(error: TailerdError) -> None:
    told = attribute_to_table(error, "orders.eu-1")
    found = error_of(f"Traceback:\n  File x\n{trailer_of(told)}\n\tat java")
    assert (found.table, type(found), str(found)) == ("orders.eu-1", type(error), str(error))
    # The same error may stand for several tables.
    assert attribute_to_table(error, "other").table == "other"


def test_any_other_exception_is_told_with_its_table_too() -> None:
    found = attribute_to_table(ValueError("odd"), "orders")
    assert (found.table, type(found)) == ("orders", BugError)


def test_the_table_that_was_found_nearest_to_the_fault_stays() -> None:
    with pytest.raises(ConfigError) as raised, attributed_to("outer"):
        raise attribute_to_table(ConfigError("No topic."), "inner")
    assert raised.value.table == "inner"


def test_an_error_about_the_brokers_is_nobodys() -> None:
    with pytest.raises(SinkError) as raised, attributed_to("orders"):
        raise SinkError("They are gone.")
    assert raised.value.table == ""


KAFKA = {
    "kind": "kafka",
    "bootstrap_servers": "127.0.0.1:9092",
    "topic": "t.{table}",
    "key": ["id"],
    "producer": {
        "sasl_plain_password": "secret",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "u",
        "security_protocol": "SASL_PLAINTEXT",
    },
}
LINES = {"kind": "file", "path": "/out", "max_bytes_per_file": "1MiB"}


def section(sink: Mapping[str, object], **fields: object) -> TableConfig:
    return TableConfig.model_validate(
        {"path": "/t", "from": "3", **fields, "sink": read_sink("sink", dict(sink))}
    )


def test_members_are_read_as_they_were_written_but_for_passwords(tmp_path: Path) -> None:
    lines = GroupTable(
        name="a",
        config=section(LINES, poll_interval="2s", max_bytes_per_batch="2MiB", max_attempts=3),
        generation=3,
        begin=at(4),
    )
    kafka = GroupTable(name="b", config=section(KAFKA), is_leaving=True)
    Members(number=5, tables=(lines, kafka)).write(tmp_path)
    assert "secret" not in (tmp_path / "members.json").read_text()
    read = Members.read(tmp_path)
    assert read.number == 5
    assert read.tables[0] == lines
    sink = read.tables[1].config.sink
    assert isinstance(sink, KafkaSinkConfig)
    assert (sink.topic, sink.key, sink.producer) == ("t.{table}", ["id"], {})
    assert read.tables[1].is_leaving
    assert Members.read(tmp_path / "nothing") == Members()


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert SourceReport.read(tmp_path).members == -1
    report = SourceReport(
        pid=1,
        members=4,
        standings={
            "a": Standing(
                version=1,
                head_version=2,
                versions=2,
                oldest_ms=3,
                retention_seconds=None,
                delivered_version=0,
            )
        },
        problems={"b": Problem.of(StorageError("No.", remedy="Do."), 2, 0.5)},
    )
    report.write(tmp_path)
    again = SourceReport.read(tmp_path)
    assert again == report
    assert str(again.problems["b"].error()) == "No. Do."


def checkpoint(folder: Path, ends: list[dict[str, object]], committed: int) -> None:
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number, end in enumerate(ends):
        (folder / "offsets" / str(number)).write_text(f"v1\n{{}}\n{json.dumps(end)}")
        if number < committed:
            (folder / "commits" / str(number)).write_text("v1\n{}")


def test_tables_stay_in_their_group_and_a_full_one_is_followed_by_another(tmp_path: Path) -> None:
    assignments = Assignments(tmp_path)
    first = assignments.assign("a", "lines", {}, 2)
    assert (first.group, first.generation, first.begin) == ("lines-001", 1, None)
    full = {"lines-001": 2}
    assert assignments.assign("b", "lines", full, 2).group == "lines-002"
    assert assignments.assign("a", "lines", full, 2) == first
    assert Assignments(tmp_path).find("a") == first
    assert assignments.find("c") is None


def test_a_table_that_moves_to_another_group_goes_on_where_the_old_one_stopped(
    tmp_path: Path,
) -> None:
    assignments = Assignments(tmp_path)
    assignments.assign("a", "lines", {}, 9)
    assignments.assign("b", "lines", {}, 9)
    steps = {
        name: (at(0), Entry(offset=at(5), generation=1, moved=1, changes="auto")) for name in "ab"
    }
    one = GroupOffset().next(steps)
    two = one.next({"a": (at(5), Entry(offset=at(8), generation=1, moved=2, changes="auto"))})
    folder = assignments.folder("lines-001")
    # The second batch is not done, and of the first one `b` was held back.
    checkpoint(folder / "checkpoint", [one.fields(), two.fields()], committed=1)
    write_holds(folder, {"b": Hold(number=1, generation=1, begin=at(0))})
    assert (assignments.offset("a"), assignments.offset("b")) == (at(5), at(0))
    moved = assignments.assign("a", "kafka-1", {}, 9)
    assert (moved.group, moved.generation, moved.begin) == ("kafka-1-001", 2, at(5))
    # What it left behind is not taken for its new life when it comes back.
    back = assignments.assign("a", "lines", {}, 9)
    assert (back.generation, back.begin) == (3, at(5))
    assert assignments.offset("a") == at(5)
    assignments.begin_at("a", at(1))
    assert assignments.offset("a") == at(1)


@pytest.mark.parametrize(("committed", "version"), [(2, 9), (1, 6), (0, 2)])
def test_the_checkpoint_of_a_query_of_its_own_is_carried_over_once(
    tmp_path: Path, committed: int, version: int
) -> None:
    ends: list[dict[str, object]] = [
        {**json.loads(at(6).to_json()), "began_at": at(2).to_json()},
        json.loads(at(9).to_json()),
    ][: max(committed, 1)]
    checkpoint(tmp_path / "a", ends, committed)
    carried = Assignments(tmp_path).assign("a", "lines", {}, 9)
    assert carried.begin == at(version)
    assert not (tmp_path / "a").exists()
    assert Assignments(tmp_path).offset("a") == at(version)


def test_sinks_share_a_query_when_one_writer_can_serve_them() -> None:
    lines, parquet = read_sink("s", LINES), read_sink("s", {**LINES, "format": "parquet"})
    one, other = read_sink("s", KAFKA), read_sink("s", {**KAFKA, "topic": "u", "key": []})
    away = read_sink("s", {**KAFKA, "bootstrap_servers": "127.0.0.1:9093"})
    assert group_kind(lines) == "lines"
    assert group_kind(parquet) is None
    assert group_kind(one) == group_kind(other) != group_kind(away)
    assert group_kind(read_sink("s", {"kind": "console"})) is None
