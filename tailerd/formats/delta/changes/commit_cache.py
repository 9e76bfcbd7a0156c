"""Commits near the reader, fetched once: their bodies, plans and times."""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import msgspec

from tailerd.changefeed.change_task import ChangeMode
from tailerd.errors import (
    CommitChangedError,
    FileMissingError,
    MissingVersionError,
    TableError,
    TornCommitError,
)
from tailerd.formats.delta.changes.feed_check import Feed, FeedCheck
from tailerd.formats.delta.changes.live_before import LiveBefore
from tailerd.formats.delta.log.log_reader import CommitBody, LogReader
from tailerd.formats.delta.protocol.change_plan import CommitPlan, plan_commit, reads_files
from tailerd.formats.delta.protocol.commit_file import Commit, FileTally
from tailerd.formats.delta.protocol.commit_timestamp import (
    LOOK_BACK_VERSIONS,
    commit_time_ms,
    monotonic_file_times,
)
from tailerd.formats.delta.protocol.file_effects import ALL_EFFECTIVE
from tailerd.formats.delta.protocol.log_path import LogFile
from tailerd.formats.delta.protocol.log_segment import LogListing
from tailerd.formats.delta.protocol.snapshot import TableState, first_state
from tailerd.remedies import CONFIG_FILE, PIPELINE

WINDOW_BYTES = 64 * 1024 * 1024
GROUP_BYTES = 16 * 1024 * 1024
GROUP_COMMITS = 512


@dataclass(frozen=True, slots=True)
class _Read:
    """A commit that was read: its file at that time, its size and content hash; None if unknown."""

    file: LogFile
    size_bytes: int | None
    content: int | None


