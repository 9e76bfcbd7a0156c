"""Pins of other consumers: what they have yet to read is not cleaned up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailerd.errors import AccessDeniedError, PinUnreadableError, UsageError
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.maintenance.jobs import DeltaMaintenance
from tailerd.formats.delta.maintenance.policies import CheckpointPolicy, Policies
from tailerd.formats.maintenance import CleanupPolicy, RetentionFloor, no_readers
from tailerd.maintenance.pins import Pin, PinBoard, with_pins
from tailerd.storage.local import LocalStore
from tailerd.telemetry import events
from tests.doubles.faulty_store import FaultyStore
from tests.doubles.sim_clock import SimClock
from tests.integration.daemon.running import daemon, run_to_end, write_config
from tests.maintenance.test_cleanup import DAY, FIRST, commits_of, daily
from tests.maintenance.test_daemon_keeps_logs import kept, lines_of
from tests.maintenance.test_table_maintainer import Turns
from tests.tables.builder import TableBuilder
from tests.waiting import eventually


def expired(folder: Path) -> TableBuilder:
    """A table all of whose commits have expired, with checkpoints of versions 3 and 7."""
    table = daily(folder)
    table.checkpoint(3)
    table.checkpoint(7)
    return table


def cleaning(**more: object) -> Policies:
    cleanup = CleanupPolicy(is_enabled=True, **more)  # type: ignore[arg-type]
    return Policies(checkpoint=CheckpointPolicy(is_enabled=False), cleanup=cleanup)


def clock() -> SimClock:
    return SimClock(FIRST + 40 * DAY, is_automatic=True)


def board(table: TableBuilder) -> PinBoard:
    return PinBoard(LocalStore(), str(table.folder), clock=clock())


def work(table: TableBuilder, policies: Policies) -> DeltaMaintenance:
    reader = LogReader(LocalStore(), str(table.folder))
    wait_for = policies.cleanup.wait_for_pins
    floor = with_pins(board(table), wait_for, no_readers)
    return DeltaMaintenance(reader, policies, clock=clock(), floor=floor)


async def clean(table: TableBuilder, policies: Policies) -> str:
    """LogAssessment, do what is due, and return why no more was deleted."""
    job = work(table, policies)
    assessment = await job.assessment()
    for decision in assessment.decisions:
        if decision.is_due:
            await job.apply(assessment, decision)
    [cleanup] = [each for each in assessment.decisions if each.job == "cleanup"]
    return cleanup.reason


async def test_a_pinned_version_and_the_one_before_it_are_kept(tmp_path: Path) -> None:
    table = expired(tmp_path)
    await board(table).set(Pin(name="export", version=5))
    reason = await clean(table, cleaning())
    assert commits_of(table)[0] == 3
    assert reason.endswith("Version 4 is still needed by the pin export.")
    await board(table).set(Pin(name="export", version=9))
    await clean(table, cleaning())
    assert commits_of(table)[0] == 7


@pytest.mark.parametrize(
    ("pins", "oldest"),
    [
        ({"a": 20, "b": 5}, 3),
        ({"a": 4}, 3),
        ({"a": 3}, 0),
        ({"a": 0}, 0),
        ({}, 7),
    ],
    ids=["the lowest counts", "right at a checkpoint", "right before it", "the first", "none"],
)
async def test_what_all_pins_want_is_kept(
    tmp_path: Path, pins: dict[str, int], oldest: int
) -> None:
    table = expired(tmp_path)
    for name, version in pins.items():
        await board(table).set(Pin(name=name, version=version))
    await clean(table, cleaning())
    assert commits_of(table)[0] == oldest


async def test_an_expired_pin_counts_no_more(tmp_path: Path) -> None:
    table, now_ms = expired(tmp_path), FIRST + 40 * DAY
    await board(table).set(Pin(name="export", version=1, expires_ms=now_ms))
    await board(table).set(Pin(name="alive", version=5, expires_ms=now_ms + 1))
    assert [pin.name for pin in await board(table).read()] == ["alive"]
    await clean(table, cleaning())
    assert commits_of(table)[0] == 3


async def test_a_removed_pin_counts_no_more(tmp_path: Path) -> None:
    table = expired(tmp_path)
    await board(table).set(Pin(name="export", version=1))
    assert await board(table).remove("export")
    assert not await board(table).remove("export")
    await clean(table, cleaning())
    assert commits_of(table)[0] == 7


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"12",
        b"{}",
        b'{"version": -1}',
        b'{"version": "12"}',
        b'{"version": 12, "expires": "soon"}',
        b'{"version": 12, "expires": "2026-12-01T00:00:00"}',
        b'{"version": 12',
        b"\xff\xfe",
    ],
)
async def test_a_pin_that_cannot_be_read_keeps_everything(tmp_path: Path, body: bytes) -> None:
    table = expired(tmp_path)
    folder = table.folder / "_tailerd/pins"
    folder.mkdir(parents=True)
    (folder / "export.json").write_bytes(body)
    with pytest.raises(PinUnreadableError, match=r"export\.json is not a valid pin"):
        await board(table).read()
    assert "export.json is not a valid pin" in await clean(table, cleaning())
    assert commits_of(table)[0] == 0


async def test_fields_of_the_owner_of_a_pin_are_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "_tailerd/pins"
    folder.mkdir(parents=True)
    body = {"version": 3, "expires": "2030-01-01T01:00:00+01:00", "owner": "flink"}
    (folder / "a b.json").write_text(json.dumps(body))
    (folder / "README").write_text("no pin")
    [pin] = await PinBoard(LocalStore(), str(tmp_path), clock=clock()).read()
    assert pin == Pin(name="a b", version=3, expires_ms=1_893_456_000_000)


@pytest.mark.parametrize("name", ["", ".hidden", "../up", "a/b", "a b", "x" * 101, "ü"])
async def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    pins = PinBoard(LocalStore(), str(tmp_path), clock=clock())
    with pytest.raises(UsageError, match="not a valid pin name"):
        await pins.set(Pin(name=name, version=1))
    with pytest.raises(UsageError, match="not a valid pin name"):
        await pins.remove(name)


async def test_storage_that_does_not_give_the_pins_keeps_everything(tmp_path: Path) -> None:
    store = FaultyStore(LocalStore())
    pins = PinBoard(store, str(tmp_path), clock=clock())
    await pins.set(Pin(name="export", version=12))
    store.fail_nth(1, AccessDeniedError("It may not be read."), kind="get")
    needs = await pins.floor()
    assert (needs.from_version, needs.error_code) == (None, "access_denied")
    assert "may not be read" in needs.obstacle


async def test_a_pin_that_is_waited_for_must_be_there(tmp_path: Path) -> None:
    table = expired(tmp_path)
    policies = cleaning(wait_for_pins=("export", "audit"))
    await board(table).set(Pin(name="export", version=30))
    assert "before audit has set its pin" in await clean(table, policies)
    assert commits_of(table)[0] == 0
    await board(table).set(Pin(name="audit", version=5))
    await clean(table, policies)
    assert commits_of(table)[0] == 3


async def test_the_configuration_itself_keeps_a_version(tmp_path: Path) -> None:
    table = expired(tmp_path)
    assert "cleanup.keep_from" in await clean(table, cleaning(keep_from=5))
    assert commits_of(table)[0] == 3


async def test_what_is_pinned_after_the_plan_was_made_is_kept(tmp_path: Path) -> None:
    table = expired(tmp_path)
    job = work(table, cleaning())
    assessment = await job.assessment()
    [due] = [decision for decision in assessment.decisions if decision.is_due]
    await board(table).set(Pin(name="export", version=5))
    result = await job.apply(assessment, due)
    assert (due.end_version, result.version) == (7, 3)
    assert commits_of(table)[0] == 3


async def test_a_keeper_tells_of_a_pin_it_cannot_read_and_does_everything_else(
    tmp_path: Path,
) -> None:
    table = expired(tmp_path)
    (table.folder / "_tailerd/pins").mkdir(parents=True)
    (table.folder / "_tailerd/pins/export.json").write_text("{")
    policies = Policies(
        checkpoint=CheckpointPolicy(every_commits=1, min_interval_seconds=0),
        cleanup=CleanupPolicy(is_enabled=True),
    )
    turns = Turns(table, policies, clock=clock())
    await turns.turn()
    [failed] = turns.of(events.MaintenanceFailed)
    assert (failed.job, failed.error_code) == ("cleanup", "pin_unreadable")
    assert turns.jobs() == ["checkpoint"]
    assert commits_of(table)[0] == 0


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (RetentionFloor(), RetentionFloor(), RetentionFloor()),
        (RetentionFloor(from_version=3), RetentionFloor(), RetentionFloor(from_version=3)),
        (RetentionFloor(), RetentionFloor(from_version=3), RetentionFloor(from_version=3)),
        (
            RetentionFloor(from_version=3),
            RetentionFloor(from_version=2),
            RetentionFloor(from_version=2),
        ),
        (
            RetentionFloor(from_version=3),
            RetentionFloor(obstacle="?"),
            RetentionFloor(obstacle="?"),
        ),
    ],
)
def test_needs_add_up_to_what_satisfies_both(
    one: RetentionFloor, other: RetentionFloor, both: RetentionFloor
) -> None:
    assert one.and_also(other) == both


def maintain(table: TableBuilder, *options: str) -> tuple[int, str, str]:
    ended = run_to_end("maintain", table.folder, *options)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.full
def test_the_command_sets_moves_shows_and_removes_pins(tmp_path: Path) -> None:
    table = expired(tmp_path)
    _, text, _ = maintain(table, "--pin", "export=2")
    assert text == "pinned: version 2 and later, for export.\n"
    status, text, _ = maintain(table, "--pin", "export=5", "--for", "7d", "--json")
    found = json.loads(text)
    assert (status, found["pin"], found["version"]) == (0, "export", 5)
    assert found["expires_ms"] > 0
    _, text, _ = maintain(table)
    assert "pinned: version 5 and later, for export until 20" in text
    status, text, _ = maintain(table, "--unpin", "export")
    assert (status, text) == (0, "Nothing is pinned.\n")
    assert list((table.folder / "_tailerd/pins").iterdir()) == []


@pytest.mark.full
def test_the_command_refuses_pins_that_keep_nothing(tmp_path: Path) -> None:
    table = expired(tmp_path)
    for version in range(3):
        table.commit_path(version).unlink()
    for options, status, words in (
        (("--pin", "export"), 2, "NAME=VERSION"),
        (("--pin", "export=-1"), 2, "NAME=VERSION"),
        (("--pin", "a/b=5"), 2, "not a valid pin name"),
        (("--pin", "export=5", "--for", "soon"), 2, "number with a unit"),
        (("--pin", "export=500"), 2, "is at version"),
        (("--pin", "export=2"), 3, "oldest version in the log is 3"),
        (("--for", "7d"), 2, "needs --pin"),
        (("--unpin", "export"), 2, "no pin export"),
        (("--pin", "export=5", "--apply"), 2, "--apply"),
    ):
        found = maintain(table, *options)
        assert (found[0], found[1]) == (status, ""), options
        assert words in found[2], options
    assert not (table.folder / "_tailerd/pins").exists()


@pytest.mark.full
def test_a_daemon_without_sinks_cleans_up_as_far_as_pins_allow(tmp_path: Path) -> None:
    table = expired(tmp_path / "orders")
    cleanup = {"enabled": True, "wait_for_pins": ["export"]}
    orders = kept(table.folder, checkpoint={"every_commits": 1000}, cleanup=cleanup)
    config = write_config(tmp_path, orders=orders)
    with daemon(config):
        eventually(lambda: bool(lines_of(config, "Maintenance job failed, retrying")))
        assert commits_of(table)[0] == 0
    [line] = lines_of(config, "Maintenance job failed, retrying")
    assert line["error_code"] == "pin_missing"
    assert maintain(table, "--pin", "export=5")[0] == 0
    with daemon(config):
        eventually(lambda: commits_of(table)[0] == 3)
