"""Which steps of a table are one difference, and what an offset says of one that was begun."""

from __future__ import annotations

from dataclasses import replace

from tailerd.changefeed.offset import Offset, Version
from tailerd.errors import MissingVersionError, TableError
from tailerd.formats.delta.changes.net_changes import NetChanges
from tailerd.formats.delta.protocol.data_file import VERSIONS

_MARK = "net:"
_HINT = "Reset the pipeline with `tailerd offsets reset NAME --to snapshot`, or set on_gap."


class NetStepPlan:
    """Decides where one table is read in one difference. Used by one task.

    Args:
        changes: Plans the differences.
        always: All commits are read so.
        above: They are where more versions than this are new; None: never.
    """

    def __init__(self, changes: NetChanges, *, always: bool, above: int | None) -> None:
        self.changes = changes
        self._always = always
        self._above = above
        self._chosen: Offset | None = None

    def reaches_head(self, start: Offset) -> bool:
        """Whether every step from here goes to the newest version."""
        return self._always and start.is_commit_start

    def is_net(self, start: Offset) -> bool:
        """Whether the step that begins here is one difference."""
        return self.reaches_head(start) or bool(start.mark)

    def begun(self, start: Offset) -> Offset | None:
        """Return the end of the step that was begun here, in this process or an earlier one."""
        if not start.mark.startswith(_MARK):
            return None
        version = Version(int(start.mark.removeprefix(_MARK)))
        return replace(start, version=VERSIONS.next_version(version), mark="")

    def pinned(self, start: Offset, end: Offset) -> Offset:
        """Return `start` with the end of its step, if that is one difference."""
        if start != self._chosen and not self.is_net(start):
            return start
        return replace(start, mark=f"{_MARK}{VERSIONS.version_before(end.version)}")

    async def far_end(self, start: Offset, head: Version) -> Offset | None:
        """Return the end of one difference to the head, where that is far enough and has one."""
        if self._above is None or not start.is_commit_start:
            return None
        end = replace(start, version=VERSIONS.next_version(head))
        if end.version - start.version <= self._above:
            return None
        try:
            await self.changes.check(start, end)
        except TableError:
            # What the commits say is told one by one.
            return None
        self._chosen = start
        return end

    async def over_gap(self, start: Offset, head: Version) -> Offset:
        """Return `start` with the mark of one difference to the head.

        Raises:
            TableError: One of the two versions cannot be read any more, or they have none.
        """
        if not start.is_commit_start or head < start.version:
            raise MissingVersionError(
                f"Version {start.version} was delivered in part, and no other step gives the rest.",
                remedy=_HINT,
            )
        end = replace(start, version=VERSIONS.next_version(head), mark="")
        await self.changes.check(start, end)
        return replace(start, mark=f"{_MARK}{head}")
