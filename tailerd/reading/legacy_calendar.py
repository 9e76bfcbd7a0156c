"""Rebases dates and times that a file has in the hybrid Julian calendar, as Spark does.

Spark before 3.0, and later releases in the mode LEGACY, count days before 1582-10-15 in the Julian
calendar, and times before 1900 with java.util's offsets of time zones. Their files say so.

Spark: DataSourceUtils.scala (which files), RebaseDateTime.scala (how)
"""

from __future__ import annotations

import functools
import importlib.resources
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.changefeed.change_batch import join_columns
from tailerd.errors import UnreadableDataFileError

_VERSION = "org.apache.spark.version"
_LEGACY_DATETIME = "org.apache.spark.legacyDateTime"
_LEGACY_INT96 = "org.apache.spark.legacyINT96"
_ZONE = "org.apache.spark.timeZone"

_DAY = 86_400
_FIRST_GREGORIAN_DAY = -141_427
_YEAR_1900 = -2_208_988_800
_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_OFFSET = re.compile(r"(?:GMT|UTC|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?")

_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LegacyCalendar:
    """The columns of a file in the legacy calendar.

    Attributes:
        is_datetime: Dates, and times of type INT64.
        is_int96: Times of type INT96.
        zone: Of the writer's session; times of a file that does not say it are in UTC.
    """

    is_datetime: bool
    is_int96: bool
    zone: str

    @classmethod
    def from_notes(cls, notes: Mapping[str, str]) -> LegacyCalendar | None:
        """Return the calendar from a file's key-value metadata; None if it has a modern one."""
        version = notes.get(_VERSION)
        if version is None:
            return None
        # Versions are compared as texts, as Spark does.
        is_datetime = version < "3.0.0" or _LEGACY_DATETIME in notes
        is_int96 = version < "3.1.0" or _LEGACY_INT96 in notes
        if not (is_datetime or is_int96):
            return None
        return cls(is_datetime, is_int96, notes.get(_ZONE, "UTC"))

    def rebase(self, batch: pa.RecordBatch, types: Sequence[str]) -> pa.RecordBatch:
        """Return rows of the file in the proleptic Gregorian calendar.

        Args:
            types: Physical types of all leaves of the batch, in order.

        Raises:
            UnreadableDataFileError: The zone is unknown.
        """
        left = iter(types)
        arrays = [self._rebase(column, left) for column in batch.columns]
        return join_columns(arrays, batch.schema, batch.num_rows)

    def _rebase(self, array: pa.Array, types: Iterator[str]) -> pa.Array:
        kind = array.type
        if pa.types.is_struct(kind):
            children = [self._rebase(array.field(n), types) for n in range(kind.num_fields)]
            if not children:
                return array
            return pa.StructArray.from_arrays(children, fields=list(kind), mask=null_mask(array))
        if pa.types.is_map(kind):
            offsets, start, end = zero_based(array)
            keys = self._rebase(array.keys.slice(start, end - start), types)
            items = self._rebase(array.items.slice(start, end - start), types)
            mask = null_mask(array)
            return pa.MapArray.from_arrays(own_offsets(offsets), keys, items, kind, mask=mask)
        if pa.types.is_list(kind):
            offsets, start, end = zero_based(array)
            values = self._rebase(array.values.slice(start, end - start), types)
            mask = null_mask(array)
            return pa.ListArray.from_arrays(own_offsets(offsets), values, kind, mask=mask)
        return self._rebase_leaf(array, next(types))

    def _rebase_leaf(self, array: pa.Array, physical_type: str) -> pa.Array:
        kind = array.type
        if pa.types.is_date32(kind) and self.is_datetime:
            return _replace_valid(array, _rebased_days)
        if not pa.types.is_timestamp(kind):
            return array
        if physical_type == "INT96":
            is_legacy = self.is_int96
        else:
            # Times without a zone were never in the legacy calendar.
            is_legacy = self.is_datetime and kind.tz is not None
        if not is_legacy:
            return array
        return _replace_valid(
            array, functools.partial(_rebased_times, _TICKS[kind.unit], self.zone)
        )


