"""One table's maintenance: look, decide, do what is due, say when to look again."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from tailerd.backoff import Backoff
from tailerd.clock import Clock
from tailerd.errors import (
    BugError,
    ConditionalPutUnsupportedError,
    ConfigError,
    MaintenanceBusyError,
    StorageError,
    TableError,
    TailerdError,
)
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.maintenance.jobs import JobResult, Survey, TableMaintenance
from tailerd.formats.delta.maintenance.plan import Policies
from tailerd.formats.delta.maintenance.policies.base import Decision
from tailerd.maintenance.needs import Needs
from tailerd.storage.lease import LEASE_SECONDS, Lease
from tailerd.telemetry import Telemetry, events

REFUSED_SECONDS = 60.0
"""How long a log that must be left alone is not looked at again, whatever happens to it."""
LONGEST_SLEEP_SECONDS = 3600.0
"""Wall clocks jump: what waits for a time of day is looked at now and then."""
JUMP_SECONDS = 3600.0
MISTRUST_SECONDS = 86_400.0
"""A wall clock that jumps by so much is not believed for so long: what has expired is deleted."""
_BACKOFF = Backoff(first_seconds=2.0, max_seconds=600.0)


CLOCK_JUMPED = "clock_jumped"
SURVEY = "survey"
"""What the look at a log is called among its jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTable:
    """A table whose log is maintained.

    Attributes:
        place: Path or URL, as it is configured.
        folder: Its log, as the watchers call it.
        is_alone: Whether no pipeline delivers it.
        is_measured: Whether its size is to be told too.
        allowed: Places that symbolic links in its log may lead to, for reading.
    """

    place: str
    folder: str
    policies: Policies
    is_alone: bool
    is_measured: bool = False
    allowed: tuple[str, ...] = ()


