"""Delta's maintainer: assesses one log, decides by the policies, and runs the due jobs."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from tailerd.changefeed.offset import Version
from tailerd.clock import Clock, SystemClock
from tailerd.errors import (
    BugError,
    FileMissingError,
    MissingVersionError,
    StorageError,
    TableError,
    TailerdError,
    UsageError,
)
from tailerd.formats.delta.log.checkpoint_basis import check_has_sidecars
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.log.log_writer import CheckpointResult, LogWriter
from tailerd.formats.delta.log.segment_replay import LARGE_COMMIT_BYTES
from tailerd.formats.delta.maintenance.distributed.request import (
    CheckpointAnswer,
    CheckpointRequest,
)
from tailerd.formats.delta.maintenance.log_cleanup import LogCleanup
from tailerd.formats.delta.maintenance.policies import (
    CommitFigures,
    LogStats,
    Policies,
    spell_bytes,
)
from tailerd.formats.delta.protocol import table_properties as properties
from tailerd.formats.delta.protocol.commit_file import Commit
from tailerd.formats.delta.protocol.log_path import LogFile, parse_log_path
from tailerd.formats.delta.protocol.log_segment import LogListing
from tailerd.formats.delta.protocol.metadata_cleanup import CleanupPlan, cleanup_terms
from tailerd.formats.delta.protocol.snapshot import Snapshot, TableState
from tailerd.formats.delta.protocol.writer_features import check_maintainable
from tailerd.formats.maintenance import (
    AskFloor,
    Decision,
    JobResult,
    LogAssessment,
    RetentionFloor,
    RunOnEngine,
    no_readers,
)

DELETE_SECONDS = 0.0001
"""Estimated time to delete one file from a local disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """The state of a log at an assessment; the `payload` of a `LogAssessment`."""

    stats: LogStats
    state: TableState
    cleanup: CleanupPlan


