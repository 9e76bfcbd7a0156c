"""A dataset's observed states as a `TableLog`, and opening it for its changes."""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from tailerd.changefeed.change_task import ChangeMode, ChangeSourceKind, ChangeTask
from tailerd.changefeed.offset import ConsecutiveVersions, Offset, Phase, Version
from tailerd.changefeed.points import to_ms
from tailerd.errors import (
    ConfigError,
    MissingDataFileError,
    MissingVersionError,
    NotATableError,
    TableRecreatedError,
    UnsupportedFeatureError,
)
from tailerd.formats.base import Backlog, OpenRequest, TableIdentity
from tailerd.formats.comparing_source import open_log
from tailerd.formats.kartothek.commit_plan import (
    Comparison,
    FileTask,
    commit_tasks,
    snapshot_tasks,
)
from tailerd.formats.kartothek.dataset import DatasetAddress, find_dataset
from tailerd.formats.kartothek.history import DatasetHistory
from tailerd.formats.kartothek.partition_files import (
    FORMAT,
    DatasetFile,
    PartitionFile,
    RewrittenPartitions,
)
from tailerd.formats.kartothek.reader import KartothekTaskReader, describe_collected
from tailerd.formats.kartothek.spool import FileSpool
from tailerd.formats.kartothek.state import ObservedState, parse_origin
from tailerd.formats.kartothek.table_schema import split_folder
from tailerd.formats.plain_schema import decode_schema, require_columns
from tailerd.formats.table_log import (
    ListedStep,
    PlanCache,
    TableLog,
    ahead_bytes,
    version_ahead,
)
from tailerd.formats.versioned_source import VersionedSource
from tailerd.remedies import RESET_PIPELINE
from tailerd.state.ledger import open_ledger
from tailerd.storage.table_location import TableLocation

_REFUSED = {
    ChangeMode.CDF: "which has no change data feed",
    ChangeMode.NET: "whose former states cannot be compared",
}


@dataclass(kw_only=True)
class KartothekStep(ListedStep[FileTask]):
    """The plan of a commit or a snapshot."""

    log: KartothekLog

    async def size_bytes(self) -> int:
        """Return the bytes of all files.

        Raises:
            FilesCollectedError, MissingDataFileError: One does not exist any more.
        """
        sizes = await self.log.find_sizes(self.planned)
        if len(sizes) < len(self.planned):
            await self.log.find_sizes(self.planned[len(sizes) :])
        return sum(sizes)

    async def make_tasks(self, planned: Sequence[FileTask], start: int) -> Sequence[ChangeTask]:
        """Return the tasks at the positions from `start` on, up to one with a missing file.

        Raises:
            FilesCollectedError, MissingDataFileError: That is the first.
        """
        is_snapshot = self.kind is ChangeSourceKind.SNAPSHOT
        return [
            ChangeTask(
                version=self.version,
                timestamp_us=self.timestamp_us,
                position=position,
                change_source=ChangeSourceKind.SNAPSHOT if is_snapshot else _kind([task]),
                change_type=task.change,
                size_bytes=size,
                format=FORMAT,
                payload=self.log.make_payload(task),
                table_id=self.table_id,
            )
            for position, (task, size) in enumerate(
                zip(planned, await self.log.find_sizes(planned), strict=False), start
            )
        ]

    def local_files(self, tasks: Sequence[ChangeTask]) -> Iterable[str]:
        """Return the data files of tasks, not their links."""
        return map(self.log.address.path, ListedStep.local_files(self, tasks))


