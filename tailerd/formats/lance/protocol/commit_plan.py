"""Computes the difference of two manifests: fragments, deletions, columns. Pure.

Fragments are compared as bytes; only those that differ are parsed. Two fragments are the same if
they have the same id and a common data file: after an overwrite by an old writer ids restart at 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailerd.formats.lance.protocol.columns import Column, matching
from tailerd.formats.lance.protocol.fragments import Fragment
from tailerd.formats.lance.protocol.manifest import Manifest
from tailerd.formats.lance.protocol.transactions import Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedFragment:
    """A fragment that is in both versions and differs.

    Attributes:
        changed: Ids of columns of the new version whose values are in other files now.
    """

    before: Fragment
    after: Fragment
    changed: tuple[int, ...]

    @property
    def deletions_differ(self) -> bool:
        """Whether its deleted rows differ."""
        return self.before.deletions != self.after.deletions


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The difference of two versions.

    Attributes:
        removed, added: Fragments that only the old or only the new version has, in its order.
        retained: Fragments of both in which rows or values differ.
    """

    removed: tuple[Fragment, ...] = ()
    added: tuple[Fragment, ...] = ()
    retained: tuple[RetainedFragment, ...] = ()

    @property
    def may_be_rearranged(self) -> bool:
        """Whether rows may only have moved from some fragments to others."""
        return bool(self.removed and self.added)

    @property
    def live_rows(self) -> tuple[int | None, int | None]:
        """Rows of the removed and of the added fragments; None if not recorded by writers."""
        removed, added = (_live_rows(each) for each in (self.removed, self.added))
        return removed, added


def difference(
    before: Manifest | None,
    after: Manifest,
    old_columns: Sequence[Column],
    new_columns: Sequence[Column],
) -> Difference:
    """Compare two versions.

    Args:
        before: None before the first version.
        old_columns, new_columns: Of the two versions.

    Raises:
        CorruptLogError, UnsupportedFeatureError: A fragment that differs cannot be read.
    """
    unchanged = frozenset[bytes]() if before is None else before.fragment_set
    new = [after.parse(each) for each in after.fragments if each not in unchanged]
    before_fragments = () if before is None else before.fragments
    old = {
        each.id: each
        for each in (
            before.parse(raw)
            for raw in before_fragments
            if before is not None and raw not in after.fragment_set
        )
    }
    added: list[Fragment] = []
    retained: list[RetainedFragment] = []
    for each in new:
        former = old.get(each.id)
        if former is None or not each.shares_files_with(former):
            added.append(each)
            continue
        del old[each.id]
        changed = _changed_columns(former, each, old_columns, new_columns)
        found = RetainedFragment(before=former, after=each, changed=changed)
        if changed or found.deletions_differ:
            retained.append(found)
    return Difference(removed=tuple(old.values()), added=tuple(added), retained=tuple(retained))


def is_only_rearranged(found: Difference, operation: Operation) -> bool:
    """Return whether it is certain that a commit moved rows and changed none.

    Kept fragments that differ only in bytes, such as row ids, do not change rows.
    """
    if operation is not Operation.REWRITE:
        return False
    removed, added = found.live_rows
    return removed is None or added is None or removed == added


def may_be_rearranged(found: Difference, operation: Operation) -> bool:
    """Return whether only a comparison of rows shows if any changed, for an unknown operation."""
    if not found.may_be_rearranged or operation not in (Operation.UNKNOWN, Operation.REWRITE):
        return False
    removed, added = found.live_rows
    is_rewrite = operation is Operation.REWRITE
    return is_rewrite or removed is None or added is None or removed == added


def _changed_columns(
    before: Fragment, after: Fragment, old: Sequence[Column], new: Sequence[Column]
) -> tuple[int, ...]:
    """Return the ids of columns whose values were in another file before, or in none."""
    found = []
    for column in new:
        former = matching(column, new, old)
        was = frozenset() if former is None else before.locate_columns(former.ids)
        now = after.locate_columns(column.ids)
        if now != was:
            found.append(column.id)
    return tuple(found)


def _live_rows(fragments: Sequence[Fragment]) -> int | None:
    counts = [each.live_rows for each in fragments]
    known = [each for each in counts if each is not None]
    return sum(known) if len(known) == len(counts) else None