class DeltaMaintenance:
    """Maintains one table's log.

    Args:
        reader: The table's log.
        policies: Which jobs are wanted, and when.
        clock: Determines ages.
        floor: Called before and during each cleanup, with the table's id.
        run_on_engine: Runs a checkpoint request on the engine that the policies name.

    Attributes:
        unleased_jobs: Jobs that are cheaper than acquiring the lease, and harmless if run twice.
    """

    unleased_jobs = frozenset({"checksum"})

    def __init__(
        self,
        reader: LogReader,
        policies: Policies,
        *,
        clock: Clock | None = None,
        floor: AskFloor = no_readers,
        run_on_engine: RunOnEngine | None = None,
    ) -> None:
        self.reader = reader
        self.policies = policies
        self._clock: Clock = clock or SystemClock()
        self._floor = floor
        self._run_on_engine = run_on_engine
        self._held = HeldSnapshot(reader)
        self._writer = LogWriter(reader, clock=self._clock)
        self._cleanup = LogCleanup(reader, clock=self._clock)
        self._empty_until: tuple[str, int] | None = None

    async def assessment(
        self, *, with_cleanup: bool = True, is_requested: bool = False
    ) -> LogAssessment:
        """Read the log and decide which jobs are due.

        Args:
            with_cleanup: Whether to check for expired files, which lists and checks the whole log.
            is_requested: Requested by an operator: a checkpoint is due if there is any commit
                since the last.

        Raises:
            UnsupportedFeatureError: The table requires an unsupported writer feature.
            LinkInPathError: The folder of the log or its sidecars is a symbolic link.
            ConfigError: The policies contradict the table.
            TableError, StorageError: The log cannot be read.
        """
        listing = await self.reader.list_log(self._held.base_version)
        snapshot = await self._held.at(listing, with_files=False)
        check_maintainable(snapshot.state)
        await self.reader.check_not_linked()
        if self.policies.engine is not None:
            check_has_sidecars(snapshot.state)
        if snapshot.version not in listing.commits:
            # The snapshot was opened again, from more or newer files.
            listing = await self.reader.list_log(self._held.base_version)
        stats = self._without_empty_commits(collect_stats(listing, snapshot), snapshot.state)
        decisions = self.policies.decide(stats, self._clock.now_ms())
        if is_requested:
            decisions = [_as_asked(each, stats) for each in decisions]
        plan = CleanupPlan(reason="Expired files were not searched for.")
        floor, cleanup_error = RetentionFloor(), None
        if with_cleanup:
            try:
                floor, plan = await self._plan_cleanup(snapshot.state)
            except (TableError, StorageError) as error:
                cleanup_error, plan = error, CleanupPlan(reason=str(error))
            decisions.append(_cleanup_decision(plan, self.policies.cleanup.is_enabled))
        return LogAssessment(
            table_id=snapshot.state.metadata.id,
            version=stats.version,
            decisions=tuple(decisions),
            floor=floor,
            has_expired=bool(plan.files),
            cleanup_error=cleanup_error,
            payload=LogState(stats=stats, state=snapshot.state, cleanup=plan),
        )

    async def check_readable_from(self, version: Version, reader: str) -> None:
        """Make sure that a reader which has yet to read `version` can continue from there.

        Raises:
            UsageError: The version is beyond the next one.
            MissingVersionError: It can no longer be read.
        """
        listing = await self.reader.list_log(0)
        head = listing.head_version
        if head is None or version > head + 1:
            raise UsageError(
                f"Version {version} cannot be pinned: the table is at version {head}, so the next"
                f" that {reader} can read is at most {-1 if head is None else head} + 1."
            )
        oldest = 0 if 0 in listing.commits else min(listing.checkpoints, default=head)
        if _find_base(version) < oldest:
            raise MissingVersionError(
                f"Version {version}, where {reader} resumes, can no longer be read: the oldest"
                f" version in the log is {oldest}.",
                remedy=f"Start over with a snapshot, and pin {oldest + 1} or later.",
            )

    async def _rebuilt_from(self, table_id: str) -> RetentionFloor:
        """Return the retention floor with the version that must be rebuilt for the next read."""
        floor = await self._floor(table_id)
        if floor.from_version is not None:
            floor = replace(floor, from_version=_find_base(floor.from_version))
        kept = RetentionFloor(from_version=self.policies.cleanup.keep_from, by="cleanup.keep_from")
        return kept.and_also(floor)

    async def _plan_cleanup(
        self, state: TableState, checked: CleanupPlan | None = None
    ) -> tuple[RetentionFloor, CleanupPlan]:
        policy = self.policies.cleanup
        if not policy.is_enabled:
            return RetentionFloor(), CleanupPlan(reason="Cleanup is not switched on.")
        floor = await self._rebuilt_from(state.metadata.id)
        if floor.obstacle:
            return floor, CleanupPlan(reason=floor.obstacle)
        if self.policies.paused_until_ms(self._clock.now_ms()) is not None:
            return floor, CleanupPlan(reason="The policy pauses at this time of the day.")
        return floor, await self._cleanup.plan(
            state,
            floor.from_version,
            required_by=floor.by,
            older_than_seconds=policy.older_than_seconds,
            checked=checked,
        )

    async def apply(self, assessment: LogAssessment, decision: Decision) -> JobResult:
        """Run one due job; checkpoints and checksums are of the then newest version.

        Raises:
            TableError, StorageError: It failed; no reader sees a wrong state.
        """
        try:
            result = await self._apply(assessment, decision)
        except BaseException:
            # The next assessment reads the log again.
            self._held.drop()
            raise
        self.note_result(assessment, result)
        return result

    def note_result(self, assessment: LogAssessment, result: JobResult) -> None:
        """Note commits that a compaction found to be empty, so that they do not trigger another."""
        if result.job == "log_compaction" and result.outcome == "nothing_to_say":
            self._empty_until = assessment.table_id, result.version

    async def _apply(self, assessment: LogAssessment, decision: Decision) -> JobResult:
        found = assessment.payload
        if not isinstance(found, LogState):
            raise BugError("A job needs an assessment of the same table.")
        match decision.job:
            case "checkpoint":
                return await self._checkpoint()
            case "checksum":
                newest = await self._newest()
                written = await self._writer.write_checksum(newest, published=self._held.published)
                return _make_file_result(
                    "checksum", written.name, written.outcome, written.size_bytes
                )
            case "log_compaction":
                return await self._compact(found.state, decision)
            case "cleanup":
                return await self._clean_up(found.cleanup)
            case other:
                raise BugError(f"There is no maintenance job {other!r} of a Delta log.")

    async def _compact(self, state: TableState, decision: Decision) -> JobResult:
        start, end = decision.start_version, decision.end_version
        if start is None or end is None:
            raise BugError("A compaction has a range of versions.")
        written = await self._writer.write_compaction(state, start, end)
        return _make_file_result(
            "log_compaction", written.name, written.outcome, written.size_bytes
        )

    def _without_empty_commits(self, stats: LogStats, state: TableState) -> LogStats:
        """Exclude commits without any change of state from the trigger of compactions."""
        table_id, until = self._empty_until or ("", -1)
        known = -1 if stats.compacted_until is None else stats.compacted_until
        if table_id != state.metadata.id or not known < until <= stats.version:
            return stats
        return replace(stats, compacted_until=until)

    async def _newest_state(self) -> TableState:
        listing = await self.reader.list_log(self._held.base_version)
        return (await self._held.at(listing, with_files=False)).state

    async def _objection(self, planned: TableState, oldest: int) -> str:
        """Return why a planned cleanup must not continue; empty if it may."""
        floor = await self._rebuilt_from(planned.metadata.id)
        if floor.obstacle:
            return floor.obstacle
        if floor.from_version is not None and floor.from_version < oldest:
            return f"Version {floor.from_version} is now needed by {floor.by}."
        version = self._held.version
        if version is not None and await self.reader.commit_file(version + 1) is None:
            return ""
        if cleanup_terms(await self._newest_state()) != cleanup_terms(planned):
            return "A commit changed the table's cleanup settings; cleanup is planned again later."
        return ""

    async def _newest(self) -> Snapshot:
        listing = await self.reader.list_log(self._held.base_version)
        return await self._held.at(listing, with_files=True)

    async def _write_checkpoint(self) -> CheckpointResult:
        manifest, engine = self.policies.checkpoint.manifest, self.policies.engine
        if engine is None:
            return await self._writer.write_checkpoint(await self._newest(), manifest=manifest)
        if self._run_on_engine is None:
            raise BugError("A checkpoint is for an engine, and there is nothing that runs it.")
        request = CheckpointRequest(manifest=manifest)
        answer = await self._run_on_engine(engine, request.to_json())
        return CheckpointAnswer.from_json(answer).result()

    async def _sweep(self) -> None:
        """Delete files left by crashed writers, only on a disk: in a bucket that needs requests."""
        if not self.reader.store.is_remote:
            # A user with permission to write but not to delete still gets a checkpoint.
            with suppress(StorageError):
                await self._cleanup.sweep()

    async def _checkpoint(self) -> JobResult:
        await self._sweep()
        result = await self._write_checkpoint()
        self._held.replace(result.rebased)
        if result.outcome == "already_there":
            text = f"Version {result.version} has a checkpoint already."
        else:
            again = f", {len(result.reused_files)} sidecars named again" * bool(result.reused_files)
            files = "1 file" if result.add_files == 1 else f"{result.add_files} files"
            text = (
                f"Wrote a checkpoint of version {result.version}: {files} in"
                f" {spell_bytes(result.size_bytes)}{again}."
            )
        return JobResult(
            job="checkpoint",
            outcome=result.outcome,
            version=result.version,
            files=len(result.files),
            size_bytes=result.size_bytes,
            summary=text,
        )

    async def _clean_up(self, assessed: CleanupPlan) -> JobResult:
        """Delete planned files that are still due: commits and pins may have been added since."""
        state = await self._newest_state()
        _, planned = await self._plan_cleanup(state, assessed)
        plan = planned.common_with(assessed)
        oldest = plan.oldest_version
        if oldest is None:
            return _nothing_deleted(assessed.oldest_version or 0, plan.reason)
        result = await self._cleanup.apply(plan, partial(self._objection, state, oldest))
        if not result.files and not result.leftovers:
            return _nothing_deleted(oldest, result.reason)
        text = f"Deleted {len(result.files)} files of {spell_bytes(result.size_bytes)}"
        kept = result.oldest_version
        text += f". {result.reason}" if kept is None else f"; the oldest version is now {kept}."
        return JobResult(
            job="cleanup",
            outcome="deleted",
            version=oldest,
            files=len(result.files) + result.leftovers,
            size_bytes=result.size_bytes,
            summary=text,
        )


