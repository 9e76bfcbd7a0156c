"""The contract of table maintenance: an optional part of a table format.

The format decides which jobs a table needs and runs them. Scheduling, the lease, pins, pauses,
retries and the processes of jobs belong to `tailerd.maintenance`, which depends on no format.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import msgspec

from tailerd.changefeed.offset import Version
from tailerd.clock import Clock
from tailerd.errors import ConfigError, TailerdError
from tailerd.formats.part_request import PartRequest
from tailerd.registry import unknown_field

CLEANUP = "cleanup"
"""The job that deletes expired files: the only one that depends on what readers still need."""
DAY_MINUTES = 24 * 60
MINUTE_MS = 60_000

_COMMON_FIELDS = ("cleanup", "not_between")
"""Fields of the section `maintenance` that every format has."""

_Jobs = TypeVar("_Jobs", bound=msgspec.Struct)
_In = TypeVar("_In")
_Out = TypeVar("_Out")
_Piece = TypeVar("_Piece")
_Shared = TypeVar("_Shared")


# ---------------------------------------------------------------------- policies


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupPolicy:
    """Whether and when expired files are deleted.

    Attributes:
        is_enabled: Off by default: deleted versions cannot be read again.
        older_than_seconds: Retention, if longer than the table's own; never shorter.
        every_seconds: How often to check for expired files.
        keep_from: Oldest version that must stay readable; None for no such limit.
        wait_for_pins: Consumers whose pins must exist before any file is deleted.
    """

    is_enabled: bool = False
    older_than_seconds: float | None = None
    every_seconds: float = 3600.0
    keep_from: int | None = None
    wait_for_pins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DailyPause:
    """A daily period in which only jobs that need no lease run.

    Attributes:
        start_minute, end_minute: Minutes after midnight UTC; an end before the start is on the
            next day.
    """

    start_minute: int
    end_minute: int

    def end_ms(self, now_ms: int) -> int:
        """Return when the pause is over, or `now_ms` outside of it."""
        length_ms = (self.end_minute - self.start_minute) % DAY_MINUTES * MINUTE_MS
        began_ms = (now_ms - self.start_minute * MINUTE_MS) % (DAY_MINUTES * MINUTE_MS)
        return now_ms - began_ms + length_ms if began_ms < length_ms else now_ms


def paused_until_ms(pauses: Sequence[DailyPause], now_ms: int) -> int | None:
    """Return when the pauses that include this time end; None if there is none."""
    until_ms = now_ms
    for _ in pauses:
        # One pause may end where another begins.
        until_ms = max([until_ms, *(pause.end_ms(until_ms) for pause in pauses)])
    return until_ms if until_ms > now_ms else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """An engine that runs jobs too large for one process.

    Attributes:
        kind: Its key in `registry.MAINTENANCE_PROGRAMS`.
        master, conf: Where its session runs, and the session's configuration.
    """

    kind: str = "spark"
    master: str = "local[*]"
    conf: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenancePolicies:
    """The maintenance settings of one table, in a form common to all formats.

    Attributes:
        jobs: The format's own fields of the section `maintenance`, already validated: one JSON
            object; empty for the format's defaults.
        engine: Runs the large jobs; None to run them in this process.
    """

    jobs: str = ""
    cleanup: CleanupPolicy = field(default_factory=CleanupPolicy)
    pauses: tuple[DailyPause, ...] = ()
    engine: EngineSettings | None = None

    def paused_until_ms(self, now_ms: int) -> int | None:
        """Return when the pauses that include this time end; None if there is none."""
        return paused_until_ms(self.pauses, now_ms)

    def jobs_as(self, kind: type[_Jobs], table_format: str) -> _Jobs:
        """Return the format's own fields of the section.

        Raises:
            ConfigError: The format does not have one of them, or a value is invalid.
        """
        own = json.loads(self.jobs or "{}")
        there = (*kind.__struct_fields__, *_COMMON_FIELDS)
        for name in own if self.engine is None else (*own, "engine"):
            if name not in there:
                raise unknown_field("maintenance", name, table_format, there)
        try:
            return msgspec.convert(own, kind)
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f"The section `maintenance` does not fit a table of the format {table_format}:"
                f" {error}."
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionFloor:
    """What readers of a table still need of its history.

    Attributes:
        from_version: The oldest version whose changes a reader has yet to read; None if no reader
            has any left. The format determines the versions that must stay readable, such as the
            one before.
        obstacle: Why that is not known yet; empty if it is.
        error_code: Of an obstacle that an operator should see; empty for a transient one.
        by: The reader that needs that version, human-readable.
    """

    from_version: int | None = None
    obstacle: str = ""
    error_code: str = ""
    by: str = "a pipeline"

    def and_also(self, other: RetentionFloor) -> RetentionFloor:
        """Return the floor that satisfies both."""
        if self.obstacle or other.obstacle:
            return self if self.obstacle else other
        if other.from_version is None:
            return self
        if self.from_version is None or other.from_version < self.from_version:
            return other
        return self


AskFloor = Callable[[str], Awaitable[RetentionFloor]]
"""Takes a table's id and returns what readers need of its history."""


async def no_readers(_: str) -> RetentionFloor:
    """Return the floor of a table without readers."""
    return RetentionFloor()


