"""One table's maintenance: assess the log, decide, run due jobs, name the next assessment."""

from __future__ import annotations

import random
from collections.abc import Callable

from tailerd.backoff import Backoff
from tailerd.clock import Clock
from tailerd.errors import (
    BugError,
    ConditionalPutUnsupportedError,
    ConfigError,
    MaintenanceBusyError,
    MaintenanceProcessError,
    StorageError,
    TableError,
    TailerdError,
)
from tailerd.formats.maintenance import (
    CLEANUP,
    AskFloor,
    Decision,
    JobResult,
    LogAssessment,
    RetentionFloor,
    TableMaintenance,
)
from tailerd.maintenance.opening import MaintainedTable, OpenMaintained
from tailerd.maintenance.programs import MaintenanceTarget
from tailerd.storage.lease import LEASE_SECONDS, Lease
from tailerd.telemetry import Telemetry, events

REFUSED_SECONDS = 60.0
"""How long a log that cannot be maintained is not assessed again, even if it changes."""
LONGEST_SLEEP_SECONDS = 3600.0
"""Wall clocks jump: jobs that wait for a time of day are checked at least this often."""
JUMP_SECONDS = 3600.0
MISTRUST_SECONDS = 86_400.0
"""How long cleanups wait after a jump of the wall clock by `JUMP_SECONDS`: it decides on expiry."""
_BACKOFF = Backoff(first_seconds=2.0, max_seconds=600.0)


CLOCK_JUMPED = "clock_jumped"
SURVEY = "assessment"
"""Name of the assessment of a log among its jobs."""