def _find_base(version: int) -> Version:
    """Return the version that must be rebuilt to read a commit: the one before it."""
    return Version(max(0, version - 1))


def _as_asked(decision: Decision, stats: LogStats) -> Decision:
    if decision.job != "checkpoint" or decision.is_due or not stats.commits:
        return decision
    return replace(decision, is_due=True, reason="Requested by an operator.")


def _nothing_deleted(oldest: int, why: str) -> JobResult:
    return JobResult(
        job="cleanup",
        outcome="nothing_to_say",
        version=oldest,
        files=0,
        size_bytes=0,
        summary=f"Nothing was deleted. {why}",
    )


def _make_file_result(job: str, name: str, outcome: str, size_bytes: int) -> JobResult:
    texts = {
        "written": f"Wrote {name}, {spell_bytes(size_bytes)}.",
        "already_there": f"{name} exists already.",
        "nothing_to_say": "The commits do not change the table's state.",
    }
    is_written = outcome == "written"
    file = parse_log_path(name)
    return JobResult(
        job=job,
        outcome=outcome,
        version=0 if file is None else file.end_version,
        files=int(is_written),
        size_bytes=size_bytes,
        summary=texts[outcome],
    )


def _cleanup_decision(plan: CleanupPlan, is_enabled: bool) -> Decision:
    if not plan.files:
        return Decision(job="cleanup", is_due=False, reason=plan.reason)
    size = sum(file.size_bytes for file in plan.files)
    return Decision(
        job="cleanup",
        is_due=is_enabled,
        reason=f"{len(plan.files)} files have expired. {plan.reason}",
        cost=f"reads the checkpoint of version {plan.oldest_version} once; versions before it can"
        " no longer be read",
        cost_seconds=len(plan.files) * DELETE_SECONDS,
        saves=f"{spell_bytes(size)} and {len(plan.files)} files in each listing",
        start_version=plan.files[0].version,
        end_version=plan.oldest_version,
    )


