"""Measures an array, and what of it is still to be delivered, by its fragments."""

from __future__ import annotations

from tailerd.changefeed.offset import Offset, Phase
from tailerd.clock import SystemClock
from tailerd.formats.maintenance import CLEANUP
from tailerd.formats.part_request import PartRequest
from tailerd.formats.statistics import (
    Columns,
    CommitFacts,
    CommitStatistics,
    PendingWork,
    TableSize,
    size_counts,
)
from tailerd.formats.tiledb.array_log import ArrayLog
from tailerd.formats.tiledb.known_commits import read_mark
from tailerd.formats.tiledb.maintenance import COMMITS_JOB, FRAGMENTS_JOB
from tailerd.formats.tiledb.protocol.names import TimedName
from tailerd.formats.tiledb.protocol.timeline import NONE_MS, Timeline
from tailerd.formats.tiledb.task_plan import TaskPlan, open_plan, operation

_COMMITS_AT_ONCE = 200


class TileDBStatistics(CommitStatistics):
    """Follows one array; see `formats.statistics.TableStatistics`. A fragment counts as a file."""

    measured_again_after = frozenset({CLEANUP, COMMITS_JOB, FRAGMENTS_JOB})

    def __init__(self, request: PartRequest) -> None:
        super().__init__()
        self._location = location = request.location
        self._clock = SystemClock()
        self._log = ArrayLog(location.store, location.root, location.url)
        self._plan: TaskPlan | None = None
        self._version = NONE_MS
        self._columns: Columns = ()
        self._sizes: dict[TimedName, int] = {}

    @property
    def _timeline(self) -> Timeline:
        assert self._plan is not None
        return self._plan.timeline

    @property
    def table_id(self) -> str:
        """Identity of the array."""
        return self._log.schemas[0].identity

    @property
    def version(self) -> int:
        """The time of the last applied commit; 0 for an array without commits."""
        return max(self._version, 0)

    def has_identity(self, table_id: str) -> bool:
        """Return whether the array has this identity."""
        return table_id == self.table_id

    def columns(self) -> Columns:
        """Return name and type of each dimension and attribute."""
        return self._columns

    async def open(self, now: float, *, first: Offset | None, next_up: Offset | None) -> None:
        """Load the array at its newest version: merged commits are no longer known.

        Raises:
            NotATableError: There is no array.
            TableError, StorageError: It cannot be read.
        """
        self._plan = await open_plan(self._location, self._log, self._clock.now_ms())
        await self._measure(self._timeline.head)

    async def _measure(self, version: int) -> None:
        assert self._plan is not None
        fragments = self._timeline.fragments
        sizes = await self._log.fragment_sizes(fragments)
        self._sizes = dict(zip(fragments, sizes, strict=True))
        schema = await self._plan.schema(max(version, 0))
        self._columns = tuple((field.name, str(field.type)) for field in schema)
        self._version = version

    def reaches(self, next_up: Offset) -> bool:
        """Return true: each poll reads all commits of the array."""
        return True

    async def advance(self, now: float) -> bool:
        """Apply new commits; return whether there may be more.

        Raises:
            TableError, StorageError: The array cannot be read.
        """
        assert self._plan is not None
        self._plan.timeline = timeline = await self._log.refresh(self._clock.now_ms())
        came = timeline.versions_between(self._version, timeline.head)[:_COMMITS_AT_ONCE]
        before = self._columns
        await self._measure(came[-1] if came else self._version)
        for version in came:
            is_last = version == came[-1]
            is_changed = is_last and self._columns != before
            self._new_commits.append(self._facts(version, self._columns if is_changed else None))
        return self._version < timeline.head

    def _facts(self, version: int, columns: Columns | None) -> CommitFacts:
        writes = [each for each in self._timeline.fragments if each.last_ms == version]
        deletes = self._timeline.deletes_between(version - 1, version)
        return CommitFacts(
            version=version,
            timestamp_ms=version,
            operation=operation(has_writes=bool(writes), has_deletes=bool(deletes)),
            files_added=len(writes),
            bytes_added=self._sum_sizes(writes),
            files_removed=0,
            bytes_removed=0,
            columns=columns,
        )

    def _sum_sizes(self, fragments: list[TimedName]) -> int:
        return sum(self._sizes.get(each, 0) for each in fragments)

    def pending(self, next_up: Offset | None) -> PendingWork | None:
        """Return the changes left to deliver from an offset on; for a snapshot, the shares left."""
        if next_up is None:
            return PendingWork(files=0, bytes=0)
        timeline, start = self._timeline, int(next_up.version)
        if next_up.phase is Phase.FOLLOW:
            left = list(timeline.writes_between(start - 1, self._version))
            return PendingWork(files=len(left), bytes=self._sum_sizes(left))
        newer = list(timeline.writes_between(start, self._version))
        whole = list(timeline.writes_between(NONE_MS, start))
        mark = read_mark(next_up.mark)
        shares = mark.shares if mark is not None and next_up.position else 0
        part = (shares - next_up.position) / shares if shares else 1.0
        return PendingWork(
            files=len(newer) + round(len(whole) * part),
            bytes=self._sum_sizes(newer) + round(self._sum_sizes(whole) * part),
        )

    def size(self) -> TableSize:
        """Return the figures at `version`; commits are those that a reader loads to open it."""
        fragments = self._timeline.writes_between(NONE_MS, self._version)
        sizes = [self._sizes.get(each, 0) for each in fragments]
        deletes = self._timeline.deletes_between(NONE_MS, self._version)
        return TableSize(
            version=self.version,
            files=len(sizes),
            bytes=sum(sizes),
            rows=None,
            size_counts=size_counts(sizes),
            checkpoint_version=None,
            commits_since_checkpoint=len(fragments) + len(deletes),
            log_files=self._log.num_files,
        )
