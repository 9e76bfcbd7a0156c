"""From two manifests to what changed between them: fragments, deletions, columns. Pure.

Fragments are compared as bytes; only those that differ are parsed. The same fragment is one with
the same id and a data file in common: after an overwrite by an old writer ids begin at 0 again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailerd.formats.lance.protocol.columns import Column, matching
from tailerd.formats.lance.protocol.fragments import Fragment, parse_fragment
from tailerd.formats.lance.protocol.manifest import Manifest
from tailerd.formats.lance.protocol.transactions import Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFragment:
    """A fragment of both versions that is not the same in them.

    Attributes:
        changed: Ids of columns of the new version whose values stand elsewhere now.
    """

    before: Fragment
    after: Fragment
    changed: tuple[int, ...]

    @property
    def deletions_differ(self) -> bool:
        """Whether other rows of it are deleted."""
        return self.before.deletions != self.after.deletions


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What two versions do not have in common.

    Attributes:
        removed, added: Fragments that only the old, and only the new one has, in its order.
        kept: Fragments of both in which rows or values differ.
    """

    removed: tuple[Fragment, ...] = ()
    added: tuple[Fragment, ...] = ()
    kept: tuple[KeptFragment, ...] = ()

    @property
    def may_be_rearranged(self) -> bool:
        """Whether rows may only have moved from some fragments to others."""
        return bool(self.removed and self.added)

    @property
    def live_rows(self) -> tuple[int | None, int | None]:
        """Rows of the removed, and of the added fragments; None where writers did not say."""
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
        before: None where there was nothing.
        old_columns, new_columns: Theirs.

    Raises:
        CorruptLogError, UnsupportedFeatureError: A fragment that differs cannot be read.
    """
    kept_as_is = frozenset[bytes]() if before is None else before.fragment_set
    new = [parse_fragment(each) for each in after.fragments if each not in kept_as_is]
    gone = () if before is None else before.fragments
    old = {
        each.id: each
        for each in (parse_fragment(raw) for raw in gone if raw not in after.fragment_set)
    }
    added: list[Fragment] = []
    kept: list[KeptFragment] = []
    for each in new:
        former = old.get(each.id)
        if former is None or not each.shares_files_with(former):
            added.append(each)
            continue
        del old[each.id]
        changed = _changed_columns(former, each, old_columns, new_columns)
        found = KeptFragment(before=former, after=each, changed=changed)
        if changed or found.deletions_differ:
            kept.append(found)
    return Difference(removed=tuple(old.values()), added=tuple(added), kept=tuple(kept))


def is_only_rearranged(found: Difference, operation: Operation) -> bool:
    """Return whether a commit certainly moved rows and changed none.

    Fragments that are only kept with other bytes, such as other ids of rows, change nothing.
    """
    if operation is not Operation.REWRITE:
        return False
    removed, added = found.live_rows
    return removed is None or added is None or removed == added


def may_be_rearranged(found: Difference, operation: Operation) -> bool:
    """Return whether only comparing rows shows if any changed: nobody says what the commit was."""
    if not found.may_be_rearranged or operation not in (Operation.UNKNOWN, Operation.REWRITE):
        return False
    removed, added = found.live_rows
    is_rewrite = operation is Operation.REWRITE
    return is_rewrite or removed is None or added is None or removed == added


def _changed_columns(
    before: Fragment, after: Fragment, old: Sequence[Column], new: Sequence[Column]
) -> tuple[int, ...]:
    """Return the ids of columns whose values were in another file, or in none, before."""
    found = []
    for column in new:
        former = matching(column, old)
        was = frozenset() if former is None else before.column_places(former.ids)
        now = after.column_places(column.ids)
        if now != was:
            found.append(column.id)
    return tuple(found)


def _live_rows(fragments: Sequence[Fragment]) -> int | None:
    counts = [each.live_rows for each in fragments]
    known = [each for each in counts if each is not None]
    return sum(known) if len(known) == len(counts) else None