class CommitCache:
    """Looks up commits by version, with the states and times around them.

    Memory is bounded: bodies and lines above `WINDOW_BYTES` in total are dropped and fetched again
    on demand.

    Args:
        reader: The table's log.
        mode: Which changes are requested.
        compares_files: Whether file actions are compared with the live files, so that those without
            an effect give no rows; to describe commits this is not needed.
        feed_check: Detects wrong change files; None accepts all.

    Attributes:
        newest: File of the newest commit seen, as first seen.
        absent: The version after the head, as of the last listing; not requested again until
            `forget_absence`.
    """

    def __init__(
        self,
        reader: LogReader,
        mode: ChangeMode,
        *,
        compares_files: bool = True,
        feed_check: FeedCheck | None = None,
    ) -> None:
        self.reader = reader
        self._ignores_feed = mode is ChangeMode.COMPARE
        self.mode = ChangeMode.AUTO if mode.is_exact else mode
        self.timeline = TableStateHistory()
        self._live = LiveBefore(reader)
        self._compares_files = compares_files
        self._feed_check = feed_check
        self._found: OrderedDict[int, CommitBody] = OrderedDict()
        self._plans: dict[int, CommitPlan] = {}
        self._checked: TableState | None = None
        self._bytes = 0
        self._file_times: dict[int, int] = {}
        self._read: dict[int, _Read] = {}
        self._listed: dict[int, LogFile] = {}
        self.newest: LogFile | None = None
        self.absent: int | None = None

    async def commit(self, version: int) -> CommitBody | None:
        """Return a commit; None if the version does not exist yet.

        Raises:
            TornCommitError, CorruptLogError: It is damaged.
        """
        found = self._found.get(version)
        if found is not None:
            return found
        try:
            if version in self._listed:
                await self._fetch_listed(version)
                return self._found[version]
            if version == self.absent:
                return None
            found = await self.reader.find_commit(version)
            if found is None:
                self.absent = version
                return None
        except FileMissingError as error:
            raise MissingVersionError(
                f"The commit of version {version} or a later one was deleted while it was read:"
                " the log was cleaned up.",
                remedy="Start from a snapshot, or raise delta.logRetentionDuration.",
            ) from error
        self._keep(version, found)
        return found

    async def list_around(self, version: int) -> LogListing:
        """List the log around a version: for times before it, and commits to fetch after it."""
        listing = await self.reader.list_log(max(0, version - LOOK_BACK_VERSIONS))
        await self._learn_times(listing.commits)
        if version - 1 in listing.commits:
            self.note_newest(listing.commits[version - 1])
        self._listed = {v: file for v, file in listing.commits.items() if v >= version}
        end = version
        while end in self._listed or end in self._found:
            end += 1
        # A listing with a gap proves nothing.
        self.absent = end if end > (listing.head_version or 0) else None
        return listing

    def forget_absence(self) -> None:
        """Allow the version after the head to be requested again."""
        self.absent = None

    async def _learn_times(self, commits: Mapping[int, LogFile]) -> None:
        """Record the times of listed commits; a version keeps its first recorded time."""
        first = min(commits, default=0)
        times = monotonic_file_times(commits)
        if first and first not in self._file_times and _are_raised(times, commits):
            # The log was copied, or clocks jumped: times must be computed from its beginning.
            commits = (await self.reader.list_log()).commits
        last = -1
        for version in sorted(commits):
            if version not in self._file_times:
                self._file_times[version] = max(commits[version].mtime_ms, last + 1)
            last = self._file_times[version]

    def note_newest(self, file: LogFile) -> None:
        """Record the newest commit's file as first seen."""
        if self.newest is None or file.version > self.newest.version:
            self.newest = file
            size = file.size_bytes if file == self.reader.finished else None
            self._read.setdefault(file.version, _Read(file, size, None))

    def changed_since_read(self, commits: Mapping[int, LogFile]) -> list[LogFile]:
        """Return listed commits whose files differ from those that were read, ascending."""
        found = ((commits.get(version), self._read[version]) for version in sorted(self._read))
        return [now for now, read in found if now is not None and now != read.file]

    async def require_same_content(self, file: LogFile) -> None:
        """Make sure that a commit has the content that was read; its file may differ in a copy.

        Raises:
            CommitChangedError: Its content changed.
        """
        read = self._read.get(file.version)
        # Request the file again: the listing may be older than the last read.
        now = None if read is None else await self.reader.commit_file(file.version)
        if read is None or now is None:
            return
        is_same = read.size_bytes in (None, now.size_bytes)
        if is_same and read.content is not None:
            is_same = hash((await self.reader.read_commit(now)).body) == read.content
        if not is_same:
            raise CommitChangedError(
                f"Version {now.version} of {self.reader.url} changed after it was read: {now.name}"
                f" had {read.size_bytes} bytes then and has {now.size_bytes} now, with other"
                " content, because its writer had not finished or it was edited. Rows of it may"
                " be missing from earlier deliveries.",
                remedy=f"Deliver it again with `tailerd offsets reset {PIPELINE} --to {now.version}"
                f" --config {CONFIG_FILE}`, and let writers create commits atomically: by rename,"
                " or by put-if-absent.",
            )
        self._read[now.version] = replace(read, file=now)
        if self.newest is not None and self.newest.version == now.version:
            self.newest = now

    async def _fetch_listed(self, version: int) -> None:
        """Fetch a run of listed commits in one request; a large one is fetched alone."""
        group, size = [self._listed.pop(version)], 0
        size = group[0].size_bytes
        while size < GROUP_BYTES and len(group) < GROUP_COMMITS:
            following = self._listed.get(group[-1].version + 1)
            if following is None or size + following.size_bytes > GROUP_BYTES:
                break
            group.append(self._listed.pop(following.version))
            size += following.size_bytes
        if len(group) == 1:
            self._keep(version, await self.reader.read_commit(group[0]))
            return
        try:
            is_newest = group[-1].version + 1 not in self._listed
            bodies = await self.reader.read_commits(group, is_newest=is_newest)
        except TornCommitError:
            # Only the newest can be torn; read alone, it is given time to be completed.
            bodies = [await self.reader.read_commit(file) for file in group]
        for found in bodies:
            self._keep(found.file.version, found)

    def _keep(self, version: int, found: CommitBody) -> None:
        self._found[version] = found
        content = None if found.body is None else hash(found.body)
        self._read[version] = _Read(found.file, found.commit.size_bytes, content)
        self.note_newest(found.file)
        self.timeline.extend(found.commit)
        self._bytes += found.held_bytes
        while len(self._found) > 1 and self._bytes > WINDOW_BYTES:
            oldest, dropped = self._found.popitem(last=False)
            self._bytes -= dropped.held_bytes
            self._plans.pop(oldest, None)

    def forget_before(self, version: int) -> None:
        """Drop what only versions before `version` need."""
        for old in [known for known in self._found if known < version]:
            self._bytes -= self._found.pop(old).held_bytes
            self._plans.pop(old, None)
        self.timeline.forget_before(version - 1)
        self._live.forget_before(version)
        if self._feed_check is not None:
            self._feed_check.forget_before(version)
        for table in (self._file_times, self._read):
            for old in [known for known in table if known < version - LOOK_BACK_VERSIONS]:
                del table[old]

    async def plan(self, version: int) -> CommitPlan | None:
        """Return how the rows of a commit are read; None if the commit does not exist yet.

        Raises:
            TableError: The commit cannot be read correctly.
        """
        found = await self.commit(version)
        if found is None:
            return None
        plan = self._plans.get(version)
        if plan is None:
            before, after = await self.states(found.commit)
            if after is not self._checked:
                after.check_rows()
                self._checked = after
            time = await self.time_ms(found, after)
            plan = self._plans[version] = await self._make_plan(found, before, after, time)
        return plan

    def _following(self, found: CommitBody) -> Iterator[CommitBody]:
        """Yield the commits after one that are in memory."""
        following = self._found.get(found.commit.version + 1)
        while following is not None and following.body is not None:
            yield following
            following = self._found.get(following.commit.version + 1)

    async def _make_plan(
        self, found: CommitBody, before: TableState, after: TableState, time_ms: int
    ) -> CommitPlan:
        if self._ignores_feed and found.commit.change_files.files:
            commit = msgspec.structs.replace(found.commit, change_files=FileTally())
            found = replace(found, commit=commit)
        is_needed, feed = reads_files(found.commit, self.mode), Feed.CONSISTENT
        if self.mode is ChangeMode.AUTO and not is_needed and found.commit.change_files.files:
            if self._feed_check is not None:
                feed = await self._feed_check.check(found, self._following(found))
            is_needed = feed is not Feed.CONSISTENT
        no_effect = ALL_EFFECTIVE
        if self._compares_files:
            no_effect = await self._live.find(found, is_needed=is_needed)
        commit = await self._live.reduce_commit(found, no_effect)
        if feed is not Feed.CONSISTENT:
            commit = msgspec.structs.replace(commit, change_files=FileTally())
        plan = plan_commit(commit, before, after, time_ms, self.mode)
        return replace(
            plan,
            no_effect=no_effect,
            are_updates=feed is Feed.WRONG_UPDATES,
            applications=tuple(each.app_id for each in commit.transactions),
            user_metadata=commit.info.user_metadata if commit.info else "",
        )

    async def states(self, commit: Commit) -> tuple[TableState, TableState]:
        """Return protocol and metadata before and after a commit.

        Raises:
            MissingVersionError: The version before can no longer be rebuilt and is needed.
        """
        version = commit.version
        if version == 0:
            state = first_state(0, commit.protocol, commit.metadata)
            self.timeline.restart(0, state)
            return state, state
        if not self.timeline.knows(version - 1):
            try:
                snapshot, _ = await self.reader.open_listed(version - 1, with_files=False)
            except TableError as error:
                return await self._states_without_before(commit, error)
            self.timeline.restart(version - 1, snapshot.state)
        before = self.timeline.at(version - 1)
        after = before.after(commit)
        self.timeline.extend(commit)
        return before, after

    async def _states_without_before(
        self, commit: Commit, error: TableError
    ) -> tuple[TableState, TableState]:
        """Return the states of the oldest version that can be rebuilt, if they are certain."""
        if commit.metadata is not None and commit.data_removed.files:
            # The schema of its removed rows is no longer known.
            raise error
        snapshot, _ = await self.reader.open_listed(commit.version, with_files=False)
        self.timeline.restart(commit.version, snapshot.state)
        return snapshot.state, snapshot.state

    async def state_at(self, version: int) -> TableState | None:
        """Return protocol and metadata of a version; None if they can no longer be determined."""
        if self.timeline.knows(version):
            return self.timeline.at(version)
        if version == 0 and (0 in self._listed or 0 in self._found):
            first = await self.commit(0)
            return None if first is None else (await self.states(first.commit))[1]
        try:
            snapshot, _ = await self.reader.open_listed(version, with_files=False)
        except TableError:
            return None
        if not self._found:
            self.timeline.restart(version, snapshot.state)
        return snapshot.state

    async def time_ms(self, found: CommitBody, state: TableState) -> int:
        """Return a commit's timestamp in milliseconds.

        Args:
            state: Protocol and metadata with the commit applied.
        """
        if state.has_in_commit_timestamps:
            return commit_time_ms(found.commit, state, 0)
        return await self.file_time_ms(found.file)

    async def file_time_ms(self, file: LogFile) -> int:
        """Return a commit file's time, adjusted to increase from version to version."""
        version = file.version
        if version not in self._file_times:
            before = self._file_times.get(version - 1)
            if before is None:
                await self.list_around(version)
            else:
                self._file_times[version] = max(file.mtime_ms, before + 1)
        return self._file_times.get(version, file.mtime_ms)