# ---------------------------------------------------------------------- decisions and results


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether a job is due.

    Attributes:
        job: The format's name of the job; `CLEANUP` for the one that deletes expired files.
        reason: Why, or why not: one sentence.
        cost, saves: Its reads and writes, and the gain for readers; sentences, if it is due.
        cost_seconds, cost_bytes: Estimates of the same: time, and bytes written.
        saves_seconds: Time saved by each reader that opens the table cold.
        start_version, end_version: The versions it covers.
        due_ms: When it becomes due by time alone, if the table does not change; None if it is due
            now, or does not depend on time. Milliseconds since the epoch.
    """

    job: str
    is_due: bool
    reason: str
    cost: str = ""
    saves: str = ""
    cost_seconds: float = 0.0
    cost_bytes: int = 0
    saves_seconds: float = 0.0
    start_version: int | None = None
    end_version: int | None = None
    due_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """The result of one job.

    Attributes:
        outcome: `written`, `deleted`, `already_there` or `nothing_to_say`.
        version: The newest version it covers; for a cleanup, the oldest that remains.
        files: How many files were written or deleted.
        summary: One sentence.
    """

    job: str
    outcome: str
    version: int
    files: int = 0
    size_bytes: int = 0
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAssessment:
    """A table's log as it was read, and the decisions of the policies.

    Attributes:
        version: The newest.
        floor: What readers needed when the cleanup was planned.
        has_expired: Whether a cleanup would delete anything.
        cleanup_error: Why no cleanup could be planned, which affects no other job; None if it
            could.
        payload: The format's own data, passed back to `apply`.
    """

    table_id: str
    version: int
    decisions: tuple[Decision, ...]
    floor: RetentionFloor = field(default_factory=RetentionFloor)
    has_expired: bool = False
    cleanup_error: TailerdError | None = None
    payload: object = None


# ---------------------------------------------------------------------- the part of a format


class TableMaintenance(Protocol):
    """The maintenance of one table. Used by one task at a time."""

    @property
    def unleased_jobs(self) -> frozenset[str]:
        """Jobs that are cheaper than acquiring the lease, and harmless if they run twice."""
        ...

    async def assessment(
        self, *, with_cleanup: bool = True, is_requested: bool = False
    ) -> LogAssessment:
        """Read the table's log and decide which jobs are due.

        Args:
            with_cleanup: Whether to check for expired files, which may read all of the log.
            is_requested: An operator requested maintenance: every job that is of any use is due.

        Raises:
            UnsupportedFeatureError: The table requires a writer feature that is not supported.
            ConfigError: The policies contradict the table.
            TableError, StorageError: The table cannot be read.
        """
        ...

    async def apply(self, assessment: LogAssessment, decision: Decision) -> JobResult:
        """Run one due job according to an assessment of this object.

        Raises:
            TableError, StorageError: It failed; no reader sees a wrong state.
        """
        ...

    def note_result(self, assessment: LogAssessment, result: JobResult) -> None:
        """Note the result of a job that ran in another process."""
        ...

    async def check_readable_from(self, version: Version, reader: str) -> None:
        """Make sure that a reader which has yet to read `version` can continue from there.

        Args:
            reader: Its name, for the error.

        Raises:
            UsageError: The version is beyond the next one.
            MissingVersionError: It can no longer be read.
        """
        ...


class Maintainer(Protocol):
    """Opens the maintenance of a format's tables."""

    def open(
        self,
        request: PartRequest,
        policies: MaintenancePolicies,
        *,
        clock: Clock,
        floor: AskFloor = no_readers,
        run_on_engine: RunOnEngine | None = None,
    ) -> TableMaintenance:
        """Return the maintenance of one table; makes no request yet.

        Args:
            floor: Called before and during each cleanup.
            run_on_engine: Runs a request of this format on the engine that the policies name;
                None without such an engine.

        Raises:
            ConfigError: The policies are not valid for this format.
        """
        ...

    async def run_request(self, request: PartRequest, job: bytes, executor: TaskExecutor) -> bytes:
        """Run a request of `run_on_engine` in the engine's program; return its answer.

        Raises:
            TailerdError: It failed.
        """
        ...


RunOnEngine = Callable[[EngineSettings, bytes], Awaitable[bytes]]
"""Runs a format's own request on an engine; returns what `run_request` returned there."""


class TaskExecutor(Protocol):
    """Runs functions in the tasks of an engine: functions, items and results are pickled.

    All methods raise a `TailerdError` that a task raised, or `EngineError` if the engine failed.
    """

    async def map(self, items: Sequence[_In], work: Callable[[_In], _Out]) -> list[_Out]:
        """Run `work` for each item in its own task; return the results in the order of items."""
        ...

    async def map_with(
        self, shared: _Shared, items: Sequence[_In], work: Callable[[_In, _Shared], _Out]
    ) -> list[_Out]:
        """As `map`, with a value that is sent to each worker once."""
        ...

    async def map_by_range(
        self,
        items: Sequence[_In],
        cut: Callable[[_In], Iterable[tuple[int, _Piece]]],
        ranges: int,
        write: Callable[[Iterable[_Piece]], Iterable[_Out]],
    ) -> list[_Out]:
        """Cut items into pieces in tasks, shuffle the pieces by range, and write each range.

        Args:
            cut: Yields pieces with the number of their range, from 0 to `ranges` - 1.
            write: Called once for each range with its pieces, in any order.
        """
        ...
