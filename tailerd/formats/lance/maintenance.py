"""Maintains Lance tables by pylance's own calls, in separate processes.

Compaction and index updates are commits that change no row. A cleanup deletes versions, but never
one that a pipeline needs: the one before the first it has yet to deliver, and all later ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec

from tailerd.changefeed.offset import Version
from tailerd.clock import Clock
from tailerd.errors import BugError, LogChangedError, UsageError
from tailerd.formats.lance.inspect import sum_fragments
from tailerd.formats.lance.library import OpenTables, load_lance
from tailerd.formats.lance.origin import TableOrigin
from tailerd.formats.lance.payload import FORMAT
from tailerd.formats.lance.protocol.fragments import Fragment
from tailerd.formats.lance.protocol.manifest import Manifest
from tailerd.formats.lance.protocol.version_names import FIRST
from tailerd.formats.lance.version_log import VersionLog
from tailerd.formats.maintenance import (
    CLEANUP,
    AskFloor,
    Decision,
    JobResult,
    LogAssessment,
    MaintenancePolicies,
    RetentionFloor,
)
from tailerd.formats.one_process import PAUSED, SWITCHED_OFF, OneProcessMaintenance, nothing_deleted
from tailerd.formats.part_request import PartRequest
from tailerd.state.ledger import LedgerLocation, open_ledger

if TYPE_CHECKING:
    import lance

COMPACTION, INDICES, TAG = "compaction", "optimize_indices", "tag"
TAG_NAME = "tailerd"
_OF_THE_LIBRARY = "__lance"
"""Name prefix of pylance's internal indices."""
DEFAULT_OLDER_THAN_SECONDS = 14 * 86_400.0
"""The default of pylance."""
_T = TypeVar("_T")


class CompactionPolicy(msgspec.Struct, frozen=True):
    """When fragments are compacted.

    Attributes:
        small_fragments: Due at this number of fragments with fewer rows than `target_rows`.
        deleted_share: Or if this share of the rows of all fragments is deleted.
        target_rows: Rows of a fragment.
    """

    small_fragments: int = 20
    deleted_share: float = 0.1
    target_rows: int = 1024 * 1024


class LancePolicies(msgspec.Struct, frozen=True):
    """This format's own fields of the section `maintenance`.

    Attributes:
        optimize_indices: Number of fragments missing from an index at which it is updated; None for
            never.
        tag: Whether the version that the slowest pipeline needs is tagged, so that cleanups by
            other writers keep it.
    """

    compaction: CompactionPolicy | None = None
    optimize_indices: int | None = None
    tag: bool = False


@dataclass(frozen=True, slots=True)
class _Expired:
    """Versions that a cleanup deletes, and why others stay."""

    versions: tuple[int, ...] = ()
    reason: str = ""