def _replace_valid(array: pa.Array, rebased: Callable[[_Numbers], _Numbers]) -> pa.Array:
    """Return an array with other numbers instead of its valid ones."""
    stored = pa.int32() if pa.types.is_date32(array.type) else pa.int64()
    numbers = array.view(stored).fill_null(0).to_numpy().astype(np.int64)
    changed = rebased(numbers)
    if changed is numbers:
        return array
    is_null = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    return pa.array(changed, pa.int64(), mask=is_null).cast(stored).view(array.type)


def _rebased_days(days: _Numbers) -> _Numbers:
    is_old = days < _FIRST_GREGORIAN_DAY
    if not is_old.any():
        return days
    found = days.copy()
    found[is_old] = _gregorian_days(days[is_old])
    return found


def _rebased_times(ticks: int, zone: str, times: _Numbers) -> _Numbers:
    is_old = times < _YEAR_1900 * ticks
    if not is_old.any():
        return times
    rules = _zone_rules(zone)
    seconds = times[is_old] // ticks
    local_days, seconds_of_day = np.divmod(seconds + rules.offset, _DAY)
    moved = (_rebased_days(local_days) * _DAY + seconds_of_day - rules.offset) - seconds
    moved += rules.moves[np.searchsorted(rules.switches, seconds, "right")]
    found = times.copy()
    found[is_old] += moved * ticks
    return found


def _gregorian_days(days: _Numbers) -> _Numbers:
    """Return the days with the year, month and day that days have in the Julian calendar.

    Days are numbered from 1970-01-01 of the Gregorian calendar; years begin in March here.
    """
    cycles, rest = np.divmod(days + 719_470, 1461)
    year_of_cycle = (rest - rest // 1460) // 365
    day_of_year = rest - 365 * year_of_cycle
    years = 4 * cycles + year_of_cycle
    # A day of the year that only the Julian calendar has, 29 February, is the day after the 28th.
    leap_days = years // 4 - years // 100 + years // 400
    found: _Numbers = 365 * years + leap_days + day_of_year - 719_468
    return found


@dataclass(frozen=True, slots=True)
class _ZoneRules:
    """How a zone differs between the calendars before 1900.

    Attributes:
        offset: Seconds that java.util.TimeZone adds to UTC.
        switches: Seconds since 1970, ascending.
        moves: Seconds by which times move before the first switch, and after each.
    """

    offset: int
    switches: _Numbers
    moves: _Numbers


@functools.lru_cache(maxsize=64)
def _zone_rules(zone: str) -> _ZoneRules:
    known = _known_zones().get(zone)
    if known is None and (match := _OFFSET.fullmatch(zone)):
        hours, minutes, seconds = (int(part or 0) for part in match.groups()[1:])
        offset = hours * 3600 + minutes * 60 + seconds
        known = f"{-offset if match[1] == '-' else offset} 0"
    if known is None:
        raise UnreadableDataFileError(
            f"its times before 1900 are in the time zone {zone!r}, which is not known"
        )
    offset_text, rules = known.split(" ")
    first, *later = rules.split(",")
    pairs = [rule.split(":") for rule in later]
    return _ZoneRules(
        int(offset_text),
        np.array([int(switch) for switch, _ in pairs], np.int64),
        np.array([int(first), *(int(move) for _, move in pairs)], np.int64),
    )


@functools.lru_cache(maxsize=1)
def _known_zones() -> dict[str, str]:
    """Return the text of the rules by zone."""
    text = importlib.resources.files(__package__).joinpath("legacy_zones.txt").read_text("ascii")
    lines = (line.split(" ") for line in text.splitlines() if not line.startswith("#"))
    zones = {zone: f"{offset} {rules}" for offset, rules, *names in lines for zone in names}
    return zones | {"Z": "0 0"}


def null_mask(array: pa.Array) -> pa.Array | None:
    """Return which values are null; None if none is."""
    return array.is_null() if array.null_count else None


def zero_based(array: pa.Array) -> tuple[pa.Array, int, int]:
    """Return a list's or map's offsets, starting at 0, and the range of values they cover."""
    offsets = array.offsets
    start, end = offsets[0].as_py(), offsets[-1].as_py()
    return (pc.subtract(offsets, offsets[0]) if start else offsets), start, end


def own_offsets(offsets: pa.Array) -> pa.Array:
    """Return offsets at the start of their buffer, as required to build a list with nulls."""
    return pa.concat_arrays([offsets]) if offsets.offset == 0 else pc.add(offsets, 0)
