"""The past that the page draws: bounded, restored, and never in the way."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tailerd.state.history import LARGEST_FILE_BYTES
from tailerd.telemetry import events
from tailerd.telemetry.history import HistoryBoard, HistorySaver
from tailerd.telemetry.series import POINT_BYTES, Series
from tailerd.telemetry.status import StatusBoard
from tailerd.telemetry.table_history import Limits
from tests.doubles.owned_state import owned_state
from tests.doubles.sim_clock import SimClock


def commit(version: int, table: str = "orders", operation: str = "WRITE") -> events.CommitObserved:
    return events.CommitObserved(
        table=table,
        version=version,
        timestamp_ms=1000 + version,
        operation=operation,
        files_added=1,
        bytes_added=100,
        files_removed=0,
        bytes_removed=0,
        rows_added=3,
        rows_removed=None,
    )


def delivered(version: int, mode: str) -> events.DeliveredCommit:
    return events.DeliveredCommit(
        version=version,
        timestamp_ms=1000 + version,
        mode=mode,
        operation="UPDATE",
        files_added=1,
        bytes_added=100,
        files_removed=0,
        bytes_removed=0,
    )


def saved(version: int) -> events.OffsetSaved:
    return events.OffsetSaved(
        table="orders", engine="arrow", version=version, offset="", duration_seconds=0.0
    )


def measured(files: int) -> events.TableMeasured:
    return events.TableMeasured(
        table="orders",
        version=1,
        files=files,
        bytes=files * 10,
        rows=None,
        deletion_vectors=0,
        deleted_rows=0,
        size_counts=(files,),
        checkpoint_version=None,
        commits_since_checkpoint=1,
        bytes_since_checkpoint=1,
        log_files=1,
        retention_seconds=1.0,
        pending_files=0,
        pending_bytes=0,
    )


def job(name: str) -> events.LogMaintained:
    return events.LogMaintained(
        table="orders",
        job=name,
        version=1,
        result="written",
        files=1,
        bytes=1,
        duration_seconds=0.1,
        reason="Due.",
        summary="Wrote it.",
    )


def schema(version: int, *columns: tuple[str, str]) -> events.SchemaObserved:
    return events.SchemaObserved(
        table="orders", version=version, timestamp_ms=version, columns=columns
    )


class Told:
    """A board with what it shows of `orders`."""

    def __init__(self, budget_bytes: int = 1 << 20) -> None:
        self.clock = SimClock()
        self.board = HistoryBoard(self.clock, budget_bytes)

    def tell(self, *reported: events.Event) -> None:
        for event in reported:
            self.board.handle(event)

    @property
    def shown(self) -> dict[str, object]:
        return self.board.to_json("orders")

    def commits(self, field: str) -> list[object]:
        commits = self.shown["commits"]
        assert isinstance(commits, list)
        return [each.get(field) for each in commits]


def test_a_commit_has_how_it_was_read_and_when_it_was_delivered() -> None:
    reported = Told()
    reported.tell(commit(1), commit(2), commit(3))
    details = (delivered(1, "cdc"), delivered(2, "files"))
    reported.tell(
        events.CommitsDelivered(
            table="orders", engine="arrow", commits={"cdc": 1, "files": 1}, details=details
        )
    )
    assert reported.commits("mode") == ["cdc", "files", None]
    now_ms = reported.clock.now_ms()
    assert reported.commits("delivered_ms") == [now_ms, now_ms, None]
    reported.tell(saved(4))
    assert reported.commits("delivered_ms") == [now_ms] * 3


def test_a_commit_may_be_delivered_before_the_growth_tracker_sees_it() -> None:
    reported = Told()
    reported.tell(
        events.CommitsDelivered(
            table="orders", engine="arrow", commits={"cdc": 1}, details=(delivered(7, "cdc"),)
        )
    )
    assert (reported.commits("operation"), reported.commits("rows_added")) == (["UPDATE"], [None])
    reported.tell(commit(7))
    assert (reported.commits("rows_added"), reported.commits("mode")) == ([3], ["cdc"])


@pytest.mark.parametrize("tables", [1, 10, 1000])
def test_all_tables_together_stay_within_the_budget(tables: int) -> None:
    reported = Told(budget_bytes=16 << 20)
    for number in range(tables):
        for version in range(300 if tables < 1000 else 40):
            reported.tell(commit(version, f"t{number}", "x" * 1000))
    size = sum(len(json.dumps(reported.board.to_json(f"t{number}"))) for number in range(tables))
    # As text; as objects it is a few times that, which the limits are reckoned with.
    assert size < 16 << 20
    assert len(json.dumps(reported.board.to_json("t0"))) > 1000


def test_limits_never_fall_below_what_is_of_use() -> None:
    least = Limits.within(-100)
    assert least == Limits.within(0)
    assert min(least.commits, least.points, least.others) >= 3


def test_growth_is_kept_for_ever_and_gets_coarser() -> None:
    reported = Told()
    points: list[list[int]] = []
    for hour in range(2000):
        reported.clock.jump_wall(3_600_000 * (hour > 0))
        reported.tell(measured(hour))
        points = reported.shown["growth"]  # type: ignore[assignment]
        assert len(points) <= 288
    assert points[-1][1] == 1999
    times = [point[0] for point in points]
    assert times == sorted(times)
    assert times[-1] - times[0] > 1000 * 3_600_000


def test_measurements_of_the_same_seconds_are_one() -> None:
    reported = Told()
    reported.tell(measured(1), measured(2), measured(3))
    growth = reported.shown["growth"]
    assert isinstance(growth, list)
    assert [point[1] for point in growth] == [3]


def test_schema_changes_are_told_in_words() -> None:
    reported = Told()
    reported.tell(schema(1, ("a", "long"), ("b", "string")))
    reported.tell(schema(1, ("a", "long"), ("b", "string")))
    reported.tell(schema(4, ("a", "decimal(20,0)"), ("c", "date")))
    reported.tell(schema(5, ("c", "date"), ("a", "decimal(20,0)")))
    changes = reported.shown["schema_changes"]
    assert isinstance(changes, list)
    assert [(each["version"], each["changes"]) for each in changes] == [
        (4, ["added c date", "dropped b string", "a: long became decimal(20,0)"]),
        (5, ["the order of the columns changed"]),
    ]


def test_checksums_leave_room_for_other_jobs() -> None:
    reported = Told(budget_bytes=4 << 20)
    reported.tell(job("checkpoint"))
    for _ in range(100):
        reported.tell(job("checksum"))
    jobs = reported.shown["jobs"]
    assert isinstance(jobs, list)
    assert jobs[0]["job"] == "checkpoint"
    assert len(jobs) == 20


def delivery(rows: int, seconds: float) -> events.DeliveryAcknowledged:
    return events.DeliveryAcknowledged(
        table="orders",
        sink="file",
        engine="arrow",
        start_version=1,
        end_version=1,
        rows={"insert": rows},
        bytes=1,
        duration_seconds=seconds,
    )


async def sampled(reported: Told, times: int, seconds: float, **lags: float) -> None:
    for _ in range(times):
        await reported.clock.advance(seconds)
        reported.board.sample(dict(lags))


async def test_deliveries_become_rates_and_quantiles_of_a_table_and_of_all() -> None:
    reported = Told()
    reported.board.sample({"orders": 0.0, "idle": 0.0})
    reported.tell(*(delivery(10, seconds) for seconds in (0.1, 0.1, 0.1, 8.0)))
    await sampled(reported, 1, 5.0, orders=3.0, idle=0.0)
    await sampled(reported, 1, 5.0, orders=1.0, idle=0.0)
    columns = reported.board.series("orders", 900)["columns"]
    points = reported.board.series("orders", 900)["points"]
    assert columns == ["rows_per_second", "lag_seconds", "p50_seconds", "p99_seconds"]
    assert isinstance(points, list)
    rates = [point[1] for point in points]
    assert max(rates) == pytest.approx(40 / 5, rel=0.01)
    assert points[-1][2] in (1.0, 3.0)
    assert {round(point[3], 1) for point in points if point[3]} == {0.1}
    assert max(point[4] for point in points if point[4]) == pytest.approx(8.0, rel=0.1)
    everything = reported.board.series(None, 900)["points"]
    assert isinstance(everything, list)
    assert max(point[1] for point in everything) == max(rates)
    assert max(point[2] for point in everything) == 3.0
    idle = reported.board.series("idle", 900)["points"]
    assert isinstance(idle, list)
    assert {point[3] for point in idle} == {None}


async def test_a_week_is_kept_in_few_points_and_its_newest_minutes_in_more() -> None:
    reported = Told()
    await sampled(reported, 9 * 24 * 60, 60.0, orders=1.0)
    for seconds, width in ((900, 10), (3600, 60), (21_600, 60), (86_400, 900), (604_800, 900)):
        shown = reported.board.series("orders", seconds)
        points = shown["points"]
        assert isinstance(points, list)
        assert shown["width_seconds"] == width
        assert len(points) <= seconds // width + 1
        assert points[-1][0] - points[0][0] > seconds * 0.9 - 60
    assert len(json.dumps(reported.board.dump("orders")["series"])) < 40_000


@pytest.mark.parametrize("tables", [10, 1000])
async def test_series_of_all_tables_share_the_budget(tables: int) -> None:
    reported = Told(budget_bytes=8 << 20)
    lags = {f"t{number}": 1.0 for number in range(tables)}
    await sampled(reported, 20 if tables == 1000 else 800, 900.0, **lags)
    points = sum(
        sum(len(each.times) for each in reported.board._series[name]._all) for name in lags
    )
    assert points * POINT_BYTES <= 4 << 20


def shown_events(reported: Told) -> list[tuple[object, ...]]:
    found = reported.shown["events"]
    assert isinstance(found, list)
    return [(each["kind"], each["level"], each["count"]) for each in found]


def retry(code: str) -> events.RetryScheduled:
    return events.RetryScheduled(
        table="orders", engine="arrow", attempt=1, wait_seconds=1.0, error_code=code, error="Down."
    )


def test_the_timeline_counts_what_repeats_and_outlives_a_restart(tmp_path: Path) -> None:
    before, after = Told(), Told()
    before.tell(
        events.OffsetChosen(table="orders", engine="arrow", version=3, is_resumed=False),
        *[retry("storage_unreachable")] * 50,
        events.GapMet(
            table="orders",
            engine="arrow",
            start_version=4,
            end_version=9,
            error_code="missing_version",
            error="Versions 4 to 8 are gone.",
        ),
        schema(9, ("a", "long")),
    )
    known = [("start", "info", 1), ("retry", "warning", 50), ("gap", "error", 1)]
    assert shown_events(before) == known
    keeper(before, tmp_path, []).save()
    # The next process tells of its start before it has read what was saved.
    after.tell(events.OffsetChosen(table="orders", engine="arrow", version=9, is_resumed=True))
    after.tell(commit(9), schema(12, ("a", "string")))
    keeper(after, tmp_path, []).restore()
    assert shown_events(after) == [*known, ("start", "info", 1), ("schema", "info", 1)]
    assert after.board.events()[0]["table"] == "orders"
    assert [each["kind"] for each in after.board.events()] == ["retry", "gap"]
    changes = after.shown["schema_changes"]
    assert isinstance(changes, list)
    assert changes[0]["changes"] == ["a: long became string"]


async def test_series_go_on_after_a_restart(tmp_path: Path) -> None:
    before, after = Told(), Told()
    await sampled(before, 100, 10.0, orders=7.0)
    before.tell(commit(1))
    await asyncio.to_thread(keeper(before, tmp_path, []).save)
    await after.clock.advance(1100)
    await sampled(after, 3, 10.0, orders=1.0)
    await asyncio.to_thread(keeper(after, tmp_path, []).restore)
    points = after.board.series("orders", 900)["points"]
    assert isinstance(points, list)
    assert {point[2] for point in points} == {7.0, 1.0}
    times = [point[0] for point in points]
    assert times == sorted(set(times))
    assert len(after.board.series(None, 900)["points"]) == len(points)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "series",
    [
        None,
        1,
        [1],
        [{"width_seconds": 10}],
        [{"width_seconds": 10, "times": "x", "values": ""}],
        [{"width_seconds": 10, "times": "AAAAAA==", "values": ""}],
    ],
)
def test_damaged_series_are_as_good_as_none(series: object) -> None:
    found = Series()
    assert found.restore(series) is False
    assert found.save() == Series().save()


def keeper(reported: Told, folder: Path, complaints: list[str]) -> HistorySaver:
    return HistorySaver(
        reported.board,
        owned_state(folder).history,
        status=StatusBoard([("orders", "arrow")], reported.clock),
        clock=reported.clock,
        objectives=dict,
        on_unsaved=lambda path, reason: complaints.append(f"{path}: {reason}"),
    )


def test_a_restart_goes_on_with_what_was_saved(tmp_path: Path) -> None:
    before, after = Told(), Told()
    before.tell(commit(1), measured(3), schema(1, ("a", "long")), job("checkpoint"))
    keeper(before, tmp_path, []).save()
    keeper(after, tmp_path, []).restore()
    assert after.shown == before.shown
    after.tell(commit(2), schema(2, ("b", "long")))
    assert after.commits("version") == [1, 2]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"commits": [',
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        b'{"commits": [1]}',
        b'{"commits": [{"version": "1"}]}',
        b"[" * 100_000,
        b'{"commits":[],"growth":[[1,2]],"growth_width_ms":1,"schema":null,"schema_changes":[],'
        b'"jobs":[],"errors":[]}',
        b'{"commits":[],"growth":[],"growth_width_ms":1,"schema":{"columns":[["a"]]},'
        b'"schema_changes":[],"jobs":[],"errors":[]}',
        b" " * (LARGEST_FILE_BYTES + 1),
    ],
    ids=lambda content: repr(content[:24]),
)
def test_a_torn_or_foreign_file_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "history").mkdir()
    (tmp_path / "history" / "orders.0.json").write_bytes(content)
    reported = Told()
    keeper(reported, tmp_path, []).restore()
    reported.tell(commit(1), measured(1), schema(1, ("a", "long")), schema(2, ("b", "long")))
    assert reported.commits("version") == [1]


def test_a_file_cut_anywhere_is_tolerated(tmp_path: Path) -> None:
    before = Told()
    before.tell(commit(1), measured(3), schema(1, ("a", "long")))
    keeper(before, tmp_path, []).save()
    path = tmp_path / "history" / "orders.0.json"
    whole = path.read_bytes()
    for cut in {*range(0, len(whole), 11), *range(len(whole) - 20, len(whole))}:
        path.write_bytes(whole[:cut])
        reported = Told()
        keeper(reported, tmp_path, []).restore()
        assert reported.commits("version") == []


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    complaints: list[str] = []
    reported = Told()
    keeping = keeper(reported, tmp_path / "file", complaints)
    for version in range(3):
        reported.tell(commit(version))
        keeping.save()
    assert len(complaints) == 1
    assert "a file is where a folder must be" in complaints[0]


def test_the_timeline_shows_changes_of_the_delivered_columns() -> None:
    told = Told()
    summary = "added email (string), renamed a to b"
    told.tell(events.SchemaChanged(table="orders", engine="arrow", version=4, summary=summary))
    found = told.shown["events"]
    assert isinstance(found, list)
    [record] = found
    assert (record["kind"], record["version"]) == ("schema delivered", 4)
    assert record["text"] == "Added email (string), renamed a to b."