class TableKeeper:
    """Maintains one table. Used by one task.

    Args:
        name: For telemetry.
        reader: The table's log.
        needs: Asked before each cleanup, with the table's id: what pipelines want of the log.
        is_wanted: Asked between two jobs: whether to go on.

    Attributes:
        error: Why the last turn failed; None where it did not.
        found: Id and newest version of the table, as of the last turn that saw it.
    """

    def __init__(
        self,
        name: str,
        kept: KeptTable,
        reader: LogReader,
        *,
        telemetry: Telemetry,
        clock: Clock,
        needs: Callable[[str], Awaitable[Needs]],
        is_wanted: Callable[[], bool],
    ) -> None:
        self.kept = kept
        self.error: TailerdError | None = None
        self.found: tuple[str, int] | None = None
        self._name = name
        self._telemetry = telemetry
        self._clock = clock
        self._needs = needs
        self._is_wanted = is_wanted
        self._work = TableMaintenance(
            reader,
            kept.policies,
            clock=clock,
            needs=needs,
        )
        self._lease = Lease(reader.store, reader.root, clock=clock)
        self._attempt = 0
        self._not_before = float("-inf")
        # The last look for what has expired that left nothing undone.
        self._cleaned_at = float("-inf")
        self._no_cleanup_before = float("-inf")
        self._cleanup_attempt = 0
        self._is_told_to_wait = False
        self._clocks: tuple[int, float] | None = None
        self._refusal: dict[str, object] | None = None
        self._random = random.Random()
        self._is_asked = False

    def ask(self) -> None:
        """Let the next turn write a checkpoint before a limit is reached, where there is need."""
        self._is_asked = True
        self._not_before = float("-inf")

    async def turn(self) -> float | None:
        """Look once and do what is due.

        Returns:
            Seconds until another look is worth it although nothing happens; None for never.
        """
        now = self._clock.monotonic()
        if now < self._not_before:
            return self._not_before - now
        self.error = None
        self._compare_clocks(now)
        job = SURVEY
        self._telemetry.emit(events.MaintenanceStarted(table=self._name, job=job))
        try:
            survey = await self._survey(now)
            for decision in [each for each in survey.decisions if each.is_due]:
                job = decision.job
                if not self._is_wanted():
                    break
                await self._do(survey, decision)
        except MaintenanceBusyError as error:
            self._hold_cleanup(LEASE_SECONDS)
            self._telemetry.emit(events.MaintenanceYielded(table=self._name, hint=str(error)))
            return LEASE_SECONDS
        except TailerdError as error:
            return self._on_error(job, error, now)
        except Exception as error:  # noqa: BLE001 - deliveries must not end with it
            bug = BugError(f"A maintenance job broke: {error!r}.", hint="Please report it.")
            return self._on_error(job, bug, now)
        self._attempt, self._refusal = 0, None
        return self._rest(survey)

    def _compare_clocks(self, now: float) -> None:
        """Hold cleanups back where the wall clock went another way than the monotonic one."""
        now_ms = self._clock.now_ms()
        before, self._clocks = self._clocks, (now_ms, now)
        if before is None or not self.kept.policies.cleanup.is_enabled:
            return
        jump = (now_ms - before[0]) / 1000 - (now - before[1])
        if abs(jump) < JUMP_SECONDS:
            return
        self._no_cleanup_before = now + MISTRUST_SECONDS
        self._telemetry.emit(
            events.MaintenanceFailed(
                table=self._name,
                job="cleanup",
                error_code=CLOCK_JUMPED,
                hint=f"The clock jumped by {jump:.0f} s, so nothing is cleaned up for a day: what"
                " has expired is told by the clock.",
            )
        )

    async def _survey(self, now: float) -> Survey:
        is_time = self._cleanup_wait() == 0
        # It will ring when that has changed.
        table_id, _ = self.found or ("", 0)
        self._is_told_to_wait = is_time and bool((await self._needs(table_id)).obstacle)
        is_cleaning = is_time and not self._is_told_to_wait
        survey = await self._work.survey(with_cleanup=is_cleaning)
        self.found = (survey.state.metadata.id, survey.stats.version)
        if is_cleaning:
            self._tell_obstacle(survey.needs)
            if not survey.cleanup.files and survey.cleanup_error is None:
                self._cleaned_at, self._cleanup_attempt = now, 0
        if self._is_asked:
            self._is_asked = False
            survey = _as_asked(survey)
        due = [each for each in survey.decisions if each.is_due]
        self._telemetry.emit(
            events.LogSurveyed(
                table=self._name,
                path=self.kept.place,
                version=survey.stats.version,
                is_alone=self.kept.is_alone,
                due=tuple(each.job for each in due),
                due_reasons=tuple(each.reason for each in due),
            )
        )
        if survey.cleanup_error is not None:
            self._on_cleanup_error(survey.cleanup_error, now)
        return survey

    def _tell_obstacle(self, needs: Needs) -> None:
        if needs.error_code:
            self._telemetry.emit(
                events.MaintenanceFailed(
                    table=self._name,
                    job="cleanup",
                    error_code=needs.error_code,
                    hint=needs.obstacle,
                )
            )

    def _cleanup_wait(self) -> float | None:
        """Return in how many seconds to look for what has expired; 0 for now, None for never."""
        policies = self.kept.policies
        if not policies.cleanup.is_enabled:
            return None
        at = max(self._cleaned_at + policies.cleanup.every_seconds, self._no_cleanup_before)
        now_ms = self._clock.now_ms()
        until_ms = policies.paused_until_ms(now_ms) or now_ms
        return max(0.0, at - self._clock.monotonic(), (until_ms - now_ms) / 1000)

    def _hold_cleanup(self, seconds: float) -> None:
        until = self._clock.monotonic() + seconds
        self._no_cleanup_before = max(self._no_cleanup_before, until)

    async def _do(self, survey: Survey, decision: Decision) -> None:
        match decision.job:
            case "checksum":
                # Cheaper than taking turns for it, and a second one does no harm.
                await self._apply(survey, decision)
            case "cleanup":
                await self._clean_up(survey, decision)
            case _:
                async with self._lease.held():
                    await self._apply(survey, decision)

    async def _clean_up(self, survey: Survey, decision: Decision) -> None:
        """Clean up; what fails of that is tried again by itself and holds up no other job."""
        began = self._clock.monotonic()
        try:
            async with self._lease.held():
                result = await self._apply(survey, decision)
        except ConditionalPutUnsupportedError:
            raise
        except (TableError, StorageError) as error:
            self._on_cleanup_error(error, began)
            return
        if result.outcome == "deleted":
            self._cleaned_at, self._cleanup_attempt = began, 0
        else:
            # Somebody wanted it meanwhile: that is another plan.
            self._hold_cleanup(LEASE_SECONDS)

    def _on_cleanup_error(self, error: TailerdError, began: float) -> None:
        self.error = error
        if isinstance(error, TableError) and not error.retryable:
            # Nobody but an operator mends that.
            self._hold_cleanup(self.kept.policies.cleanup.every_seconds)
        else:
            self._hold_cleanup(_BACKOFF.wait_seconds(self._cleanup_attempt, self._random))
            self._cleanup_attempt += 1
        self._tell_failure("cleanup", error, began)

    async def _apply(self, survey: Survey, decision: Decision) -> JobResult:
        began = self._clock.monotonic()
        self._telemetry.emit(events.MaintenanceStarted(table=self._name, job=decision.job))
        result = await self._work.apply(survey, decision)
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
                hint=f"{result.summary} {decision.reason}",
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
                        table=self._name, error_code=error.code, hint=str(error)
                    )
                )
            return None
        wait = _BACKOFF.wait_seconds(self._attempt, self._random)
        self._attempt += 1
        self._not_before = now + wait
        self._tell_failure(job, error, began)
        return wait

    def _tell_failure(self, job: str, error: TailerdError, began: float) -> None:
        self._telemetry.emit(
            events.MaintenanceFailed(
                table=self._name,
                job=job,
                error_code=error.code,
                hint=str(error),
                duration_seconds=self._clock.monotonic() - began,
            )
        )

    def _rest(self, survey: Survey) -> float | None:
        now_ms = self._clock.now_ms()
        waits = [
            max(0.0, each.due_ms - now_ms) / 1000
            for each in survey.decisions
            if each.due_ms is not None and not each.is_due
        ]
        cleanup = self._cleanup_wait()
        if cleanup is not None and not self._is_told_to_wait:
            waits.append(cleanup)
        return min([*waits, LONGEST_SLEEP_SECONDS]) if waits else None


def _as_asked(survey: Survey) -> Survey:
    """Make a checkpoint due that an operator asks for, unless nothing came since the last one."""
    return replace(
        survey,
        decisions=tuple(
            replace(each, is_due=True, reason="An operator asked for it.")
            if each.job == "checkpoint" and not each.is_due and survey.stats.commits
            else each
            for each in survey.decisions
        ),
    )
