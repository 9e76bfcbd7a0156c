"""The change source of formats that can compare two versions: several commits as one difference."""

from __future__ import annotations

from dataclasses import replace

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import Offset, Version
from tailerd.errors import MissingVersionError, TableError
from tailerd.formats.base import OpenRequest, TaskReader
from tailerd.formats.table_log import StepPlan, SupportsDifference, TableLog
from tailerd.formats.versioned_source import VersionedSource
from tailerd.remedies import RESET_PIPELINE

_NET = "/net:"


class ComparingSource(VersionedSource):
    """A source that can emit several commits as one difference; see `formats.base.NetSteps`."""

    def __init__(
        self, log: TableLog, versions: SupportsDifference, reader: TaskReader, request: OpenRequest
    ) -> None:
        super().__init__(log, reader, request)
        self._versions = versions
        self._always = request.changes is ChangeMode.NET
        self._above = request.net_above
        self._chosen: Offset | None = None

    async def latest_offset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the furthest offset one step from `start` may reach; `start` if nothing is new.

        A difference that was begun ends where it was to end.

        Raises:
            TableError: As in `VersionedSource.latest_offset`.
        """
        if (last := _pinned_end(start)) is not None:
            await self._log.check(start)
            return await self._end_after(start, last)
        if self.is_net(start):
            head = await self._versions.find_head(start)
            return start if head is None else await self._end_after(start, head)
        return await super().latest_offset(start, limit)

    async def _walk(self, start: Offset, limit: ReadLimit) -> Offset:
        end = await super()._walk(start, limit)
        head = self._versions.newest
        if end != start and head is not None and await self._is_far(start, head):
            return await self._end_after(start, head)
        return end

    async def _end_after(self, start: Offset, version: Version) -> Offset:
        await self._check_view(version)
        end = Offset(table_id=start.table_id, version=self.next_version(version))
        return await self._log.identify(end)

    async def _is_far(self, start: Offset, head: Version) -> bool:
        """Return whether the step to the head is one difference: long enough, and available."""
        if self._above is None or not start.is_commit_start:
            return False
        if head + 1 - start.version <= self._above:
            return False
        try:
            await self._versions.check_difference(start, self._offset_after(start, head))
        except TableError:
            # The commits are read one by one instead.
            return False
        self._chosen = start
        return True

    async def _step(self, at: Offset, end: Offset | None = None) -> StepPlan | None:
        if end is not None and self.is_net(at):
            return await self._versions.difference(at, end)
        return await super()._step(at, end)

    def pin_end(self, start: Offset, end: Offset) -> Offset:
        """Return `start` with the mark of the step to `end`, if that is one difference."""
        if start != self._chosen and not self.is_net(start):
            return start
        return _pin(start, end.last_version(self))

    def is_net(self, start: Offset) -> bool:
        """Return whether the step that begins at `start`, as pinned, is one difference."""
        return _pinned_end(start) is not None or (self._always and start.is_commit_start)

    async def over_gap(self, start: Offset) -> Offset:
        """Return `start` with the mark of one difference to the newest version.

        Raises:
            TableRecreatedError: The version before `start` is of another table.
            TableError: One of the two versions can no longer be read, or they have no difference.
        """
        head = await self._versions.find_head(start)
        if not start.is_commit_start or head is None:
            raise MissingVersionError(
                f"Version {start.version} was delivered in part, and a net change cannot deliver"
                " the rest.",
                remedy=RESET_PIPELINE,
            )
        await self._versions.check_difference(start, self._offset_after(start, head))
        return _pin(start, head)

    def _offset_after(self, start: Offset, version: Version) -> Offset:
        return replace(start, version=self.next_version(version), mark="")


def open_log(log: TableLog, reader: TaskReader, request: OpenRequest) -> VersionedSource:
    """Return the change source of a table."""
    if isinstance(log, SupportsDifference):
        return ComparingSource(log, log, reader, request)
    return VersionedSource(log, reader, request)


def _pinned_end(start: Offset) -> Version | None:
    """Return the end of the difference that was begun here, in this process or an earlier one."""
    _, is_there, version = start.mark.partition(_NET)
    return Version(int(version)) if is_there else None


def _pin(start: Offset, version: Version) -> Offset:
    return replace(start, mark=f"{start.mark.partition(_NET)[0]}{_NET}{version}")
