"""Maps times to versions.

Protocol: PROTOCOL.md#recommendations-for-readers-of-tables-with-in-commit-timestamps
"""

from __future__ import annotations

from dataclasses import dataclass

from tailerd.errors import MissingVersionError
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.protocol import table_properties as properties
from tailerd.formats.delta.protocol.commit_timestamp import commit_time_ms, monotonic_file_times
from tailerd.formats.delta.protocol.log_path import LogFile
from tailerd.formats.delta.protocol.snapshot import TableState


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAxis:
    """The commits of a log in the order of their times.

    Versions before `in_commit_start` have the times of their files; later ones carry their own,
    which are read only when a search needs them.
    """

    reader: LogReader
    state: TableState
    commits: dict[int, LogFile]
    file_times: dict[int, int]
    in_commit_start: int | None
    in_commit_start_ms: int | None

    @classmethod
    async def read(cls, reader: LogReader) -> TimeAxis:
        """List the whole log and determine where in-commit timestamps begin.

        Raises:
            TableError: The newest version cannot be rebuilt.
        """
        snapshot, _ = await reader.open_listed(with_files=False)
        listing = await reader.list_log()
        # Newer ones may be listed in a different order than they were written.
        commits = {v: file for v, file in listing.commits.items() if v <= snapshot.version}
        configuration = snapshot.state.metadata.configuration
        start = start_ms = None
        if snapshot.state.has_in_commit_timestamps:
            start = properties.number(configuration, properties.IN_COMMIT_TIMESTAMP_VERSION) or 0
            start_ms = properties.number(configuration, properties.IN_COMMIT_TIMESTAMP_TIMESTAMP)
        return cls(
            reader=reader,
            state=snapshot.state,
            commits=commits,
            file_times=monotonic_file_times(commits),
            in_commit_start=start,
            in_commit_start_ms=start_ms,
        )

    async def time_ms(self, version: int) -> int:
        """Return a listed version's commit timestamp in milliseconds.

        Raises:
            CorruptLogError: The commit is damaged, or lacks the timestamp it must carry.
        """
        if self.in_commit_start is None or version < self.in_commit_start:
            return self.file_times[version]
        found = await self.reader.read_commit(self.commits[version])
        return commit_time_ms(found.commit, self.state, self.file_times[version])

    async def first_from(self, time_ms: int) -> int | None:
        """Return the first version whose commit is at or after a time; None if there is none."""
        versions = self._versions_for(time_ms)
        found = await self._search(versions, time_ms)
        if found < len(versions):
            return versions[found]
        later = [version for version in sorted(self.commits) if version > versions[-1]]
        return later[0] if later else None

    async def last_until(self, time_ms: int) -> int:
        """Return the last version whose commit is at or before a time.

        Raises:
            MissingVersionError: The log's first commit is later.
        """
        versions = self._versions_for(time_ms)
        found = await self._search(versions, time_ms + 1)
        if found:
            return versions[found - 1]
        earlier = [version for version in sorted(self.commits) if version < versions[0]]
        if earlier:
            return earlier[-1]
        raise MissingVersionError(
            f"The log has no commit at or before that time: its oldest is version {versions[0]}.",
            remedy="Ask for a later time, or for a version.",
        )

    def _versions_for(self, time_ms: int) -> list[int]:
        versions = sorted(self.commits)
        if not versions:
            raise MissingVersionError(
                "The log holds no commits, only checkpoints, so no time can be looked up.",
                remedy="Ask for a version instead.",
            )
        start, start_ms = self.in_commit_start, self.in_commit_start_ms
        if start is None:
            return versions
        before = [version for version in versions if version < start]
        since = [version for version in versions if version >= start]
        is_since = start_ms is None or time_ms >= start_ms
        return (since if is_since else before) or versions

    async def _search(self, versions: list[int], time_ms: int) -> int:
        """Return the index of the first version at or after a time; times are ascending."""
        low, high = 0, len(versions)
        while low < high:
            middle = (low + high) // 2
            if await self.time_ms(versions[middle]) < time_ms:
                low = middle + 1
            else:
                high = middle
        return low
