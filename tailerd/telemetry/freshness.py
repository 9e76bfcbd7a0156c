"""How much of the time a table was fresh, by day, against an objective and its error budget."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

BUDGET_DAYS = 30
_DAY_MS = 86_400_000
_LONGEST_SECONDS = 60.0
"""Of one sample: the machine may have slept since the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Rows are at most `within_seconds` late for `target` percent of the time."""

    within_seconds: float
    target: float


class FreshnessDays:
    """Seconds of each day in which the lag was known, and in which it was too long."""

    def __init__(self) -> None:
        self._days: deque[list[float]] = deque(maxlen=BUDGET_DAYS)

    def add(self, seconds: float, lag_seconds: float, objective: Objective, now_ms: int) -> bool:
        """Count the time since the last sample; return whether the table is late."""
        is_late = lag_seconds > objective.within_seconds
        seconds, day = min(seconds, _LONGEST_SECONDS), now_ms // _DAY_MS
        if not self._days or self._days[-1][0] < day:
            self._days.append([day, 0.0, 0.0])
        self._days[-1][1] += seconds
        self._days[-1][2] += seconds * is_late
        return is_late

    def describe(self, objective: Objective, now_ms: int) -> dict[str, float]:
        """Return the times of the last 30 days, and the error budget that is left of them."""
        first = now_ms // _DAY_MS - BUDGET_DAYS + 1
        known = sum(seconds for day, seconds, _ in self._days if day >= first)
        late = sum(seconds for day, _, seconds in self._days if day >= first)
        budget = BUDGET_DAYS * _DAY_MS / 1000 * (100 - objective.target) / 100
        return {
            "within_seconds": objective.within_seconds,
            "target": objective.target,
            "known_seconds": round(known, 3),
            "late_seconds": round(late, 3),
            "budget_seconds": round(budget, 3),
            "budget_left_seconds": round(budget - late, 3),
        }

    def to_json(self) -> list[list[float]]:
        """Return the days, oldest first: number since the epoch, seconds known, seconds late."""
        return [[day, round(known, 3), round(late, 3)] for day, known, late in self._days]

    def restore(self, saved: object) -> None:
        """Restore the output of `to_json`, before the days counted since; ignore invalid days."""
        days = {day: [day, known, late] for day, known, late in filter(_is_day, _listed(saved))}
        for day, known, late in self._days:
            before = days.get(day, [day, 0.0, 0.0])
            days[day] = [day, before[1] + known, before[2] + late]
        self._days = deque((days[day] for day in sorted(days)), maxlen=BUDGET_DAYS)


def _listed(saved: object) -> list[list[float]]:
    return saved if isinstance(saved, list) else []


def _is_day(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 3
        and all(type(each) in (int, float) and 0 <= each < 1e9 for each in value)
    )