class KartothekLog(ConsecutiveVersions, TableLog):
    """The observed states of one table of a dataset.

    Args:
        name: The table's location, as the user gave it.
        history: Of the dataset, open.
        request: Which changes are requested.
        at: Where the dataset is.
    """

    def __init__(
        self,
        location: TableLocation,
        address: DatasetAddress,
        history: DatasetHistory,
        request: OpenRequest,
    ) -> None:
        self.location = location
        self.address = address
        self._history = history
        self._identity = tuple(request.identity)
        self._comparison = Comparison.NONE
        if request.changes.is_exact:
            self._comparison = Comparison.ALL if self._identity else Comparison.PARTITIONS
        self._table_id = history.newest.table_id
        self.run_bytes = ahead_bytes(location)
        self._plans: PlanCache[KartothekStep] = PlanCache()

    @property
    def table_id(self) -> str:
        """Identity of the table when it was opened."""
        return self._table_id

    # ------------------------------------------------------------------ points

    async def refresh(self) -> Version:
        """Poll, and return the number of the newest state, which is in the ledger afterwards."""
        await self._history.refresh()
        return Version((await self._history.keep()).number)

    async def locate_version(self, version: Version) -> Version:
        """Return a version whose changes are known, or the next one.

        Raises:
            MissingVersionError: They are not, or it is more than one ahead.
        """
        newest = self._history.newest.number
        if version > newest + 1:
            raise version_ahead(self.name, version, newest)
        if version > newest:
            return version
        if not self._history.is_durable:
            raise MissingVersionError(
                f"The changes of version {version} of {self.name} are not known: a Kartothek"
                " dataset has no history, and there is no ledger.",
                remedy=RESET_PIPELINE,
            )
        if version < self._oldest_followed:
            raise self._gap(version)
        return version

    @property
    def _oldest_followed(self) -> int:
        first = self._history.first_number
        # State 0 needs no state before it.
        return first if first == 0 else first + 1

    def _gap(self, version: int) -> MissingVersionError:
        return MissingVersionError(
            f"The changes of version {version} of {self.name} are no longer in the ledger, whose"
            f" oldest state is {self._history.first_number}: a dataset has no history except the"
            " states in a ledger.",
            remedy=RESET_PIPELINE,
        )

    async def find_first_since(self, time: datetime.datetime) -> Version | None:
        """Return the first version at or after a time whose changes are known; None for none.

        Raises:
            MissingVersionError: Their changes are not known.
        """
        expected, newest = to_ms(time, round_up=True), self._history.newest
        later = [each.number for each in newest.commits if each.timestamp_ms >= expected]
        if not later:
            return None
        known = (number for number in later if number >= self._oldest_followed)
        return await self.locate_version(Version(next(known, later[-1])))

    async def find_last_until(self, time: datetime.datetime) -> Version:
        """Return the last version at or before a time.

        Raises:
            MissingVersionError: There is none.
        """
        until, commits = to_ms(time), self._history.newest.commits
        before = [each.number for each in commits if each.timestamp_ms <= until]
        if not before:
            raise MissingVersionError(
                f"No state of {self.name} was observed at or before {time.isoformat()}.",
                remedy="Give a later time, or a version.",
            )
        return Version(before[-1])

    # ------------------------------------------------------------------ offsets

    async def identity(self, version: Version) -> TableIdentity:
        """Return the table's id and a hash of its schema in `version`, if it is known."""
        state = await self._history.state(version)
        if state is None:
            return TableIdentity(table_id=self._history.newest.table_id)
        return TableIdentity(table_id=state.table_id, schema_id=state.schema_id)

    async def identify(self, offset: Offset, end: Offset | None = None) -> Offset:
        """Return an offset with the identity of the state before it."""
        before = await self._history.state(offset.last_version(self))
        known = self._history.newest if before is None else before
        mark = "" if before is None else before.mark
        return replace(offset, table_id=known.table_id, mark=mark)

    async def check(self, offset: Offset) -> None:
        """Make sure that an offset is of this ledger.

        Raises:
            TableRecreatedError: It is of another dataset, or another ledger.
            MissingVersionError: The ledger was restored from an older copy.
        """
        newest = self._history.newest
        if parse_origin(offset.table_id) != newest.origin:
            raise TableRecreatedError(
                f"The offset belongs to {offset.table_id}, and what was observed of {self.name}"
                f" is {newest.table_id}: the dataset was dropped and created again, or another"
                " ledger is used.",
                remedy=RESET_PIPELINE,
            )
        before = await self._history.state(offset.last_version(self))
        token = offset.mark.partition("/")[0]
        is_other = before is not None and token and before.mark != token
        if is_other or offset.version > newest.number + 1:
            raise MissingVersionError(
                f"The offset of {self.name} is at version {offset.version}, after a state that the"
                f" ledger does not have, whose newest is {newest.number}: it was restored from an"
                " older copy.",
                remedy=RESET_PIPELINE,
            )

    # ------------------------------------------------------------------ steps

    async def advance(self, start: Offset, walk: Callable[[], Awaitable[Offset]]) -> Offset:
        """Poll, and return how far a step may go; states up to there are in the ledger then."""
        await self.refresh()
        await self.check(start)
        return await walk()

    async def commit(
        self, at: Offset, state: str, end: Offset | None = None
    ) -> KartothekStep | None:
        """Return the plan of a state's difference; a partly delivered one keeps its comparison.

        Raises:
            MissingVersionError: The ledger lacks one of the two states.
        """
        if end is None and at.version > self._history.newest.number:
            return None
        comparison = Comparison(state) if state else self._comparison

        async def make_plan() -> KartothekStep:
            after = await self._state(at.version)
            before = await self._history.state(at.version - 1)
            if before is None and at.version > 0:
                raise self._gap(at.version)
            planned = commit_tasks(before, after, comparison)
            step = self._step(after, planned, _kind(planned))
            step.resume_state = comparison.value
            commit = next((each for each in after.commits if each.number == at.version), None)
            if commit is not None:
                step.operation = commit.operation
                step.files_added, step.files_removed = commit.files_added, commit.files_removed
                step.bytes_added = max(commit.bytes_added, 0)
                step.bytes_removed = max(commit.bytes_removed, 0)
            return step

        return await self._plans.find((at.version, comparison), at.version, make_plan)

    async def snapshot(self, at: Offset, state: str, end: Offset | None = None) -> KartothekStep:
        """Return the plan of a state's rows."""

        async def make_plan() -> KartothekStep:
            found = await self._state(at.version)
            step = self._step(found, snapshot_tasks(found), ChangeSourceKind.SNAPSHOT)
            step.is_alone = True
            return step

        return await self._plans.find((at.version, Phase.SNAPSHOT), at.version, make_plan)

    def _step(
        self, state: ObservedState, planned: Sequence[FileTask], kind: ChangeSourceKind
    ) -> KartothekStep:
        version = Version(state.number)
        return KartothekStep(
            version=version,
            timestamp_us=state.timestamp_ms * 1000,
            kind=kind,
            table_id=state.table_id,
            following=self.next_version(version),
            max_files=sum(len(task.files) for task in planned),
            is_whole=False,
            planned=planned,
            log=self,
        )

    async def _state(self, version: int) -> ObservedState:
        state = await self._history.state(version)
        if state is None:
            raise self._gap(version)
        return state

    async def find_sizes(self, tasks: Sequence[FileTask]) -> list[int]:
        """Return the bytes of the files of tasks, whose sizes are requested concurrently.

        Ends before a task with a missing file, unless that is the first.

        Raises:
            FilesCollectedError: A file of the first was deleted as garbage.
            MissingDataFileError: One that the current metadata references is missing.
        """
        sizes = await self._history.sizes.fetch_sizes([key for each in tasks for key in each.files])
        found: list[int] = []
        for task in tasks:
            gone = next((key for key in task.files if key not in sizes), None)
            if gone is None:
                found.append(sum(sizes[key] for key in task.files))
            elif found:
                break
            else:
                raise self._missing(gone)
        return found

    def _missing(self, key: str) -> MissingVersionError | MissingDataFileError:
        url = self._url(key)
        if key not in self._history.newest.keys:
            return describe_collected(url)
        return MissingDataFileError(
            f"The data file {url} does not exist, although the dataset's metadata names it.",
            remedy="It was not deleted by garbage collection: restore it.",
        )

    def _url(self, key: str) -> str:
        return self.location.store.format_url(self.address.path(key))

    def _location(self, key: str) -> str:
        """Return where a file's rows are read: its link, if it has one."""
        spool = self._history.spool
        is_linked = spool is not None and spool.size_bytes(key) is not None
        return str(spool.path(key)) if spool is not None and is_linked else self._url(key)

    def make_payload(self, task: FileTask) -> PartitionFile | RewrittenPartitions:
        """Return the input of the reader for a task."""
        removed, added = (
            tuple(DatasetFile(self._location(key), split_folder(key)) for key in keys)
            for keys in (task.removed, task.added)
        )
        if task.change is not None:
            return PartitionFile(file=[*removed, *added][0], schema=task.schema)
        return RewrittenPartitions(
            removed=removed,
            added=added,
            schema=task.schema,
            groups=task.groups,
            key=self._identity,
        )

    # ------------------------------------------------------------------ the rest

    async def schema(self, version: Version | None, columns: Sequence[str] | None) -> pa.Schema:
        """Return the columns of a version, as far as the ledger has it; None: of the newest.

        Raises:
            MissingVersionError: The ledger no longer has it, or not yet.
            UsageError: There is no such column.
        """
        state = self._history.newest if version is None else await self._state(version)
        return require_columns(decode_schema(state.schema), columns)

    async def backlog(self, start: Offset) -> Backlog:
        """Return how far the newest state is from `start`, with one poll of the metadata file."""
        await self._history.refresh()
        newest = self._history.newest
        pending = [each for each in newest.commits if each.number >= start.version]
        return Backlog(
            head_version=Version(newest.number),
            versions=max(0, newest.number - start.version + 1),
            head_timestamp_ms=newest.timestamp_ms,
            oldest_undelivered_timestamp_ms=pending[0].timestamp_ms if pending else None,
        )

    async def forget(self, end: Offset) -> None:
        """Delete states that no delivery from `end` on needs."""
        self._plans.forget_before(end.version)
        needed = end.version if end.phase is Phase.SNAPSHOT else end.version - 1
        await self._history.forget_before(needed)