def _are_raised(times: Mapping[int, int], commits: Mapping[int, LogFile]) -> bool:
    return any(times[version] != file.mtime_ms for version, file in commits.items())


class TableStateHistory:
    """States of a contiguous range of versions, stored as the few versions where they changed."""

    def __init__(self) -> None:
        self._start = 0
        self._end = -1
        self._versions: list[int] = []
        self._states: list[TableState] = []

    def restart(self, version: int, state: TableState) -> None:
        """Discard everything except the state of `version`."""
        self._start = self._end = version
        self._versions, self._states = [version], [state]

    def knows(self, version: int) -> bool:
        """Return whether the state of `version` is known."""
        return self._start <= version <= self._end

    @property
    def end(self) -> int:
        """The newest known version; -1 before any is known."""
        return self._end

    @property
    def newest(self) -> TableState | None:
        """The state of the newest known version; None before any is known."""
        return self._states[-1] if self._states else None

    @property
    def table_ids(self) -> set[str]:
        """Identities of the table in known versions: more than one if it was replaced."""
        return {state.metadata.id for state in self._states}

    def at(self, version: int) -> TableState:
        """Return the state of a known version."""
        return self._states[bisect.bisect_right(self._versions, version) - 1]

    def extend(self, commit: Commit) -> None:
        """Add the state of the version after the last known one."""
        if not self._states or commit.version != self._end + 1:
            return
        before = self._states[-1]
        after = before.after(commit)
        self._end = commit.version
        if after is not before:
            self._versions.append(commit.version)
            self._states.append(after)

    def forget_before(self, version: int) -> None:
        """Drop states that only versions before `version` need."""
        keep = bisect.bisect_right(self._versions, version) - 1
        if keep > 0:
            del self._versions[:keep]
            del self._states[:keep]
            self._start = max(self._start, self._versions[0])
