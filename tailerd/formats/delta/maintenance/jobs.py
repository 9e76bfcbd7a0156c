"""Surveys one log, decides by the policies, and does what is due."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from tailerd.clock import Clock, SystemClock
from tailerd.errors import BugError, StorageError, TableError, TailerdError
from tailerd.formats.delta.log.checkpoint_basis import check_has_sidecars
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.log.log_writer import CheckpointResult, LogWriter
from tailerd.formats.delta.maintenance.checkpoint_process import checkpoint_by
from tailerd.formats.delta.maintenance.checkpoint_request import CheckpointRequest
from tailerd.formats.delta.maintenance.held_snapshot import HeldSnapshot
from tailerd.formats.delta.maintenance.log_cleanup import LogCleanup
from tailerd.formats.delta.maintenance.plan import Policies
from tailerd.formats.delta.maintenance.policies.base import (
    CommitFigures,
    Decision,
    JobKind,
    LogStats,
    spell_bytes,
)
from tailerd.formats.delta.protocol import table_properties as properties
from tailerd.formats.delta.protocol.log_path import parse_log_path
from tailerd.formats.delta.protocol.log_segment import LogListing
from tailerd.formats.delta.protocol.metadata_cleanup import CleanupPlan, cleanup_terms
from tailerd.formats.delta.protocol.snapshot import Snapshot, TableState
from tailerd.formats.delta.protocol.writer_features import check_maintainable
from tailerd.maintenance.needs import Needs
from tailerd.maintenance.pins import PinBoard

DELETE_SECONDS = 0.0001
"""About what deleting one file of a local disk takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """What became of one job.

    Attributes:
        outcome: `written`, `deleted`, `already_there` or `nothing_to_say`.
        version: The newest it is about; of a cleanup the oldest that is left.
        files: How many files were written or deleted.
        summary: One sentence.
    """

    job: JobKind
    outcome: str
    version: int
    files: int
    size_bytes: int
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """A log as it was found, and what its policies say of it.

    Attributes:
        needs: What others want of it, as its cleanup was planned.
        cleanup_error: Why none could be planned, which concerns no other job; None where it could.
    """

    stats: LogStats
    state: TableState
    decisions: tuple[Decision, ...]
    cleanup: CleanupPlan
    needs: Needs = field(default_factory=Needs)
    cleanup_error: TailerdError | None = None


async def nobody(_: str) -> Needs:
    """Say that no pipeline wants anything."""
    return Needs()


