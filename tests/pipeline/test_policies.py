"""Gaps, other tables and damaged commits: what each policy does, and that none of it is silent."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tailerd.changefeed.offset import Phase
from tailerd.errors import (
    BucketMissingError,
    MissingDataFileError,
    MissingVersionError,
    NotATableError,
    SinkError,
    TailerdError,
)
from tailerd.pipeline.policies import OnCorruptCommit, OnGap
from tailerd.telemetry import events
from tests.doubles.fake_source import FakeSource, FakeTable
from tests.pipeline.collecting_sink import CollectingSink
from tests.pipeline.runs import Run


def commit_rows(table: FakeTable, *commits: tuple[int, ...]) -> FakeTable:
    """Append commits with one file a row."""
    for rows in commits:
        table.commit(*([row] for row in rows))
    return table


async def behind_a_gap(on_gap: OnGap) -> tuple[Run, CollectingSink]:
    """A run that delivered versions 0 and 1, then lost 2 and 3 of 0..4."""
    sink = CollectingSink()
    run = Run(table=commit_rows(FakeTable(), (0,), (1,)), sink=sink, on_gap=on_gap)
    await run.once()
    commit_rows(run.table, (2,), (3,), (4,))
    run.table.first = 4
    run.events.clear()
    return run, sink


async def test_a_gap_stops_the_pipeline_by_default() -> None:
    run, sink = await behind_a_gap(OnGap.STOP)
    pipeline = await run.once()
    assert pipeline.error is not None
    assert pipeline.error.code == "missing_version"
    assert sink.ids == [0, 1]
    assert not run.reported(events.GapMet)


@pytest.mark.parametrize(
    ("on_gap", "version", "ids"),
    [(OnGap.SNAPSHOT, 4, [0, 1, 0, 1, 2, 3, 4, 5]), (OnGap.LATEST, 5, [0, 1, 5])],
)
async def test_a_gap_is_crossed_as_the_policy_says_and_told_to_all(
    on_gap: OnGap, version: int, ids: list[int]
) -> None:
    run, sink = await behind_a_gap(on_gap)
    first = await run.once()
    commit_rows(run.table, (5,))
    second = await run.once()
    assert (first.error, second.error) == (None, None)
    assert sink.ids == ids
    (reported,) = run.reported(events.GapMet)
    assert isinstance(reported, events.GapMet)
    assert (reported.start_version, reported.end_version, reported.error_code) == (
        2,
        version,
        "missing_version",
    )
    (gap,) = sink.gaps
    assert (gap.start.version, gap.end.version, gap.is_other_history) == (2, version, False)


async def test_the_sink_hears_of_the_gap_before_the_offset_moves() -> None:
    run, sink = await behind_a_gap(OnGap.SNAPSHOT)
    run.sink = failing_sink = CollectingSink(failing("note_gap", SinkError("full"), 99))
    failing_sink.kept = dict(sink.kept)
    run.max_attempts = 2
    pipeline = await run.once()
    assert isinstance(pipeline.error, SinkError)
    saved = await run.offsets.load("orders")
    assert saved is not None
    assert saved.offset.version == 2
    assert not run.reported(events.GapMet)


async def test_a_missing_version_that_from_requests_is_no_gap() -> None:
    table = commit_rows(FakeTable(first=2), (0,), (1,), (2,))
    run = Run(table=table, start="0", on_gap=OnGap.SNAPSHOT)
    run.source = FakeSource(table, failing("initial_offset", MissingDataFileError("gone"), 9))
    pipeline = await run.once()
    assert pipeline.error is not None
    assert not run.reported(events.GapMet)


async def test_a_log_that_vanishes_as_fast_as_it_is_read_is_waited_for() -> None:
    run, _ = await behind_a_gap(OnGap.SNAPSHOT)
    run.table.first = 99
    run.max_attempts = 4
    run.source = FakeSource(run.table, failing("plan", MissingVersionError("cleaned up again"), 99))
    pipeline = await run.once()
    assert pipeline.error is not None
    assert pipeline.error.code == "missing_version"
    assert len(run.reported(events.GapMet)) == 4
    assert len(run.reported(events.RetryScheduled)) == 3


@pytest.mark.parametrize(
    ("on_gap", "new_ids"), [(OnGap.SNAPSHOT, [10, 11, 12]), (OnGap.LATEST, [12])]
)
async def test_a_table_made_anew_is_another_history(on_gap: OnGap, new_ids: list[int]) -> None:
    sink = CollectingSink()
    run = Run(table=commit_rows(FakeTable(), (0,), (1,), (2,)), sink=sink, on_gap=on_gap)
    await run.once()
    run.table = commit_rows(FakeTable(table_id="table-2"), (10,), (11,))
    assert (await run.once()).error is None
    commit_rows(run.table, (12,))
    assert (await run.once()).error is None
    (gap,) = sink.gaps
    assert gap.is_other_history
    assert [
        i for start, ids in sink.kept.items() if start.table_id == "table-2" for i in ids
    ] == new_ids
    saved = await run.offsets.load("orders")
    assert saved is not None
    assert (saved.offset.table_id, saved.offset.version) == ("table-2", 3)
    (reported,) = run.reported(events.GapMet)
    assert isinstance(reported, events.GapMet)
    assert reported.error_code == "table_recreated"


async def test_the_sink_is_not_resumed_with_an_offset_of_another_table() -> None:
    sink = CollectingSink()
    run = Run(table=commit_rows(FakeTable(), (0,)), sink=sink)
    await run.once()
    run.table = commit_rows(FakeTable(table_id="table-2"), (10,))
    sink.resumed.clear()
    pipeline = await run.once()
    assert pipeline.error is not None
    assert pipeline.error.code == "table_recreated"
    assert sink.resumed == []


async def test_a_rewritten_log_under_the_same_table_id_is_noticed_by_its_schema() -> None:
    run = Run(table=commit_rows(FakeTable(), (0,), (1,)))
    await run.once()
    run.table.schema_id = "schema-2"
    pipeline = await run.once()
    assert pipeline.error is not None
    assert pipeline.error.code == "table_recreated"
    assert "another schema" in str(pipeline.error)


@pytest.mark.parametrize("error", [NotATableError("dropped"), BucketMissingError("dropped")])
async def test_a_table_that_disappears_is_waited_for_where_a_gap_may_be_crossed(
    error: TailerdError,
) -> None:
    sink = CollectingSink()
    run = Run(table=commit_rows(FakeTable(), (0,)), sink=sink, on_gap=OnGap.SNAPSHOT)
    await run.once()
    gone = failing("identity", error, 3)
    run.table = commit_rows(FakeTable(table_id="table-2"), (7,))
    run.source = FakeSource(run.table, gone)
    assert (await run.once()).error is None
    assert sorted(sink.ids) == [0, 7]
    assert len(run.reported(events.RetryScheduled)) == 3


async def test_a_damaged_commit_stops_the_pipeline_by_default() -> None:
    sink = CollectingSink()
    run = Run(table=commit_rows(FakeTable(lost={(1, 0)}), (0,), (1,)), sink=sink)
    pipeline = await run.once()
    assert pipeline.error is not None
    assert pipeline.error.code == "missing_data_file"
    assert run.corrupt_commits.records == {}


@pytest.mark.parametrize("max_in_flight", [1, 3])
@pytest.mark.parametrize("max_files", [1, 2, 1000])
@pytest.mark.parametrize("lost", [(1, 0), (1, 3), (0, 0), (4, 1)])
async def test_of_a_damaged_commit_nothing_is_delivered_and_of_others_everything(
    lost: tuple[int, int], max_files: int, max_in_flight: int
) -> None:
    sink = CollectingSink(max_in_flight=max_in_flight)
    commits = [(0, 1), (10, 11, 12, 13), (), (30,), (40, 41)]
    run = Run(
        table=commit_rows(FakeTable(lost={lost}), *commits),
        sink=sink,
        on_corrupt_commit=OnCorruptCommit.SKIP_AND_RECORD,
        max_files=max_files,
    )
    pipeline = await run.once()
    assert pipeline.error is None
    assert sink.ids == [i for v, rows in enumerate(commits) if v != lost[0] for i in rows]
    (record,) = run.corrupt_commits.records["orders"]
    assert (record.version, record.position, record.error_code) == (lost[0], 0, "missing_data_file")
    (reported,) = run.reported(events.CommitSkipped)
    assert isinstance(reported, events.CommitSkipped)
    assert (reported.version, reported.error_code) == (lost[0], "missing_data_file")


async def test_the_record_is_kept_before_the_offset_moves() -> None:
    seen: list[int] = []

    class WatchingLog:
        async def record(self, table: str, record: object) -> str:
            saved = await run.offsets.load(table)
            assert saved is not None
            seen.append(saved.offset.version)
            return "here"

    run = Run(
        table=commit_rows(FakeTable(lost={(1, 0)}), (0,), (1,), (2,)),
        on_corrupt_commit=OnCorruptCommit.SKIP_AND_RECORD,
    )
    run.corrupt_commits = WatchingLog()  # type: ignore[assignment]
    await run.once()
    assert seen == [1]


async def test_rows_that_vanish_after_the_check_are_left_out_on_the_next_attempt() -> None:
    sink = CollectingSink()
    table = commit_rows(FakeTable(), (0,), (1,), (2,))
    run = Run(
        table=table, sink=sink, on_corrupt_commit=OnCorruptCommit.SKIP_AND_RECORD, max_files=1
    )

    reads = 0

    def vanish(here: str) -> None:
        nonlocal reads
        if here == "read":
            reads += 1
            if reads == 4:
                # Checked by the third read, gone when it is delivered.
                table.lost.add((1, 0))
                raise MissingDataFileError("gone")

    run.source = FakeSource(table, vanish)
    pipeline = await run.once()
    assert pipeline.error is None
    assert sink.ids == [0, 2]
    assert [record.version for record in run.corrupt_commits.records["orders"]] == [1]


async def test_a_damaged_file_of_the_snapshot_still_stops_the_pipeline() -> None:
    table = commit_rows(FakeTable(), (0,), (1,))
    run = Run(table=table, start="snapshot", on_corrupt_commit=OnCorruptCommit.SKIP_AND_RECORD)
    run.source = FakeSource(table, failing("read", MissingDataFileError("gone"), 99))
    pipeline = await run.once()
    assert isinstance(pipeline.error, MissingDataFileError)
    assert run.corrupt_commits.records == {}
    saved = await run.offsets.load("orders")
    assert saved is not None
    assert saved.offset.phase is Phase.SNAPSHOT


def failing(where: str, error: TailerdError, times: int) -> Callable[[str], None]:
    """Raise `error` the first times `where` is reached."""
    left = times

    def fails(here: str) -> None:
        nonlocal left
        if here == where and left:
            left -= 1
            raise error

    return fails