class LanceMaintenance(OneProcessMaintenance):
    """Maintains one table; see `formats.maintenance.TableMaintenance`."""

    def __init__(
        self, request: PartRequest, policies: MaintenancePolicies, clock: Clock, floor: AskFloor
    ) -> None:
        super().__init__(request, policies, clock, floor)
        location = request.location
        self._log = VersionLog(location.store, location.root, location.url, clock=clock)
        self._jobs = policies.jobs_as(LancePolicies, FORMAT)

    async def assessment(
        self, *, with_cleanup: bool = True, is_requested: bool = False
    ) -> LogAssessment:
        """Read the table and decide which jobs are due.

        Raises:
            NotATableError: There is no table.
            TableError, StorageError, OffsetError: It, or a ledger, cannot be read.
        """
        self._log.note_version(None)
        await self._log.refresh()
        head = await self._log.manifest(self._log.head, lambda: "which was the newest")
        table_id = await self._table_id()
        fragments = [head.parse(each) for each in head.fragments]
        floor, expired = RetentionFloor(), _Expired(reason="Old versions were not checked.")
        if with_cleanup or self._jobs.tag:
            floor = await self._floor(table_id)
        if with_cleanup:
            expired = await self._list_expired(floor)
        decisions = [
            self._compaction(fragments, is_requested=is_requested),
            await self._indices(head, is_requested=is_requested),
            await self._tag(floor),
            await self._cleanup(expired),
        ]
        if self._is_paused():
            decisions = [_waiting(each) for each in decisions]
        return LogAssessment(
            table_id=table_id,
            version=head.version,
            decisions=tuple(decisions),
            floor=floor,
            has_expired=bool(expired.versions),
            payload=expired,
        )

    async def _table_id(self) -> str:
        """Return the id under which pipelines know the table, if one of their ledgers has it."""
        ledgers: tuple[LedgerLocation | None, ...] = self._request.ledgers or (None,)
        ids = []
        for requested in ledgers:
            ledger = open_ledger(requested, self._location.stores)
            if requested is None or await ledger.numbers():
                ids.append((await TableOrigin.open(self._log, ledger)).table_id)
        if ids:
            return ids[0]
        return (
            await TableOrigin.open(self._log, open_ledger(None, self._location.stores))
        ).table_id

    # ------------------------------------------------------------------ decisions

    def _compaction(self, fragments: list[Fragment], *, is_requested: bool) -> Decision:
        policy = self._jobs.compaction or (CompactionPolicy() if is_requested else None)
        totals = sum_fragments(fragments)
        target = CompactionPolicy().target_rows if policy is None else policy.target_rows
        small = sum((each.live_rows or 0) < target for each in fragments)
        physical = (totals.rows or 0) + totals.deleted_rows
        share = totals.deleted_rows / physical if physical else 0.0
        found = (
            f"{small} of {len(fragments)} fragments have fewer than {target:,} rows, and"
            f" {share:.1%} of all rows are deleted."
        )
        if policy is None:
            return Decision(job=COMPACTION, is_due=False, reason=f"{found} It is not switched on.")
        is_due = small >= policy.small_fragments or share >= policy.deleted_share > 0
        return Decision(
            job=COMPACTION,
            is_due=is_due and len(fragments) > 0,
            reason=found,
            cost=f"About {sum(each.size_bytes for each in fragments):,} bytes are rewritten at"
            " most.",
            saves="Readers open fewer files and pass over fewer deleted rows.",
            cost_bytes=sum(each.size_bytes for each in fragments),
        )

    async def _indices(self, head: Manifest, *, is_requested: bool) -> Decision:
        limit = self._jobs.optimize_indices or (1 if is_requested else None)
        if limit is None:
            return Decision(job=INDICES, is_due=False, reason="It is not switched on.")
        there = {head.parse(each).id for each in head.fragments}
        outside = await self._call(lambda table: _count_unindexed(table, there))
        if outside is None:
            return Decision(job=INDICES, is_due=False, reason="The table has no index.")
        return Decision(
            job=INDICES,
            is_due=outside >= limit,
            reason=f"{outside} fragments are not indexed.",
            cost="Their rows are added to it.",
            saves="Searches need not scan them.",
        )

    async def _tag(self, floor: RetentionFloor) -> Decision:
        if not self._jobs.tag:
            return Decision(job=TAG, is_due=False, reason="It is not switched on.")
        if floor.obstacle or floor.from_version is None:
            return Decision(job=TAG, is_due=False, reason=floor.obstacle or "No pipeline reads it.")
        requested = max(floor.from_version - 1, FIRST)
        tags = await self._call(lambda table: table.tags.list())
        at = tags.get(TAG_NAME)
        is_there = at is not None and at["version"] == requested
        return Decision(
            job=TAG,
            is_due=not is_there and requested <= self._log.head,
            reason=f"{floor.by} needs version {requested}, and the tag {TAG_NAME}"
            f" {'marks it' if is_there else 'does not mark it'}.",
            cost="One small file is written.",
            saves="Cleanups of others keep that version.",
            start_version=requested,
        )

    async def _list_expired(self, floor: RetentionFloor) -> _Expired:
        cleanup = self._policies.cleanup
        if floor.obstacle:
            return _Expired(reason=floor.obstacle)
        needed = [each for each in (floor.from_version, cleanup.keep_from) if each is not None]
        # The changes of a version require the version before it.
        first_retained = min([*(each - 1 for each in needed), self._log.head])
        older = cleanup.older_than_seconds
        age = DEFAULT_OLDER_THAN_SECONDS if older is None else older
        until_us = int((self._clock.now_ms() - age * 1000) * 1000)
        found = []
        for version in self._log.versions:
            if version >= first_retained:
                break
            manifest = await self._log.find(version)
            if manifest is None:
                continue
            if manifest.timestamp_us > until_us:
                break
            found.append(int(version))
        days = f"{age / 86_400:g} days"
        reason = f"{len(found)} versions before {first_retained} are older than {days}."
        if needed and first_retained < self._log.head:
            reason += f" Version {first_retained} and later are kept for {floor.by}."
        return _Expired(tuple(found), reason)

    async def _cleanup(self, expired: _Expired) -> Decision:
        is_enabled = self._policies.cleanup.is_enabled
        if not expired.versions or not is_enabled:
            why = expired.reason if is_enabled else f"{expired.reason} {SWITCHED_OFF}"
            return Decision(job=CLEANUP, is_due=False, reason=why)
        stats = await self._call(
            lambda table: (
                table.explain_cleanup_old_versions(
                    versions=list(expired.versions), error_if_tagged_old_versions=False
                ).stats
            )
        )
        return Decision(
            job=CLEANUP,
            is_due=stats.old_versions > 0,
            reason=expired.reason,
            cost=f"{stats.old_versions} versions and {stats.data_files_removed} data files are"
            " deleted.",
            saves=f"{stats.bytes_removed:,} bytes.",
            start_version=expired.versions[0],
            end_version=expired.versions[-1],
        )

    # ------------------------------------------------------------------ jobs

    async def apply(self, assessment: LogAssessment, decision: Decision) -> JobResult:
        """Run one due job.

        Raises:
            LogChangedError: A concurrent writer committed first; a retry starts from its commit.
            TableError, StorageError, OffsetError: It failed.
        """
        match decision.job:
            case "compaction":
                return await self._compact()
            case "optimize_indices":
                await self._call(lambda table: table.optimize.optimize_indices())
                return await self._done(INDICES, "The indices cover all fragments.")
            case "tag":
                return await self._set_tag(decision.start_version or int(FIRST))
            case "cleanup":
                return await self._clean_up(assessment)
        raise BugError(f"The job {decision.job} of a Lance table was never planned.")

    async def _compact(self) -> JobResult:
        policy = self._jobs.compaction or CompactionPolicy()

        def compact(table: lance.LanceDataset) -> tuple[int, int]:
            done = table.optimize.compact_files(target_rows_per_fragment=policy.target_rows)
            return done.fragments_removed, done.fragments_added

        removed, added = await self._call(compact)
        return await self._done(COMPACTION, f"{removed} fragments became {added}.", files=added)

    async def _set_tag(self, version: int) -> JobResult:
        def tag(table: lance.LanceDataset) -> None:
            change = table.tags.update if TAG_NAME in table.tags.list() else table.tags.create
            change(TAG_NAME, version)

        await self._call(tag)
        return await self._done(TAG, f"Version {version} is tagged {TAG_NAME}.")

    async def _clean_up(self, assessment: LogAssessment) -> JobResult:
        planned = assessment.payload
        if not isinstance(planned, _Expired):
            raise BugError("A cleanup of a Lance table was never planned.")
        await self._log.list()
        now = await self._list_expired(await self._floor(assessment.table_id))
        agreed = sorted(set(planned.versions) & set(now.versions))
        if not agreed:
            return nothing_deleted(assessment, now.reason)
        stats = await self._call(
            lambda table: table.cleanup_old_versions(
                versions=agreed, error_if_tagged_old_versions=False
            )
        )
        await self._log.list()
        files = stats.data_files_removed + stats.deletion_files_removed
        return JobResult(
            job=CLEANUP,
            outcome="deleted",
            version=self._log.versions[0],
            files=files + stats.old_versions,
            size_bytes=stats.bytes_removed,
            summary=f"{stats.old_versions} versions and {files} files of {stats.bytes_removed:,}"
            " bytes were deleted.",
        )

    async def _done(self, job: str, summary: str, *, files: int = 0) -> JobResult:
        self._log.note_version(self._log.head + 1)
        await self._log.refresh()
        return JobResult(
            job=job,
            outcome="written",
            version=self._log.head,
            files=files,
            summary=summary,
        )

    async def _call(self, work: Callable[[lance.LanceDataset], _T]) -> _T:
        """Call `work` with pylance's table at its newest version, in a thread."""
        return await asyncio.to_thread(self._call_blocking, work)

    def _call_blocking(self, work: Callable[[lance.LanceDataset], _T]) -> _T:
        load_lance()
        try:
            table = OpenTables().get(self._location.url, None, "", self._location.stores)
            return work(table)
        except (OSError, ValueError, RuntimeError) as error:
            raise LogChangedError(
                f"The library failed: {str(error).splitlines()[0][:300]}",
                remedy="It is retried; usually another writer was faster.",
            ) from error

    async def check_readable_from(self, version: Version, reader: str) -> None:
        """Make sure that a reader which has yet to read `version` can continue from there.

        Raises:
            UsageError: The version is beyond the next one.
            MissingVersionError: It can no longer be read.
        """
        await self._log.list()
        if version > self._log.head + 1:
            raise UsageError(
                f"Version {version} cannot be pinned for {reader}: the newest is {self._log.head}."
            )
        for each in (version - 1, version):
            if FIRST <= each <= self._log.head:
                await self._log.manifest(each, lambda: f"which {reader} needs")


def _waiting(decision: Decision) -> Decision:
    if not decision.is_due:
        return decision
    reason = f"{decision.reason} {PAUSED}"
    return Decision(job=decision.job, is_due=False, reason=reason)


def _count_unindexed(table: lance.LanceDataset, fragments: set[int]) -> int | None:
    """Return the maximum number of fragments that one index does not cover; None without any."""
    covered: dict[str, set[int]] = {}
    for index in table.describe_indices():
        if not index.name.startswith(_OF_THE_LIBRARY):
            covered[index.name] = {each for part in index.segments for each in part.fragment_ids}
    if not covered:
        return None
    return max(len(fragments - each) for each in covered.values())
