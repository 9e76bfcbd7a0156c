"""A table is dropped and another made in its place while its log is being worked on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

import pytest

from tailerd.errors import LogChangedError
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.log.log_writer import LogWriter
from tailerd.formats.delta.maintenance.jobs import DeltaMaintenance
from tailerd.formats.delta.maintenance.log_cleanup import LogCleanup
from tailerd.formats.delta.maintenance.policies import CheckpointPolicy, ChecksumPolicy, Policies
from tailerd.formats.maintenance import CleanupPolicy
from tailerd.storage.base import FileMeta
from tailerd.storage.local import LocalStore
from tailerd.telemetry import events
from tests.doubles.faulty_store import FaultyStore
from tests.doubles.sim_clock import SimClock
from tests.formats.delta.histories import assert_is
from tests.formats.delta.log_bodies import add
from tests.maintenance.test_table_maintainer import Turns
from tests.tables.builder import START_MS, TableBuilder

DAY = 86_400_000
OLD_VERSIONS = 12
Manifest = Literal["json", "parquet"]


def old_table(folder: Path, policy: str) -> TableBuilder:
    table = TableBuilder(
        folder,
        properties={"delta.checkpointPolicy": policy},
        reader_features=["v2Checkpoint"] if policy == "v2" else [],
    )
    table.create()
    for number in range(OLD_VERSIONS):
        table.commit(add(f"old{number}"))
    return table


def make_anew(folder: Path, versions: int) -> TableBuilder:
    while folder.exists():
        # A checkpoint may be at work in it, and bring a file while it is emptied.
        shutil.rmtree(folder, ignore_errors=True)
    table = TableBuilder(folder)
    table.create()
    for number in range(versions):
        table.commit(add(f"another{number}"))
    return table


class Replacing(LocalStore):
    """Another table takes the place of this one right before a commit is looked at again."""

    def __init__(self, folder: Path, commit: str, *, look: int, versions: int) -> None:
        super().__init__()
        self._folder, self._commit, self._look, self._versions = folder, commit, look, versions
        self.new: TableBuilder | None = None

    async def head(self, path: str) -> FileMeta:
        if path.endswith(self._commit):
            self._look -= 1
            if self._look == 0:
                self.new = make_anew(self._folder, self._versions)
        return await super().head(path)


@pytest.mark.parametrize("versions", [3, 20], ids=["shorter", "longer"])
@pytest.mark.parametrize("look", [1, 2], ids=["before", "after"])
@pytest.mark.parametrize(
    ("policy", "manifest"), [("classic", "json"), ("v2", "json"), ("v2", "parquet")]
)
async def test_no_checkpoint_of_the_old_table_stays_in_the_new_one(
    tmp_path: Path, policy: str, manifest: Manifest, look: int, versions: int
) -> None:
    table = old_table(tmp_path / "t", policy)
    commit = table.commit_path(table.version).name
    store = Replacing(table.folder, commit, look=look, versions=versions)
    reader = LogReader(store, str(table.folder))
    snapshot = await reader.open()
    with pytest.raises(LogChangedError, match="replaced by another"):
        await LogWriter(reader).write_checkpoint(snapshot, manifest=manifest)
    assert store.new is not None
    assert not [*store.new.log.glob("*checkpoint*")]
    assert_is(await reader.open(), store.new.state())


@pytest.mark.parametrize("policy", ["classic", "v2"])
async def test_a_checkpoint_asks_twice_whether_the_table_is_the_same(
    tmp_path: Path, policy: str
) -> None:
    table = old_table(tmp_path, policy)
    store = FaultyStore(LocalStore())
    reader = LogReader(store, str(tmp_path))
    await LogWriter(reader).write_checkpoint(await reader.open())
    assert store.count("head") == 2
    assert [path for kind, path in store.log if kind == "put"][-1].endswith("_last_checkpoint")
    assert (await reader.open()).checkpoint_version == table.version


async def test_a_version_that_only_a_compaction_tells_of_is_compared_too(tmp_path: Path) -> None:
    table = old_table(tmp_path, "classic")
    state = table.state()
    table.compact(0, table.version)
    for version in range(table.version + 1):
        table.commit_path(version).unlink()
    reader = LogReader(LocalStore(), str(tmp_path))
    result = await LogWriter(reader).write_checkpoint(await reader.open())
    assert result.outcome == "written"
    assert_is(await reader.open(), state)


@pytest.mark.parametrize("has_checkpoint", [False, True], ids=["bare", "checkpointed"])
async def test_a_cleanup_deletes_nothing_of_the_new_table(
    tmp_path: Path, has_checkpoint: bool
) -> None:
    table = old_table(tmp_path / "t", "classic")
    table.checkpoint()
    reader = LogReader(LocalStore(), str(table.folder))
    clock = SimClock(START_MS + 90 * DAY)
    work = DeltaMaintenance(reader, Policies(cleanup=CleanupPolicy(is_enabled=True)), clock=clock)
    assessment = await work.assessment()
    [due] = [each for each in assessment.decisions if each.job == "cleanup"]
    assert due.is_due
    new = make_anew(table.folder, OLD_VERSIONS + 2)
    if has_checkpoint:
        new.checkpoint(table.version)
    before = {path.name for path in new.log.iterdir()}
    result = await work.apply(assessment, due)
    assert (result.outcome, result.files) == ("nothing_to_say", 0)
    reason = "log changed since it was read" if has_checkpoint else "There is no checkpoint"
    assert reason in result.summary
    assert {path.name for path in new.log.iterdir()} == before
    assert_is(await reader.open(), new.state())


async def test_a_cleanup_goes_on_where_another_was_faster(tmp_path: Path) -> None:
    table = old_table(tmp_path, "classic")
    table.checkpoint()
    reader = LogReader(LocalStore(), str(tmp_path))
    snapshot, _ = await reader.open_listed()
    job = LogCleanup(reader, clock=SimClock(START_MS + 90 * DAY))
    plan = await job.plan(snapshot.state)
    table.commit_path(0).unlink()
    result = await job.apply(plan)
    assert len(result.files) == len(plan.files) - 1
    assert result.oldest_version == table.version


async def test_a_keeper_that_finds_another_table_tries_again_with_that(tmp_path: Path) -> None:
    table = old_table(tmp_path / "t", "classic")
    often = CheckpointPolicy(every_commits=3, min_interval_seconds=0)
    turns = Turns(table, Policies(checkpoint=often))
    commit = table.commit_path(table.version).name
    store = Replacing(table.folder, commit, look=1, versions=5)
    turns.store.inner = store
    wait = await turns.turn()
    assert wait is not None
    assert [event.error_code for event in turns.of(events.MaintenanceFailed)] == ["log_changed"]
    assert turns.of(events.MaintenanceRefused) == []
    await turns.clock.advance(wait + 1)
    assert await turns.turn() is None
    assert store.new is not None
    last = turns.of(events.LogMaintained)[-1]
    assert (last.job, last.result, last.version) == ("checkpoint", "written", store.new.version)
    assert_is(await LogReader(LocalStore(), str(table.folder)).open(), store.new.state())


class ReplacingByPut(LocalStore):
    """Another table takes the place of this one right before a file of the log appears."""

    def __init__(self, table: TableBuilder, suffix: str) -> None:
        super().__init__()
        self._table, self._suffix = table, suffix
        self.new: TableBuilder | None = None

    async def put(self, path: str, data: bytes, *, if_absent: bool = False) -> None:
        self._replace_before(path)
        await super().put(path, data, if_absent=if_absent)

    async def put_nondurable(self, path: str, data: bytes, *, if_absent: bool = True) -> None:
        self._replace_before(path)
        await super().put_nondurable(path, data)

    def _replace_before(self, path: str) -> None:
        if path.endswith(self._suffix):
            self.new = make_anew(self._table.folder, OLD_VERSIONS + 8)


async def assert_new(store: ReplacingByPut, suffix: str) -> None:
    assert store.new is not None
    assert not [*store.new.log.glob(f"*{suffix}")]
    assert_is(await LogReader(LocalStore(), str(store.new.folder)).open(), store.new.state())


async def test_no_compaction_of_the_old_table_stays_in_the_new_one(tmp_path: Path) -> None:
    table = old_table(tmp_path / "t", "classic")
    store = ReplacingByPut(table, ".compacted.json")
    reader = LogReader(store, str(table.folder))
    snapshot = await reader.open()
    with pytest.raises(LogChangedError, match="replaced by another"):
        await LogWriter(reader).write_compaction(snapshot.state, 1, 9)
    await assert_new(store, ".compacted.json")


async def test_no_checksum_of_the_old_table_stays_in_the_new_one(tmp_path: Path) -> None:
    table = old_table(tmp_path / "t", "classic")
    store = ReplacingByPut(table, ".crc")
    reader = LogReader(store, str(table.folder))
    with pytest.raises(LogChangedError, match="replaced by another"):
        await LogWriter(reader).write_checksum(await reader.open())
    await assert_new(store, ".crc")


async def test_a_snapshot_of_the_old_table_makes_no_checksum_of_the_new_one(
    tmp_path: Path,
) -> None:
    table = old_table(tmp_path / "t", "classic")
    reader = LogReader(LocalStore(), str(table.folder))
    snapshot, published = await reader.open(), await reader.commit_file(table.version)
    new = make_anew(table.folder, OLD_VERSIONS + 8)
    with pytest.raises(LogChangedError, match="replaced by another"):
        await LogWriter(reader).write_checksum(snapshot, published=published)
    assert not [*new.log.glob("*.crc")]


async def test_a_checksum_by_policy_knows_the_commit_it_is_made_from(tmp_path: Path) -> None:
    table = old_table(tmp_path, "classic")
    store = FaultyStore(LocalStore())
    policies = Policies(checksum=ChecksumPolicy(is_enabled=True))
    work = DeltaMaintenance(LogReader(store, str(tmp_path)), policies)
    assessment = await work.assessment()
    [due] = [each for each in assessment.decisions if each.job == "checksum"]
    assert due.is_due
    before = store.count("head")
    assert (await work.apply(assessment, due)).outcome == "written"
    assert store.count("head") == before + 2
    assert_is(await LogReader(LocalStore(), str(tmp_path)).open(), table.state())


@pytest.mark.parametrize("batch", [1, 2], ids=["at once", "after a batch"])
async def test_a_cleanup_stops_where_a_new_table_appears_while_it_deletes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr("tailerd.formats.delta.maintenance.log_cleanup.BATCH_FILES", 5)
    table = old_table(tmp_path / "t", "classic")
    kept = table.checkpoint()[0].name
    store = Replacing(table.folder, kept, look=batch, versions=OLD_VERSIONS + 2)
    work = DeltaMaintenance(
        LogReader(store, str(table.folder)),
        Policies(cleanup=CleanupPolicy(is_enabled=True)),
        clock=SimClock(START_MS + 90 * DAY),
    )
    assessment = await work.assessment()
    [due] = [each for each in assessment.decisions if each.job == "cleanup"]
    result = await work.apply(assessment, due)
    assert result.files == 5 * (batch - 1)
    assert "The log changed since it was read." in result.summary
    assert store.new is not None
    assert_is(await LogReader(LocalStore(), str(table.folder)).open(0), store.new.state(0))
    assert_is(await work.reader.open(), store.new.state())
