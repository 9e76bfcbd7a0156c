"""What maintenance has in common of formats of whose jobs none runs on an engine."""

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
from tailerd.formats.placement import TablePlace

PAUSED = "The policy pauses at this time of the day."
SWITCHED_OFF = "Cleanup is not switched on."


class OneProcessMaintainer:
    """The `Maintainer` of a format whose jobs run where the table is looked at.

    Args:
        make: Returns the maintenance of one table; nothing is asked of it yet.
    """

    def __init__(
        self,
        make: Callable[[TablePlace, MaintenancePolicies, Clock, AskFloor], TableMaintenance],
    ) -> None:
        self._make = make

    def open(
        self,
        place: TablePlace,
        policies: MaintenancePolicies,
        *,
        clock: Clock,
        floor: AskFloor = no_readers,
        run_on_engine: RunOnEngine | None = None,
    ) -> TableMaintenance:
        """Return the maintenance of one table; nothing is asked of it yet.

        Raises:
            ConfigError: The policies are none of this format.
        """
        return self._make(place, policies, clock, floor)

    async def run_request(self, place: TablePlace, request: bytes, executor: TaskExecutor) -> bytes:
        """Raise: an engine is never asked for anything."""
        raise BugError(f"The table {place.url} has no job that an engine does.")


class OneProcessMaintenance:
    """The half of `TableMaintenance` that says nothing of the format; formats inherit it."""

    unleased_jobs: frozenset[str] = frozenset()

    def __init__(
        self, place: TablePlace, policies: MaintenancePolicies, clock: Clock, floor: AskFloor
    ) -> None:
        self._place = place
        self._policies = policies
        self._clock = clock
        self._floor = floor

    def _is_paused(self) -> bool:
        return self._policies.paused_until_ms(self._clock.now_ms()) is not None


def nothing_deleted(assessment: LogAssessment, why: str) -> JobResult:
    """Return the result of a cleanup that found nothing to delete any more."""
    return JobResult(job=CLEANUP, outcome="nothing_to_say", version=assessment.version, summary=why)