def collect_stats(listing: LogListing, snapshot: Snapshot) -> LogStats:
    """Return the figures that policies use."""
    newest = max((v for v in listing.checkpoints if v <= snapshot.version), default=None)
    after = -1 if newest is None else newest
    since = sorted(
        (file for v, file in listing.commits.items() if after < v <= snapshot.version),
        key=lambda file: file.version,
    )
    parts = () if newest is None else listing.checkpoints[newest][0]
    compacted = [
        file.end_version
        for file in listing.compactions
        if file.version > after and file.size_bytes and file.end_version <= snapshot.version
    ]
    return LogStats(
        version=snapshot.version,
        commits=tuple(
            CommitFigures(version=f.version, size_bytes=f.size_bytes, time_ms=f.mtime_ms)
            for f in since
        ),
        checkpoint_version=newest,
        checkpoint_ms=max((file.mtime_ms for file in parts), default=None),
        compacted_until=max(compacted, default=None),
        has_checksum=snapshot.version in listing.checksum_versions,
        has_commit=snapshot.version in listing.commits,
        table_interval=_interval(snapshot.state),
        live_bytes=sum(file.size_bytes for file in parts),
    )


def _interval(state: TableState) -> int | None:
    number = properties.number(state.metadata.configuration, properties.CHECKPOINT_INTERVAL)
    # Out of range counts as absent: writers then use 10.
    return number if number is not None and number > 0 else None


