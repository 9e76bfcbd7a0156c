"""Figures over time in few bytes: fine for the last minutes, coarse for a week.

Each resolution has its own points, so a coarse one is exact: quantiles are of all deliveries of
its interval, not of finer quantiles. For one thread.
"""

from __future__ import annotations

import base64
import binascii
import math
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

COLUMNS = ("rows_per_second", "lag_seconds", "p50_seconds", "p99_seconds")
"""The values of a point, in addition to its time; an unknown value is NaN."""

POINT_BYTES = 28
"""Of a point in memory: time and values, and the spare capacity of an array."""

_BINS_PER_DOUBLING = 8
"""Bounds of a bin are 9 % apart."""
_WIDTH = len(COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """The interval between points, and the number of points."""

    width_seconds: int
    points: int


RESOLUTIONS = (
    Resolution(width_seconds=10, points=90),
    Resolution(width_seconds=60, points=360),
    Resolution(width_seconds=900, points=672),
)
"""A quarter of an hour, six hours, a week."""


def resolutions_within(share_bytes: int) -> tuple[Resolution, ...]:
    """Return `RESOLUTIONS` with as many points as fit into about `share_bytes`; 12 at least."""
    requested = sum(each.points for each in RESOLUTIONS) * POINT_BYTES
    share = min(1.0, max(0, share_bytes) / requested)
    return tuple(
        Resolution(width_seconds=each.width_seconds, points=max(12, int(each.points * share)))
        for each in RESOLUTIONS
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What happened in a short time.

    Attributes:
        seconds: How long that was.
        rows: Rows delivered in it.
        lag_seconds: At its end; None where it is not known.
        durations: Of each delivery, in seconds.
    """

    seconds: float
    rows: int
    lag_seconds: float | None
    durations: Sequence[float] = ()


class _Open:
    """The interval that has not ended yet."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.seconds = 0.0
        self.rows = 0
        self.lag = math.nan
        self.bins: Counter[int] = Counter()

    def add(self, sample: Sample) -> None:
        self.seconds += sample.seconds
        self.rows += sample.rows
        if sample.lag_seconds is not None:
            # The maximum: a mean hides the peaks that alerts are about.
            self.lag = (
                sample.lag_seconds if math.isnan(self.lag) else max(self.lag, sample.lag_seconds)
            )
        self.bins.update(_bin(each) for each in sample.durations)

    def values(self) -> tuple[float, float, float, float]:
        rate = self.rows / self.seconds if self.seconds else math.nan
        return rate, self.lag, _quantile(self.bins, 0.5), _quantile(self.bins, 0.99)


class _Points:
    """Closed points of one resolution, oldest first, and the open interval."""

    def __init__(self, resolution: Resolution) -> None:
        self.resolution = resolution
        self.times = array("I")
        self.values = array("f")
        self.open: _Open | None = None

    def add(self, sample: Sample, at: int) -> None:
        start = at - at % self.resolution.width_seconds
        if self.open is not None and self.open.start != start:
            self.close(self.open)
        if self.open is None or self.open.start != start:
            self.open = _Open(start)
        self.open.add(sample)

    def close(self, ended: _Open) -> None:
        # A clock that was set back must not add points twice.
        if not self.times or ended.start > self.times[-1]:
            self.times.append(ended.start)
            self.values.extend(ended.values())
            self.trim()

    def trim(self) -> None:
        surplus = len(self.times) - self.resolution.points
        if surplus > 0:
            del self.times[:surplus]
            del self.values[: surplus * _WIDTH]

    def rows_since(self, since: int) -> list[list[float | None]]:
        """Return points as [time, ...values], the open interval included."""
        width = _WIDTH
        found = [
            [at, *map(_check_value, self.values[index * width : (index + 1) * width])]
            for index, at in enumerate(self.times)
            if at >= since
        ]
        if self.open is not None and self.open.seconds and self.open.start >= since:
            found.append([self.open.start, *map(_check_value, self.open.values())])
        return found


class Series:
    """The figures of one table, or of all together, over time."""

    def __init__(self, resolutions: Sequence[Resolution] = RESOLUTIONS) -> None:
        self._all = [_Points(each) for each in resolutions]

    def limit(self, resolutions: Sequence[Resolution]) -> None:
        """Hold at most this many points from now on."""
        for points, resolution in zip(self._all, resolutions, strict=True):
            points.resolution = resolution
            points.trim()

    def add(self, sample: Sample, now_ms: int) -> None:
        """Add a sample that ends now."""
        for points in self._all:
            points.add(sample, now_ms // 1000)

    def to_json(self, seconds: int, now_ms: int) -> dict[str, object]:
        """Return the last `seconds`, of the finest resolution that reaches so far back.

        `points` are [time in seconds since the epoch, then a value for each of `COLUMNS` or null],
        ascending; where two are further apart than `width_seconds`, nothing was measured between.
        """
        fitting = [p for p in self._all if p.resolution.width_seconds * _reach(p) >= seconds]
        points = fitting[0] if fitting else self._all[-1]
        since = now_ms // 1000 - seconds
        return {
            "width_seconds": points.resolution.width_seconds,
            "columns": list(COLUMNS),
            "points": points.rows_since(since),
        }

    def newest(self, count: int) -> list[float | None]:
        """Return the newest rates of the finest resolution, oldest first."""
        return [point[1] for point in self._all[0].rows_since(0)[-count:]]

    def save(self) -> list[dict[str, object]]:
        """Return what `restore` takes; the open intervals are left out."""
        return [
            {
                "width_seconds": points.resolution.width_seconds,
                "times": base64.b64encode(points.times.tobytes()).decode(),
                "values": base64.b64encode(points.values.tobytes()).decode(),
            }
            for points in self._all
        ]

    def restore(self, saved: object) -> bool:
        """Insert the points of an earlier process before the present ones; False if invalid."""
        read = _read(saved)
        if read is None:
            return False
        for points in self._all:
            times, values = read.get(points.resolution.width_seconds, (array("I"), array("f")))
            first = min(
                [*points.times[:1], *([] if points.open is None else [points.open.start])],
                default=None,
            )
            older = len(times) if first is None else sum(at < first for at in times)
            points.times = times[:older] + points.times
            points.values = values[: older * _WIDTH] + points.values
            points.trim()
        return True


def _reach(points: _Points) -> int:
    """Return how many points a resolution has without a memory limit."""
    widths = {each.width_seconds: each.points for each in RESOLUTIONS}
    return widths.get(points.resolution.width_seconds, points.resolution.points)


def _bin(seconds: float) -> int:
    return round(math.log2(max(seconds, 1e-4)) * _BINS_PER_DOUBLING)


def _quantile(bins: Counter[int], share: float) -> float:
    """Return the quantile `share` of durations; NaN if there are none."""
    rest = math.ceil(sum(bins.values()) * share)
    for index in sorted(bins):
        rest -= bins[index]
        if rest <= 0:
            return float(2 ** (index / _BINS_PER_DOUBLING))
    return math.nan


def _check_value(value: float) -> float | None:
    # Four digits are more than a chart shows.
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _read(saved: object) -> dict[int, tuple[array[int], array[float]]] | None:
    if not isinstance(saved, list):
        return None
    read: dict[int, tuple[array[int], array[float]]] = {}
    for part in saved:
        arrays = _arrays(part)
        if arrays is None:
            return None
        read[part["width_seconds"]] = arrays
    return read


def _arrays(part: Any) -> tuple[array[int], array[float]] | None:
    """Return times and values of one resolution; None if they are missing or damaged."""
    if not isinstance(part, dict) or type(part.get("width_seconds")) is not int:
        return None
    times, values = array("I"), array("f")
    try:
        times.frombytes(base64.b64decode(part["times"], validate=True))
        values.frombytes(base64.b64decode(part["values"], validate=True))
    except (KeyError, TypeError, ValueError, binascii.Error):
        return None
    is_whole = len(values) == len(times) * _WIDTH
    return (times, values) if is_whole and list(times) == sorted(set(times)) else None
