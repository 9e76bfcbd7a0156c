"""Common parts of maintenance for formats whose jobs never run on an engine."""

from __future__ import annotations

from collections.abc import Callable

from tailerd.clock import Clock
from tailerd.errors import BugError
from tailerd.formats.maintenance import (
    CLEANUP,
    AskFloor,
    JobResult,
    LogAssessment,
    MaintenancePolicies,
    RunOnEngine,
    TableMaintenance,
    TaskExecutor,
    no_readers,
)
from tailerd.formats.part_request import PartRequest

PAUSED = "The policy pauses at this time of the day."
SWITCHED_OFF = "Cleanup is not switched on."


class OneProcessMaintainer:
    """The `Maintainer` of a format whose jobs run in the assessing process.

    Args:
        make: Returns the maintenance of one table; makes no request yet.
    """

    def __init__(
        self,
        make: Callable[[PartRequest, MaintenancePolicies, Clock, AskFloor], TableMaintenance],
    ) -> None:
        self._make = make

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

        Raises:
            ConfigError: The policies are not valid for this format.
        """
        return self._make(request, policies, clock, floor)

    async def run_request(self, request: PartRequest, job: bytes, executor: TaskExecutor) -> bytes:
        """Raise `BugError`: no job of these formats runs on an engine."""
        raise BugError(f"The table {request.location.url} has no job that an engine does.")


class OneProcessMaintenance:
    """The part of `TableMaintenance` that does not depend on the format; formats inherit it."""

    unleased_jobs: frozenset[str] = frozenset()

    def __init__(
        self, request: PartRequest, policies: MaintenancePolicies, clock: Clock, floor: AskFloor
    ) -> None:
        self._request, self._location = request, request.location
        self._policies = policies
        self._clock = clock
        self._floor = floor

    def note_result(self, assessment: LogAssessment, result: JobResult) -> None:
        """Do nothing: each assessment reads the table."""

    def _is_paused(self) -> bool:
        return self._policies.paused_until_ms(self._clock.now_ms()) is not None


def nothing_deleted(assessment: LogAssessment, why: str) -> JobResult:
    """Return the result of a cleanup that had nothing left to delete."""
    return JobResult(job=CLEANUP, outcome="nothing_to_say", version=assessment.version, summary=why)
