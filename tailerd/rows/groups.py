"""Separates files that cannot share a row, so that fewer rows are in memory at a time.

Two files share no row if their partition values differ, or if on some column their bounds exclude
each other and at least one of them has no null there. Bounds are exact or wider than the rows; see
`widened_bounds`. Values are compared as parsed, never as text: one timestamp has several texts.
Files must not be grouped if a commit changes partition columns; a column whose type changes must be
left out.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tailerd.rows.difference import Side

_MILLISECOND = dt.timedelta(milliseconds=1)
_SURROGATES = range(0xD800, 0xE000)
_COMMON_BOUNDS = 8
"""Bounds shared by more files are ignored when matching rewritten files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnBounds:
    """Known bounds of a column of a file.

    Attributes:
        lower, upper: No value is below or above; None: not known. Of one type per column.
        null_count: None: not known.
    """

    lower: Any = None
    upper: Any = None
    null_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBounds:
    """Known bounds of the rows of a file.

    Attributes:
        partition: Its parsed partition values, in one order for all files.
        columns: Bounds by column; those of a missing column are not known.
    """

    partition: tuple[Hashable, ...] = ()
    columns: Mapping[str, ColumnBounds] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesToCompare:
    """Files that share no rows with other files, and how to compare them.

    Attributes:
        removed, added: Numbers of files among the commit's removed, and added ones.
        aligned: Pairs of a removed file and an added one that likely rewrites it.
    """

    removed: tuple[int, ...]
    added: tuple[int, ...]
    aligned: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Files that share no rows with other files; either side may be empty.

    Attributes:
        removed, added: Positions in the sequences of files, ascending.
    """

    removed: tuple[int, ...]
    added: tuple[int, ...]


def widened_bounds(lower: Any, upper: Any) -> tuple[Any, Any]:
    """Return bounds that hold even if texts are cut to a prefix and times to milliseconds."""
    if isinstance(upper, str):
        return lower, _above_prefix(upper)
    if isinstance(upper, bytes):
        kept = upper.rstrip(b"\xff")
        return lower, kept[:-1] + bytes([kept[-1] + 1]) if kept else None
    is_time = isinstance(lower, dt.datetime), isinstance(upper, dt.datetime)
    return (_shift_time(lower, -1) if is_time[0] else lower), (
        _shift_time(upper, 1) if is_time[1] else upper
    )


def _shift_time(time: dt.datetime, milliseconds: int) -> dt.datetime | None:
    try:
        return time + milliseconds * _MILLISECOND
    except OverflowError:
        return None


def _above_prefix(text: str) -> str | None:
    """Return a text above all that begin with `text`; None if there is none."""
    kept = text.rstrip(chr(sys.maxunicode))
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)


def group_files(removed: Sequence[FileBounds], added: Sequence[FileBounds]) -> list[FileGroup]:
    """Return groups of files, every file in one; only rows within a group can be equal.

    Sweeps over the intervals of one column after the other until no group gets smaller; time is
    about linear in files times columns.
    """
    by_partition: dict[tuple[Hashable, ...], list[_Member]] = defaultdict(list)
    for side, files in ((Side.REMOVED, removed), (Side.ADDED, added)):
        for position, file in enumerate(files):
            key = tuple(_partition_value(value) for value in file.partition)
            by_partition[key].append(_Member(side, position, file))
    columns = sorted({name for file in (*removed, *added) for name in file.columns})
    found = [
        FileGroup(_positions(group, Side.REMOVED), _positions(group, Side.ADDED))
        for members in by_partition.values()
        for group in _refine_group(members, columns)
    ]
    return sorted(found, key=lambda group: (group.removed, group.added))


def likely_rewrites(
    group: FileGroup, removed: Sequence[FileBounds], added: Sequence[FileBounds]
) -> list[tuple[int, int]]:
    """Return pairs of a removed file of a group and an added one that likely rewrites it.

    Those with the most bounds in common; each file is in one pair at most. These pairs are compared
    in place first: a wrong pair costs little.
    """
    if len(group.removed) == len(group.added) == 1:
        return [(group.removed[0], group.added[0])]
    having: dict[Hashable, list[int]] = defaultdict(list)
    for position in group.removed:
        for bound in _bounds(removed[position]):
            having[bound].append(position)
    votes: Counter[tuple[int, int]] = Counter()
    for position in group.added:
        for bound in _bounds(added[position]):
            positions = having.get(bound, ())
            if len(positions) <= _COMMON_BOUNDS:
                votes.update((each, position) for each in positions)
    pairs: list[tuple[int, int]] = []
    taken: tuple[set[int], set[int]] = (set(), set())
    for (one, other), _ in sorted(votes.items(), key=lambda vote: (-vote[1], vote[0])):
        if one not in taken[0] and other not in taken[1]:
            pairs.append((one, other))
            taken[0].add(one)
            taken[1].add(other)
    return sorted(pairs)


def _bounds(file: FileBounds) -> Iterator[Hashable]:
    for name, column in file.columns.items():
        yield from ((name, "lower", column.lower), (name, "upper", column.upper))


def _partition_value(value: Hashable) -> Hashable:
    # NaN is not equal to itself in Python, but it is in row comparison.
    return "NaN" if isinstance(value, float) and value != value else value


@dataclass(frozen=True, slots=True)
class _Member:
    side: Side
    position: int
    file: FileBounds


_Group = list[_Member]


def _positions(group: _Group, side: Side) -> tuple[int, ...]:
    return tuple(sorted(member.position for member in group if member.side is side))


def _refine_group(members: _Group, columns: Sequence[str]) -> Iterator[_Group]:
    """Yield groups that no column divides further."""
    waiting = [members]
    while waiting:
        group = waiting.pop()
        if len({member.side for member in group}) < 2:
            yield group
            continue
        for column in columns:
            parts = _divide_group(group, column)
            if len(parts) > 1:
                # A column that did not divide the larger group may divide a smaller one.
                waiting += parts
                break
        else:
            yield group


def _divide_group(group: _Group, column: str) -> list[_Group]:
    """Divide a group by the bounds of a column."""
    unknown = ColumnBounds()
    bounds = [member.file.columns.get(column, unknown) for member in group]
    if any(isinstance(end, float) for each in bounds for end in (each.lower, each.upper)):
        # NaN is outside of all bounds.
        return [group]
    parts = _Parts(len(group))
    nullable = [number for number, each in enumerate(bounds) if each.null_count != 0]
    if len({group[number].side for number in nullable}) > 1:
        # Rows with a null there may be equal, whatever the bounds.
        parts.join(nullable)
    _sweep(group, bounds, parts)
    found: dict[int, _Group] = defaultdict(list)
    for number, member in enumerate(group):
        found[parts.find_root(number)].append(member)
    return list(found.values())


def _sweep(group: _Group, bounds: Sequence[ColumnBounds], parts: _Parts) -> None:
    """Join files of different sides whose intervals overlap."""
    ascending = sorted(
        range(len(group)), key=lambda n: (bounds[n].lower is not None, bounds[n].lower)
    )
    # Per side, the files that overlap what follows; of joined files only the one with the largest
    # upper bound.
    active: dict[Side, list[int]] = {Side.REMOVED: [], Side.ADDED: []}
    for number in ascending:
        side = group[number].side
        other = Side.ADDED if side is Side.REMOVED else Side.REMOVED
        lower = bounds[number].lower
        reaching = [
            each
            for each in active[other]
            if lower is None or bounds[each].upper is None or bounds[each].upper >= lower
        ]
        if reaching:
            parts.join([number, *reaching])
            reaching = [max(reaching, key=lambda n: _end(bounds[n]))]
        active[other] = reaching
        active[side].append(number)


def _end(bounds: ColumnBounds) -> tuple[bool, Any]:
    return bounds.upper is None, bounds.upper


class _Parts:
    """Disjoint sets of numbers."""

    def __init__(self, count: int) -> None:
        self._parents = list(range(count))

    def find_root(self, number: int) -> int:
        parents = self._parents
        while parents[number] != number:
            parents[number] = parents[parents[number]]
            number = parents[number]
        return number

    def join(self, numbers: Sequence[int]) -> None:
        first = self.find_root(numbers[0])
        for number in numbers[1:]:
            self._parents[self.find_root(number)] = first