class TableMaintenance:
    """Maintains one table's log.

    Args:
        reader: The table's log.
        policies: What is wanted.
        clock: Tells ages.
        needs: Asked before each cleanup, with the table's id: what pipelines want of the log.
    """

    def __init__(
        self,
        reader: LogReader,
        policies: Policies,
        *,
        clock: Clock | None = None,
        needs: Callable[[str], Awaitable[Needs]] = nobody,
    ) -> None:
        self.reader = reader
        self.policies = policies
        self._clock: Clock = clock or SystemClock()
        self._needs = needs
        self._held = HeldSnapshot(reader)
        self._writer = LogWriter(reader, clock=self._clock)
        self._cleanup = LogCleanup(reader, clock=self._clock)
        self._silent: tuple[str, int] | None = None
        self._pins = PinBoard(reader.store, reader.root, clock=self._clock)

    async def survey(self, *, with_cleanup: bool = True) -> Survey:
        """Look at the log and decide what is due.

        Args:
            with_cleanup: Whether to look for what has expired, which lists and checks all of it.

        Raises:
            UnsupportedFeatureError: The table asks of its writers what this release cannot do.
            LinkInPathError: The log or its sidecars lie behind a symbolic link.
            ConfigError: The policies contradict the table.
            TableError, StorageError: The log cannot be read.
        """
        listing = await self.reader.list_log(self._held.base_version)
        snapshot = await self._held.at(listing, with_files=False)
        check_maintainable(snapshot.state)
        await self.reader.check_not_linked()
        if self.policies.spark is not None:
            check_has_sidecars(snapshot.state)
        if snapshot.version not in listing.commits:
            # It was opened anew, from more or from newer files.
            listing = await self.reader.list_log(self._held.base_version)
        stats = self._without_silent(stats_of(listing, snapshot), snapshot.state)
        decisions = self.policies.decide(stats, self._clock.now_ms())
        plan = CleanupPlan(reason="It was not looked for what has expired.")
        needs, cleanup_error = Needs(), None
        if with_cleanup:
            try:
                needs, plan = await self._plan_cleanup(snapshot.state)
            except (TableError, StorageError) as error:
                cleanup_error, plan = error, CleanupPlan(reason=str(error))
            decisions.append(_cleanup_decision(plan, self.policies.cleanup.is_enabled))
        return Survey(
            stats=stats,
            state=snapshot.state,
            decisions=tuple(decisions),
            cleanup=plan,
            needs=needs,
            cleanup_error=cleanup_error,
        )

    async def _all_needs(self, table_id: str) -> Needs:
        """Return what pipelines, pins and the configuration want of the log, all together."""
        policy = self.policies.cleanup
        kept = Needs(from_version=policy.keep_from, by="cleanup.keep_from")
        pinned = await self._pins.needs(policy.wait_for_pins)
        return kept.and_also(pinned).and_also(await self._needs(table_id))

    async def _plan_cleanup(
        self, state: TableState, checked: CleanupPlan | None = None
    ) -> tuple[Needs, CleanupPlan]:
        policy = self.policies.cleanup
        if not policy.is_enabled:
            return Needs(), CleanupPlan(reason="Cleanup is not switched on.")
        needs = await self._all_needs(state.metadata.id)
        if needs.obstacle:
            return needs, CleanupPlan(reason=needs.obstacle)
        if self.policies.paused_until_ms(self._clock.now_ms()) is not None:
            return needs, CleanupPlan(reason="The policy pauses at this time of the day.")
        return needs, await self._cleanup.plan(
            state,
            needs.from_version,
            wanted_by=needs.by,
            older_than_seconds=policy.older_than_seconds,
            checked=checked,
        )

    async def apply(self, survey: Survey, decision: Decision) -> JobResult:
        """Do one job that is due; checkpoints and checksums of what is newest by then.

        Raises:
            TableError, StorageError: It could not be done; no reader sees a wrong state.
        """
        try:
            return await self._apply(survey, decision)
        except BaseException:
            # The next survey finds out what is there.
            self._held.drop()
            raise

    async def _apply(self, survey: Survey, decision: Decision) -> JobResult:
        match decision.job:
            case "checkpoint":
                return await self._checkpoint()
            case "checksum":
                newest = await self._newest()
                written = await self._writer.write_checksum(newest, published=self._held.published)
                return _of_file("checksum", written.name, written.outcome, written.size_bytes)
            case "log_compaction":
                start, end = decision.start_version, decision.end_version
                if start is None or end is None:
                    raise BugError("A compaction has a range of versions.")
                written = await self._writer.write_compaction(survey.state, start, end)
                if written.outcome == "nothing_to_say":
                    self._silent = survey.state.metadata.id, end
                return _of_file("log_compaction", written.name, written.outcome, written.size_bytes)
            case "cleanup":
                return await self._clean_up(survey.cleanup)

    def _without_silent(self, stats: LogStats, state: TableState) -> LogStats:
        """Let commits that were found to change nothing of the state make no compaction due."""
        table_id, until = self._silent or ("", -1)
        known = -1 if stats.compacted_until is None else stats.compacted_until
        if table_id != state.metadata.id or not known < until <= stats.version:
            return stats
        return replace(stats, compacted_until=until)

    async def _newest_state(self) -> TableState:
        listing = await self.reader.list_log(self._held.base_version)
        return (await self._held.at(listing, with_files=False)).state

    async def _objection(self, planned: TableState, oldest: int) -> str:
        """Say why a cleanup that was planned must not go on; empty where nothing forbids it."""
        needs = await self._all_needs(planned.metadata.id)
        if needs.obstacle:
            return needs.obstacle
        if needs.from_version is not None and needs.from_version < oldest:
            return f"Version {needs.from_version} is wanted by {needs.by} meanwhile."
        version = self._held.version
        if version is not None and await self.reader.commit_file(version + 1) is None:
            return ""
        if cleanup_terms(await self._newest_state()) != cleanup_terms(planned):
            return "A commit changed what the table says of cleanup; it is planned again later."
        return ""

    async def _newest(self) -> Snapshot:
        listing = await self.reader.list_log(self._held.base_version)
        return await self._held.at(listing, with_files=True)

    async def _write_checkpoint(self) -> CheckpointResult:
        manifest, spark = self.policies.checkpoint.manifest, self.policies.spark
        if spark is None:
            return await self._writer.write_checkpoint(await self._newest(), manifest=manifest)
        place, master, conf = self.reader.url, spark.master, spark.conf
        request = CheckpointRequest(
            place=place,
            manifest=manifest,
            master=master,
            conf=conf,
            storage=self.reader.storage.to_json(),
        )
        return await checkpoint_by("spark", request)

    async def _sweep(self) -> None:
        """Remove what writers that died left in a folder; in a bucket that takes requests."""
        if not self.reader.store.is_remote:
            # Whoever may write but not delete here gets a checkpoint all the same.
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
            text = (
                f"Wrote a checkpoint of version {result.version}: {result.add_files} files in"
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

    async def _clean_up(self, surveyed: CleanupPlan) -> JobResult:
        """Delete what was due at the survey and still is: commits and pins may have come since."""
        state = await self._newest_state()
        _, planned = await self._plan_cleanup(state, surveyed)
        plan = planned.common_with(surveyed)
        oldest = plan.oldest_version
        if oldest is None:
            return _nothing_deleted(surveyed.oldest_version or 0, plan.reason)
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


def _nothing_deleted(oldest: int, why: str) -> JobResult:
    return JobResult(
        job="cleanup",
        outcome="nothing_to_say",
        version=oldest,
        files=0,
        size_bytes=0,
        summary=f"Nothing was deleted. {why}",
    )


def _of_file(job: JobKind, name: str, outcome: str, size_bytes: int) -> JobResult:
    texts = {
        "written": f"Wrote {name}, {spell_bytes(size_bytes)}.",
        "already_there": f"{name} is there already.",
        "nothing_to_say": "The commits change nothing of the table's state.",
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


def stats_of(listing: LogListing, snapshot: Snapshot) -> LogStats:
    """Return the figures policies look at."""
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
    # Out of range is as good as absent: writers agree on 10 there.
    return number if number is not None and number > 0 else None
