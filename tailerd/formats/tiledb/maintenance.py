"""Maintains arrays by TileDB's own calls, without losing history that pipelines need.

Merging commit files and fragment metadata does not affect time travel. Merged fragments keep the
times of their cells in sparse arrays and lose them in dense ones, so fragments are merged and their
originals deleted only before the oldest version that a pipeline has yet to read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from tailerd.changefeed.offset import Version
from tailerd.clock import Clock
from tailerd.errors import BugError, MissingVersionError, UsageError
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
from tailerd.formats.tiledb.array_log import ArrayLog
from tailerd.formats.tiledb.library import changing
from tailerd.formats.tiledb.protocol.names import COMMITS, CommitKind, TimedName, timed_name
from tailerd.formats.tiledb.protocol.timeline import Timeline
from tailerd.formats.tiledb.scan import FORMAT

COMMITS_JOB = "commits"
_META_JOB = "fragment_meta"
FRAGMENTS_JOB = "fragments"
_META_FOLDER = "__fragment_meta"

_Work = Callable[[Any, str, Any], None]
"""Takes TileDB, an array's URI and a new configuration."""


class _Every(msgspec.Struct, frozen=True):
    every_commits: int


class _Jobs(msgspec.Struct, frozen=True):
    """The format's own fields of the section `maintenance`."""

    commits: _Every | None = _Every(100)
    fragment_meta: _Every | None = _Every(10)
    fragments: _Every | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The result of an assessment.

    Attributes:
        commit_files: Number of commit files that are not merged.
        without_meta: Number of fragments whose footers are in no merged file.
        mergeable: Fragments that every pipeline has delivered.
        removable: Merged fragments whose originals may be deleted.
        waiting: Merged fragments whose originals stay, and why.
    """

    timeline: Timeline
    commit_files: int
    without_meta: int
    mergeable: tuple[TimedName, ...]
    removable: tuple[TimedName, ...]
    waiting: str


class ArrayMaintenance(OneProcessMaintenance):
    """Maintains one array; see `formats.maintenance.TableMaintenance`."""

    def __init__(
        self, request: PartRequest, policies: MaintenancePolicies, clock: Clock, floor: AskFloor
    ) -> None:
        super().__init__(request, policies, clock, floor)
        location = request.location
        self._log = ArrayLog(location.store, location.root, location.url)
        self._jobs = policies.jobs_as(_Jobs, FORMAT)

    async def assessment(
        self, *, with_cleanup: bool = True, is_requested: bool = False
    ) -> LogAssessment:
        """Read the array's commits and decide which files are merged and deleted.

        Raises:
            NotATableError: There is no array.
            TableError, StorageError: It cannot be read.
        """
        timeline = await self._log.refresh(self._clock.now_ms())
        table_id = self._log.schemas[0].identity
        floor = await self._floor(table_id)
        found = await self._find_work(timeline, floor)
        obstacle = floor.obstacle
        if self._is_paused():
            obstacle = PAUSED
        decisions = [
            self._merge_commits(found, is_requested=is_requested),
            self._merge_meta(found, is_requested=is_requested),
            self._merge_fragments(found, obstacle),
        ]
        if with_cleanup:
            decisions.append(self._vacuum(found, obstacle))
        return LogAssessment(
            table_id=table_id,
            version=max(timeline.head, 0),
            decisions=tuple(decisions),
            floor=floor,
            has_expired=bool(found.removable and self._policies.cleanup.is_enabled),
            payload=found,
        )

    async def _find_work(self, timeline: Timeline, floor: RetentionFloor) -> _Found:
        store, root = self._location.store, self._location.root
        names = [file.name async for file in store.list_from(f"{root}/{COMMITS}")]
        one_each = (CommitKind.WRITE.value, CommitKind.DELETE.value)
        metas = [
            name
            async for file in store.list_from(f"{root}/{_META_FOLDER}")
            if (name := timed_name(file.name.partition(".")[0])) is not None
        ]
        last_meta = max((each.last_ms for each in metas), default=-1)
        until = self._until(floor)
        removable, waiting = self._removable(timeline, until)
        return _Found(
            timeline=timeline,
            commit_files=sum(name.endswith(one_each) for name in names),
            without_meta=sum(each.last_ms > last_meta for each in timeline.fragments),
            mergeable=_mergeable(timeline, until),
            removable=removable,
            waiting=waiting,
        )

    def _until(self, floor: RetentionFloor) -> int:
        """Return the first time that must stay readable."""
        cleanup = self._policies.cleanup
        requested = [self._clock.now_ms() - int((cleanup.older_than_seconds or 0.0) * 1000) + 1]
        if floor.from_version is not None:
            requested.append(floor.from_version)
        if cleanup.keep_from is not None:
            requested.append(cleanup.keep_from)
        return min(requested)

    def _removable(self, timeline: Timeline, until: int) -> tuple[tuple[TimedName, ...], str]:
        there = {each.text for each in timeline.commits.fragments}
        merged = [
            each
            for each in sorted(timeline.commits.fragments)
            if timeline.commits.to_vacuum.get(each.text, frozenset()) & there
        ]
        ready = tuple(each for each in merged if each.last_ms < until)
        left = len(merged) - len(ready)
        return ready, f"{left} merged fragments reach to what must stay readable." if left else ""

    # ------------------------------------------------------------------ decisions

    def _merge_commits(self, found: _Found, *, is_requested: bool) -> Decision:
        policy = self._jobs.commits
        if policy is None:
            return Decision(job=COMMITS_JOB, is_due=False, reason="`commits` is null.")
        most = 2 if is_requested else policy.every_commits
        count, deletes = found.commit_files, len(found.timeline.commits.deletes)
        reason = f"{count} commit files are not merged; due at {most}."
        if deletes:
            # TileDB 2.30 reads the files of deletes that it has already merged and deleted.
            reason += (
                f" TileDB cannot merge commits again that have deletes, and there are {deletes}."
            )
        return Decision(
            job=COMMITS_JOB,
            is_due=count >= most and not deletes,
            reason=reason,
            cost=f"One file is written, {count} are deleted; history does not change.",
            saves=f"A listing of {count} names whenever the array is opened.",
        )

    def _merge_meta(self, found: _Found, *, is_requested: bool) -> Decision:
        policy = self._jobs.fragment_meta
        if policy is None:
            return Decision(job=_META_JOB, is_due=False, reason="`fragment_meta` is null.")
        most = 2 if is_requested else policy.every_commits
        count = found.without_meta
        return Decision(
            job=_META_JOB,
            is_due=count >= most,
            reason=f"The metadata of {count} fragments is not merged; due at {most}.",
            cost="One file is written; history does not change.",
            saves=f"{count} requests whenever the array is opened.",
        )

    def _merge_fragments(self, found: _Found, obstacle: str) -> Decision:
        policy, count = self._jobs.fragments, len(found.mergeable)
        if policy is None:
            return Decision(
                job=FRAGMENTS_JOB,
                is_due=False,
                reason=f"{count} fragments could be merged; no policy `fragments` is set.",
            )
        is_due = count >= max(2, policy.every_commits) and not obstacle
        return Decision(
            job=FRAGMENTS_JOB,
            is_due=is_due,
            reason=f"{count} fragments are delivered by every pipeline; due at"
            f" {policy.every_commits}." + (f" {obstacle}" if obstacle else ""),
            cost="All their cells are written again.",
            saves=f"{count} fragments are read as one.",
        )

    def _vacuum(self, found: _Found, obstacle: str) -> Decision:
        count = len(found.removable)
        why = [f"The originals of {count} merged fragments could be deleted."]
        if found.waiting:
            why.append(found.waiting)
        if not self._policies.cleanup.is_enabled:
            why.append(SWITCHED_OFF)
        elif obstacle:
            why.append(obstacle)
        is_due = bool(count) and self._policies.cleanup.is_enabled and not obstacle
        return Decision(
            job=CLEANUP,
            is_due=is_due,
            reason=" ".join(why),
            cost=f"The originals of {count} merged fragments are deleted.",
            saves="Their bytes.",
        )

    # ------------------------------------------------------------------ jobs

    async def apply(self, assessment: LogAssessment, decision: Decision) -> JobResult:
        """Run one due job.

        Raises:
            TableError, StorageError: It failed; no reader sees a wrong state.
        """
        found = assessment.payload
        if not isinstance(found, _Found):
            raise BugError(f"The job {decision.job} of an array was never planned.")
        match decision.job:
            case "commits":
                await self._run(_merge("commits"), _delete("commits"))
                return self._done(assessment, COMMITS_JOB, found.commit_files, "commit files")
            case "fragment_meta":
                await self._run(_merge("fragment_meta"), _delete("fragment_meta"))
                return self._done(assessment, _META_JOB, found.without_meta, "fragments' metadata")
            case "fragments":
                last = max(each.last_ms for each in found.mergeable)
                await self._run(_merge("fragments", last))
                return self._done(assessment, FRAGMENTS_JOB, len(found.mergeable), "fragments")
            case _:
                return await self._delete_originals(assessment, found)

    async def _delete_originals(self, assessment: LogAssessment, before: _Found) -> JobResult:
        """Delete originals that may still be deleted: a pipeline's offset may have been reset."""
        floor = await self._floor(assessment.table_id)
        now = await self._find_work(await self._log.refresh(self._clock.now_ms()), floor)
        agreed = [each for each in now.removable if each in before.removable]
        if not agreed or floor.obstacle:
            return nothing_deleted(assessment, floor.obstacle or "No file may be deleted any more.")
        originals = [
            each
            for each in now.timeline.commits.fragments
            if any(each.text in now.timeline.commits.to_vacuum[m.text] for m in agreed)
        ]
        size = await self._log.fragment_bytes(originals)
        last = max(each.last_ms for each in agreed)
        await self._run(_delete("fragments", last))
        return JobResult(
            job=CLEANUP,
            outcome="deleted",
            version=assessment.version,
            files=len(originals),
            size_bytes=size,
            summary=f"{len(originals)} fragments of {size} bytes that were merged are deleted.",
        )

    def _done(self, assessment: LogAssessment, job: str, count: int, what: str) -> JobResult:
        return JobResult(
            job=job,
            outcome="written",
            version=assessment.version,
            files=1,
            summary=f"{count} {what} were merged.",
        )

    async def _run(self, *works: _Work) -> None:
        def run() -> None:
            with changing(self._location.url, self._location.stores) as (library, uri, config):
                for work in works:
                    work(library, uri, config)

        await asyncio.to_thread(run)

    async def check_readable_from(self, version: Version, reader: str) -> None:
        """Make sure that a reader which has yet to read `version` can continue from there.

        Raises:
            UsageError: The version is beyond the next one.
            MissingVersionError: Its cells were merged and lost their times.
        """
        timeline = await self._log.refresh(self._clock.now_ms())
        if version > timeline.head + 1:
            raise UsageError(f"Version {version} is ahead: the newest is {timeline.head}.")
        merged = timeline.hiding(int(version) - 1)
        if merged is not None:
            raise MissingVersionError(
                f"{reader} cannot resume at {version}: the fragment of that time was merged"
                f" into {merged.text} and vacuumed."
            )


def _mergeable(timeline: Timeline, until: int) -> tuple[TimedName, ...]:
    """Return the fragments before a time that are not in a merged fragment yet."""
    merged = {name for names in timeline.commits.to_vacuum.values() for name in names}
    earlier = (each for each in timeline.fragments if each.last_ms < until)
    return tuple(each for each in earlier if each.text not in merged)


def _merge(mode: str, until_ms: int | None = None) -> _Work:
    return partial(_call_library, "consolidate", _settings("consolidation", mode, until_ms))


def _delete(mode: str, until_ms: int | None = None) -> _Work:
    return partial(_call_library, "vacuum", _settings("vacuum", mode, until_ms))


def _settings(call: str, mode: str, until_ms: int | None) -> dict[str, str]:
    until = {} if until_ms is None else {f"sm.{call}.timestamp_end": str(until_ms)}
    return {f"sm.{call}.mode": mode, **until}


def _call_library(
    call: str, settings: Mapping[str, str], library: Any, uri: str, config: Any
) -> None:
    for name, value in settings.items():
        config[name] = value
    getattr(library, call)(uri, ctx=library.Ctx(config), config=config)
