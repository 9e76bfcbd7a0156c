"""Versions of an array, and the commits between two of them. Pure.

A version is a time in milliseconds: everything committed in one millisecond is one commit. Merged
fragments that kept the times of their cells can still be opened at any of these times, others only
at their end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection
from dataclasses import dataclass

import xxhash

from tailerd.formats.tiledb.protocol.commits import Commits, DeleteRecord
from tailerd.formats.tiledb.protocol.names import TimedName

NONE_MS = -1
"""Placeholder for the time before the first commit."""


@dataclass(frozen=True, slots=True)
class LateCommits:
    """Commits that appeared with an earlier time than already delivered ones.

    Attributes:
        times_ms: Their times, ascending.
        names: Their names.
    """

    times_ms: tuple[int, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The readable history of an array at one poll.

    Attributes:
        commits: All commits.
        fragments: Those in use, ascending by time.
        blind: Merged fragments that lost the times of their cells: no time in between is readable.
        versions: Distinguishable times of commits, ascending; none in the future.
    """

    commits: Commits
    fragments: tuple[TimedName, ...]
    blind: tuple[TimedName, ...]
    versions: tuple[int, ...]

    @classmethod
    def from_commits(cls, commits: Commits, timed: Collection[str], now_ms: int) -> Timeline:
        """Return the timeline of commits.

        Args:
            timed: Names of merged fragments that have the times of their cells.
            now_ms: Commits with a later time are not visible to readers yet.
        """
        counted = sorted(commits.select_used())
        blind = tuple(each for each in counted if each.is_merged and each.text not in timed)
        times = {each.last_ms for each in (*counted, *commits.deletes) if each.last_ms <= now_ms}
        hidden = {t for t in times for each in blind if each.first_ms <= t < each.last_ms}
        return cls(
            commits=commits,
            fragments=tuple(counted),
            blind=blind,
            versions=tuple(sorted(times - hidden)),
        )

    @property
    def head(self) -> int:
        """The newest version; `NONE_MS` for an array without commits."""
        return self.versions[-1] if self.versions else NONE_MS

    def before(self, time_ms: int) -> int:
        """Return the last version below a time; `NONE_MS` if there is none."""
        at = bisect_left(self.versions, time_ms)
        return self.versions[at - 1] if at else NONE_MS

    def after(self, time_ms: int) -> int | None:
        """Return the first version above a time; None if there is none yet."""
        at = bisect_right(self.versions, time_ms)
        return self.versions[at] if at < len(self.versions) else None

    def versions_between(self, after_ms: int, until_ms: int) -> tuple[int, ...]:
        """Return the versions in (after, until]."""
        start, end = (bisect_right(self.versions, each) for each in (after_ms, until_ms))
        return self.versions[start:end]

    def hiding(self, time_ms: int) -> TimedName | None:
        """Return the merged fragment that makes the array unreadable at a time; None for none."""
        return next((m for m in self.blind if m.first_ms <= time_ms < m.last_ms), None)

    def writes_between(self, after_ms: int, until_ms: int) -> tuple[TimedName, ...]:
        """Return the fragments that may have cells of (after, until]."""
        return tuple(m for m in self.fragments if m.first_ms <= until_ms and m.last_ms > after_ms)

    def deletes_between(
        self, after_ms: int, until_ms: int
    ) -> tuple[tuple[TimedName, DeleteRecord], ...]:
        """Return the deletes of (after, until], ascending."""
        found = self.commits.deletes.items()
        return tuple(sorted((n, p) for n, p in found if after_ms < n.last_ms <= until_ms))


def commits_digest(commits: Commits, until_ms: int) -> str:
    """Return a hash of the writes and deletes up to a time; merging does not change it."""
    names = sorted(
        each.text
        for each in (*commits.fragments, *commits.deletes)
        if not each.is_merged and each.last_ms <= until_ms
    )
    return xxhash.xxh3_64_hexdigest("\n".join(names).encode())


def late_commits(
    known: Collection[TimedName], now: Collection[TimedName], delivered_ms: int
) -> LateCommits:
    """Return the commits at or before a delivered time that were not known at its delivery.

    A fragment that only merges others is not a late commit.

    Args:
        known: All commits at that time.
        now: All commits at a later poll.
    """
    found = sorted(
        each
        for each in now
        if not each.is_merged and each.last_ms <= delivered_ms and each not in known
    )
    times = sorted({each.last_ms for each in found})
    return LateCommits(tuple(times), tuple(each.text for each in found))


def find_vanished(known: Collection[TimedName], now: Timeline) -> tuple[str, ...]:
    """Return the names of known commits that no longer exist and are in no merged fragment."""
    there = now.commits.names
    merged = [each for each in now.commits.fragments if each.is_merged]
    return tuple(
        each.text
        for each in sorted(known)
        if each.text not in there
        and not any(m.first_ms <= each.first_ms and each.last_ms <= m.last_ms for m in merged)
    )