async def open_source(
    location: TableLocation, request: OpenRequest, reader: KartothekTaskReader
) -> VersionedSource:
    """Open a table of a dataset at its current state.

    Raises:
        NotATableError: There is no dataset.
        UnsupportedFeatureError: Change files or net changes are requested.
        TableError: It is not supported.
        ConfigError: No store serves this location, or the ledger's.
    """
    if (why := _REFUSED.get(request.changes)) is not None:
        raise UnsupportedFeatureError(
            f"{location.name} is a Kartothek dataset, {why}.", remedy="Leave `changes` out."
        )
    ledger = open_ledger(request.ledger, location.stores)
    address = await find_dataset(location.store, location.root)
    if address is None:
        if await ledger.numbers():
            await ledger.mark_dropped()
        raise NotATableError(
            f"There is no dataset at {location.name}: no file UUID.by-dataset-metadata.json or"
            " .msgpack.zstd next to it.",
            remedy="Name it STORE/UUID, or STORE/UUID/TABLE where it has several tables.",
        )
    spool = _open_spool(request, address, location)
    history = await DatasetHistory.open(
        location.store, address, ledger, location.name, spool, request.memory_bytes
    )
    return open_log(KartothekLog(location, address, history, request), reader, request)


def _open_spool(
    request: OpenRequest, address: DatasetAddress, location: TableLocation
) -> FileSpool | None:
    """Return the file spool for the option `spool`, below the ledger; None if not set.

    Raises:
        ConfigError: It is not `link`, or the dataset or the ledger is not on a local disk.
    """
    requested, ledger = request.options.get("spool"), request.ledger
    if requested is None or (ledger is not None and ledger.is_read_only):
        return None
    if requested != "link":
        raise ConfigError(
            f"The option spool of {location.name} is {requested!r}.", remedy="Say `spool: link`."
        )
    if ledger is None or not location.is_local or "://" in ledger.location:
        raise ConfigError(
            f"The files of {location.name} cannot be linked: that needs the dataset and its ledger"
            " on one disk of this machine.",
            remedy="Keep the state in a folder there, or leave the option `spool` out.",
        )
    return FileSpool(address.folder, Path(ledger.location) / "files")


def _kind(tasks: Sequence[FileTask]) -> ChangeSourceKind:
    if any(task.change is None for task in tasks):
        return ChangeSourceKind.ROWS
    return ChangeSourceKind.FILES if tasks else ChangeSourceKind.NONE