COMMITS_AT_ONCE = 64


class HeldSnapshot:
    """Advances one snapshot by listings of its log. Used by one task at a time.

    It is opened again if advancing could be wrong: commits are missing, the table was replaced, or
    another writer wrote a checkpoint, which is a better base for the next one.
    """

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._snapshot: Snapshot | None = None
        self._last: LogFile | None = None

    @property
    def base_version(self) -> int:
        """The version from which the listing for `at` must start."""
        if self._snapshot is None:
            return 0
        return max(0, self._snapshot.checkpoint_version or 0)

    @property
    def version(self) -> int | None:
        """The version held; None without any."""
        return None if self._snapshot is None else self._snapshot.version

    @property
    def published(self) -> LogFile | None:
        """The commit that publishes the version held; None if the log has none."""
        return self._last

    def drop(self) -> None:
        """Drop the snapshot: its base may no longer be valid."""
        self._snapshot = self._last = None

    def replace(self, snapshot: Snapshot | None) -> None:
        """Continue with the same version on another base; None drops the snapshot."""
        if snapshot is None:
            self.drop()
        else:
            self._snapshot = snapshot

    async def at(self, listing: LogListing, *, with_files: bool) -> Snapshot:
        """Return the snapshot of a listing's newest version, or of a newer one.

        Args:
            listing: Of the log, at least from `base_version` on.
            with_files: Whether its live files must be indexed.

        Raises:
            TableError, StorageError: The log cannot be read.
        """
        held = self._snapshot
        if held is None or not self._leads_to(listing, held, with_files=with_files):
            return await self._open(with_files=with_files)
        # Cleanup may leave only a checkpoint.
        head = max(listing.commits, default=held.version)
        ahead = [listing.commits[version] for version in range(held.version + 1, head + 1)]
        try:
            for first in range(0, len(ahead), COMMITS_AT_ONCE):
                held = await self._advance(held, ahead[first : first + COMMITS_AT_ONCE])
        except FileMissingError:
            # Cleaned up after it was listed.
            return await self._open(with_files=with_files)
        except BaseException:
            # The index of files may have advanced already.
            self.drop()
            raise
        return held

    def _leads_to(self, listing: LogListing, held: Snapshot, *, with_files: bool) -> bool:
        head = max(listing.commits, default=-1)
        is_same = listing.commits.get(held.version) == self._last
        is_whole = all(v in listing.commits for v in range(held.version + 1, head + 1))
        newest = max((v for v in listing.checkpoints if v <= held.version), default=None)
        has_files = held.num_files is not None or not with_files
        return is_same and is_whole and has_files and newest == held.checkpoint_version

    async def _advance(self, held: Snapshot, files: list[LogFile]) -> Snapshot:
        commits = await self._commits(files)
        for commit in commits:
            held.state.after(commit).check_log()

        def apply() -> Snapshot:
            moved = held
            for commit in commits:
                moved = moved.advance(commit)
            return moved

        self._snapshot = await asyncio.to_thread(apply)
        self._last = files[-1]
        return self._snapshot

    async def _commits(self, files: list[LogFile]) -> list[Commit]:
        if any(file.size_bytes > LARGE_COMMIT_BYTES for file in files):
            return [(await self._reader.read_commit(file)).commit for file in files]
        return [found.commit for found in await self._reader.read_commits(files)]

    async def _open(self, *, with_files: bool) -> Snapshot:
        self.drop()
        snapshot, segment = await self._reader.open_listed(with_files=with_files)
        last = segment.ascending_commits[-1] if segment.ascending_commits else None
        if last is None or last.version != snapshot.version:
            try:
                last = await self._reader.commit_file(snapshot.version)
            except TailerdError:
                last = None
        self._snapshot, self._last = snapshot, last
        return snapshot
