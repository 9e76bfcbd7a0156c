"""Decides which steps of a table are one difference, and marks offsets inside such a step.

Implements `formats.base.NetSteps` for formats that can compare two versions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from tailerd.changefeed.offset import Offset, Version, Versions
from tailerd.errors import RESET_OR_ON_GAP, MissingVersionError, TableError

_MARK = "/net:"
"""Separates a format's own mark from the version at which the step ends."""


class NetStepPlan:
    """Decides when one table is read as one difference. Used by one task.

    Args:
        versions: Of the table.
        check: Raises a TableError if [start, end), both at the start of a commit, has no
            difference.
        always: All commits are read as differences.
        above: Commits are read as one difference if more versions than this are new; None: never.
    """

    def __init__(
        self,
        versions: Versions,
        check: Callable[[Offset, Offset], Awaitable[None]],
        *,
        always: bool,
        above: int | None,
    ) -> None:
        self._versions = versions
        self._check = check
        self._always = always
        self._above = above
        self._chosen: Offset | None = None

    def begun(self, start: Offset) -> Version | None:
        """Return the end of the step that was begun here, in this process or an earlier one."""
        _, is_there, version = start.mark.partition(_MARK)
        return Version(int(version)) if is_there else None

    def is_net(self, start: Offset) -> bool:
        """Return whether the step that begins here is one difference."""
        return self.begun(start) is not None or (self._always and start.is_commit_start)

    async def is_far(self, start: Offset, head: Version) -> bool:
        """Return whether the step to the head is one difference: long enough, and available."""
        if self._above is None or not start.is_commit_start:
            return False
        if head + 1 - start.version <= self._above:
            return False
        try:
            await self._check(start, self._offset_after(start, head))
        except TableError:
            # The commits are read one by one instead.
            return False
        self._chosen = start
        return True

    def pinned(self, start: Offset, end: Offset) -> Offset:
        """Return `start` with the end of its step, if that is one difference."""
        if start != self._chosen and not self.is_net(start):
            return start
        return _marked(start, end.last_version(self._versions))

    async def over_gap(self, start: Offset, head: Version) -> Offset:
        """Return `start` with the mark of one difference to the head.

        Raises:
            TableError: One of the two versions can no longer be read, or they have no difference.
        """
        if not start.is_commit_start or head < start.version:
            raise MissingVersionError(
                f"Version {start.version} was delivered in part, and a net change cannot deliver"
                " the rest.",
                remedy=RESET_OR_ON_GAP,
            )
        await self._check(start, self._offset_after(start, head))
        return _marked(start, head)

    def _offset_after(self, start: Offset, version: Version) -> Offset:
        return replace(start, version=self._versions.next_version(version), mark="")


def _marked(start: Offset, version: Version) -> Offset:
    own = start.mark.partition(_MARK)[0]
    return replace(start, mark=f"{own}{_MARK}{version}")