class TableMaintainer:
    """Maintains one table. Used by one task.

    Args:
        name: For telemetry.
        open_table: Opens the table with the maintenance that its format has.
        needs: Called before each cleanup, with the table's id: which versions are still needed.
        may_continue: Called between two jobs: whether to continue.

    Attributes:
        error: Why the last turn failed; None if it did not.
        found: Id and newest version of the table, as of the last turn that found it.
        table: The opened table; None until a turn found it.
    """

    def __init__(
        self,
        name: str,
        target: MaintenanceTarget,
        open_table: OpenMaintained,
        *,
        telemetry: Telemetry,
        clock: Clock,
        needs: AskFloor,
        may_continue: Callable[[], bool],
    ) -> None:
        self.target = target
        self.error: TailerdError | None = None
        self.found: tuple[str, int] | None = None
        self.table: MaintainedTable | None = None
        self._name = name
        self._telemetry = telemetry
        self._clock = clock
        self._needs = needs
        self._may_continue = may_continue
        self._open_table = open_table
        self._opened: tuple[TableMaintenance, Lease] | None = None
        self._attempt = 0
        self._not_before = float("-inf")
        # The last complete cleanup.
        self._cleaned_at = float("-inf")
        self._no_cleanup_before = float("-inf")
        self._cleanup_attempt = 0
        self._is_waiting_for_readers = False
        self._clocks: tuple[int, float] | None = None
        self._refusal: dict[str, object] | None = None
        self._random = random.Random()
        self._is_asked = False

    def ask(self) -> None:
        """Let the next turn write a checkpoint before a limit is reached, if there is need."""
        self._is_asked = True
        self._not_before = float("-inf")

    async def turn(self) -> float | None:
        """Assess the log once and run due jobs.

        Returns:
            Seconds until the next turn is useful without a change; None for never.
        """
        now = self._clock.monotonic()
        if now < self._not_before:
            return self._not_before - now
        self.error = None
        self._compare_clocks(now)
        job = SURVEY
        self._telemetry.emit(events.MaintenanceStarted(table=self._name, job=job))
        try:
            work, lease = await self._work()
            assessment = await self._assessment(work, now)
            for decision in [each for each in assessment.decisions if each.is_due]:
                job = decision.job
                if not self._may_continue():
                    break
                await self._do(work, lease, assessment, decision)
        except MaintenanceBusyError as error:
            self._hold_cleanup(LEASE_SECONDS)
            self._telemetry.emit(events.MaintenanceYielded(table=self._name, reason=str(error)))
            return LEASE_SECONDS
        except TailerdError as error:
            return self._on_error(job, error, now)
        except Exception as error:  # noqa: BLE001 - deliveries must not end with it
            bug = BugError(
                f"A maintenance job failed unexpectedly: {error!r}.", remedy="Please report it."
            )
            return self._on_error(job, bug, now)
        self._attempt, self._refusal = 0, None
        return self._rest(assessment)

    def _compare_clocks(self, now: float) -> None:
        """Postpone cleanups if the wall clock deviates from the monotonic one."""
        now_ms = self._clock.now_ms()
        before, self._clocks = self._clocks, (now_ms, now)
        if before is None or not self.target.policies.cleanup.is_enabled:
            return
        jump = (now_ms - before[0]) / 1000 - (now - before[1])
        if abs(jump) < JUMP_SECONDS:
            return
        self._no_cleanup_before = now + MISTRUST_SECONDS
        self._telemetry.emit(
            events.MaintenanceFailed(
                table=self._name,
                job=CLEANUP,
                error_code=CLOCK_JUMPED,
                error=f"The clock jumped by {jump:.0f} s, so cleanup is suspended for a day,"
                " because expiry depends on the clock.",
            )
        )

    async def _work(self) -> tuple[TableMaintenance, Lease]:
        if self._opened is None:
            table = self.table = await self._open_table()
            work = table.maintenance(self.target.policies, clock=self._clock, pipelines=self._needs)
            lease = Lease(table.location.store, table.location.root, clock=self._clock)
            self._opened = work, lease
        return self._opened

    async def _assessment(self, work: TableMaintenance, now: float) -> LogAssessment:
        is_time = self._cleanup_wait() == 0
        # The daemon wakes this table when that has changed.
        table_id, _ = self.found or ("", 0)
        self._is_waiting_for_readers = is_time and bool((await self._needs(table_id)).obstacle)
        is_cleaning = is_time and not self._is_waiting_for_readers
        assessment = await work.assessment(with_cleanup=is_cleaning, is_requested=self._is_asked)
        self._is_asked = False
        self.found = (assessment.table_id, assessment.version)
        if is_cleaning:
            self._emit_obstacle(assessment.floor)
            if not assessment.has_expired and assessment.cleanup_error is None:
                self._cleaned_at, self._cleanup_attempt = now, 0
        due = [each for each in assessment.decisions if each.is_due]
        self._telemetry.emit(
            events.LogAssessed(
                table=self._name,
                path=self.target.location,
                version=assessment.version,
                is_alone=self.target.is_alone,
                due=tuple(each.job for each in due),
                due_reasons=tuple(each.reason for each in due),
            )
        )
        if assessment.cleanup_error is not None:
            self._on_cleanup_error(assessment.cleanup_error, now)
        return assessment

    def _emit_obstacle(self, floor: RetentionFloor) -> None:
        if floor.error_code:
            self._telemetry.emit(
                events.MaintenanceFailed(
                    table=self._name,
                    job=CLEANUP,
                    error_code=floor.error_code,
                    error=floor.obstacle,
                )
            )

    def _cleanup_wait(self) -> float | None:
        """Return in how many seconds a cleanup is due; 0 for now, None for never."""
        policies = self.target.policies
        if not policies.cleanup.is_enabled:
            return None
        at = max(self._cleaned_at + policies.cleanup.every_seconds, self._no_cleanup_before)
        now_ms = self._clock.now_ms()
        until_ms = policies.paused_until_ms(now_ms) or now_ms
        return max(0.0, at - self._clock.monotonic(), (until_ms - now_ms) / 1000)

    def _hold_cleanup(self, seconds: float) -> None:
        until = self._clock.monotonic() + seconds
        self._no_cleanup_before = max(self._no_cleanup_before, until)

    async def _do(
        self, work: TableMaintenance, lease: Lease, assessment: LogAssessment, decision: Decision
    ) -> None:
        if decision.job == CLEANUP:
            await self._clean_up(work, lease, assessment, decision)
        elif decision.job in work.unleased_jobs:
            await self._apply(work, assessment, decision)
        else:
            async with lease.hold():
                await self._apply(work, assessment, decision)

    async def _clean_up(
        self, work: TableMaintenance, lease: Lease, assessment: LogAssessment, decision: Decision
    ) -> None:
        """Clean up; a failure is retried separately and delays no other job."""
        began = self._clock.monotonic()
        try:
            async with lease.hold():
                result = await self._apply(work, assessment, decision)
        except ConditionalPutUnsupportedError:
            raise
        except (TableError, StorageError, MaintenanceProcessError) as error:
            self._on_cleanup_error(error, began)
            return
        if result.outcome == "deleted":
            self._cleaned_at, self._cleanup_attempt = began, 0
        else:
            # A pipeline or pin needs the files by now: the next assessment plans again.
            self._hold_cleanup(LEASE_SECONDS)

    def _on_cleanup_error(self, error: TailerdError, began: float) -> None:
        self.error = error
        if isinstance(error, TableError) and not error.retryable:
            # Only an operator can fix that.
            self._hold_cleanup(self.target.policies.cleanup.every_seconds)
        else:
            self._hold_cleanup(_BACKOFF.wait_seconds(self._cleanup_attempt, self._random))
            self._cleanup_attempt += 1
        self._emit_failure(CLEANUP, error, began)

    async def _apply(
        self, work: TableMaintenance, assessment: LogAssessment, decision: Decision
    ) -> JobResult:
        began = self._clock.monotonic()
        self._telemetry.emit(events.MaintenanceStarted(table=self._name, job=decision.job))
        result = await work.apply(assessment, decision)
        self._telemetry.emit(
            events.LogMaintained(
                table=self._name,
                job=result.job,
                version=result.version,
                result=result.outcome,
                files=result.files,
                bytes=result.size_bytes,
                duration_seconds=self._clock.monotonic() - began,
                reason=decision.reason,
                summary=result.summary,
            )
        )
        return result

    def _on_error(self, job: str, error: TailerdError, began: float) -> float | None:
        self.error = error
        now = self._clock.monotonic()
        refusals = TableError | ConfigError | ConditionalPutUnsupportedError
        if isinstance(error, refusals) and not error.retryable:
            self._not_before = now + REFUSED_SECONDS
            if (data := error.to_data()) != self._refusal:
                self._refusal = data
                self._telemetry.emit(
                    events.MaintenanceRefused(
                        table=self._name, error_code=error.code, error=str(error)
                    )
                )
            return None
        wait = _BACKOFF.wait_seconds(self._attempt, self._random)
        self._attempt += 1
        self._not_before = now + wait
        self._emit_failure(job, error, began)
        return wait

    def _emit_failure(self, job: str, error: TailerdError, began: float) -> None:
        self._telemetry.emit(
            events.MaintenanceFailed(
                table=self._name,
                job=job,
                error_code=error.code,
                error=str(error),
                duration_seconds=self._clock.monotonic() - began,
            )
        )

    def _rest(self, assessment: LogAssessment) -> float | None:
        now_ms = self._clock.now_ms()
        waits = [
            max(0.0, each.due_ms - now_ms) / 1000
            for each in assessment.decisions
            if each.due_ms is not None and not each.is_due
        ]
        cleanup = self._cleanup_wait()
        if cleanup is not None and not self._is_waiting_for_readers:
            waits.append(cleanup)
        return min([*waits, LONGEST_SLEEP_SECONDS]) if waits else None
