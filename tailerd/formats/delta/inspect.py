"""Delta's inspector: versions, live files and commits of a table, from its log alone."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Sequence

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.offset import Version
from tailerd.changefeed.points import parse_point, to_ms
from tailerd.errors import MissingVersionError, NotATableError, UnsupportedFeatureError
from tailerd.formats.delta.changes.commit_cache import CommitCache
from tailerd.formats.delta.log.live_files import count_rows, read_live_files
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.log.time_travel import TimeAxis
from tailerd.formats.delta.protocol.change_plan import CommitPlan
from tailerd.formats.delta.protocol.commit_file import Commit
from tailerd.formats.delta.protocol.live_file import LiveFile
from tailerd.formats.delta.protocol.log_segment import LogListing
from tailerd.formats.delta.protocol.schema import column_texts, parse_schema, schema_json
from tailerd.formats.delta.protocol.snapshot import Snapshot, TableState
from tailerd.formats.inspection import CommitDescription, FileDescription, TableDescription
from tailerd.formats.part_request import PartRequest


class DeltaInspection:
    """Inspects one Delta table.

    Args:
        location: Where it is; if it is strict, a version checksum mismatch is an error.
    """

    def __init__(self, request: PartRequest) -> None:
        self._request = request
        on_mismatch = None if request.is_strict else request.warn
        location = request.location
        self._reader = LogReader(location.store, location.root, on_mismatch=on_mismatch)

    async def version_at(self, timestamp: str) -> Version:
        """Return the newest version not later than a timestamp.

        Raises:
            UsageError: The text is not a timestamp, or before the first commit.
        """
        point = parse_point(timestamp)
        if isinstance(point, datetime.datetime):
            axis = await TimeAxis.read(self._reader)
            return Version(await axis.last_until(to_ms(point)))
        return Version(point)

    async def describe(self, version: Version | None = None) -> TableDescription:
        """Describe a version, the newest by default.

        Raises:
            NotATableError, MissingVersionError: It does not exist.
            CorruptLogError: The log is damaged, or the schema is invalid.
            UnsupportedFeatureError: The log requires an unsupported feature.
            StorageError: The log cannot be read.
        """
        snapshot = await self._snapshot(version)
        metadata = snapshot.state.metadata
        schema = parse_schema(metadata.schema_text)
        return TableDescription(
            table_id=metadata.id,
            name=metadata.name,
            version=Version(snapshot.version),
            timestamp_ms=await self._timestamp_ms(snapshot),
            num_files=snapshot.num_files,
            size_bytes=snapshot.size_bytes,
            num_rows=await count_rows(self._reader, snapshot),
            columns=column_texts(schema),
            schema=schema_json(metadata.schema_text),
            partition_columns=metadata.partition_columns,
            properties=metadata.configuration,
            facts=_list_facts(snapshot),
            shown=_show_properties(snapshot),
        )

    async def files(
        self, version: Version | None = None
    ) -> AsyncIterator[Sequence[FileDescription]]:
        """Yield the live files of a version, some at a time.

        Raises:
            NotATableError, MissingVersionError: It does not exist.
            CorruptLogError: The log is damaged.
            UnsupportedFeatureError: The log requires an unsupported feature.
            StorageError: The log cannot be read.
        """
        snapshot = await self._snapshot(version)
        async for files in read_live_files(self._reader, snapshot, with_stats=True):
            yield [_describe_file(file) for file in files]

    async def history(self, limit: int) -> AsyncIterator[CommitDescription]:
        """Yield the newest `limit` commits, oldest first.

        Those before the first version that can be rebuilt are left out, with a warning.

        Raises:
            NotATableError: There is no table.
            MissingVersionError: The log has a gap.
            TableError: A commit is damaged.
            StorageError: The log cannot be read.
        """
        listing = await self._reader.list_log()
        head = listing.head_version
        if head is None:
            raise NotATableError(
                f"There is no Delta table at {self._reader.url}: its log holds no commit.",
                remedy="Check the path; it is the folder that contains _delta_log.",
            )
        window = CommitCache(self._reader, ChangeMode.AUTO, compares_files=False)
        first = max(head - limit + 1, listing.earliest_commit or 0)
        await window.list_around(first)
        first = await self._first_rebuilt(window, first, listing)
        for version in range(first, head + 1):
            found = await window.commit(version)
            plan = await window.plan(version)
            if found is None or plan is None:
                raise MissingVersionError(
                    f"Version {version} is missing from the log, though version {head} is there.",
                    remedy="A gap means lost commits: restore the file from a backup.",
                )
            yield _describe_commit(version, plan, found.commit)
            window.forget_before(version)

    async def _snapshot(self, version: int | None) -> Snapshot:
        snapshot, _ = await self._reader.open_listed(version)
        try:
            snapshot.state.check_rows()
        except UnsupportedFeatureError as error:
            # The log can be shown although the rows cannot be read.
            self._request.warn(error)
        return snapshot

    async def _timestamp_ms(self, snapshot: Snapshot) -> int | None:
        window = CommitCache(self._reader, ChangeMode.AUTO, compares_files=False)
        listing = await window.list_around(snapshot.version)
        if snapshot.version not in listing.commits:
            return None
        found = await window.commit(snapshot.version)
        return None if found is None else await window.time_ms(found, snapshot.state)

    async def _first_rebuilt(self, window: CommitCache, requested: int, listing: LogListing) -> int:
        """Return the first version from `requested` on whose protocol and columns are known.

        Raises:
            MissingVersionError: There is no such version.
            TableError: A commit is damaged.
        """
        first = requested
        later = [version for version in sorted(listing.checkpoints) if version > requested]
        while True:
            try:
                await window.plan(first)
                break
            except MissingVersionError:
                if not later:
                    raise
                first = later.pop(0)
        if first > requested:
            are = (
                f"Version {requested} is"
                if first == requested + 1
                else f"Versions {requested} to {first - 1} are"
            )
            self._request.warn(
                MissingVersionError(
                    f"{are} left out, because the log before was cleaned up: the first version"
                    f" that can be rebuilt is {first}."
                )
            )
        return first


def _list_facts(snapshot: Snapshot) -> dict[str, object]:
    """Return properties specific to Delta tables, machine-readable."""
    state = snapshot.state
    return {
        "protocol": {
            "min_reader_version": state.protocol.min_reader_version,
            "min_writer_version": state.protocol.min_writer_version,
            "reader_features": state.protocol.reader_features,
            "writer_features": state.protocol.writer_features,
        },
        "checkpoint_version": snapshot.checkpoint_version,
        "domain_metadata": {
            name: action.configuration for name, action in snapshot.domain_metadata.items()
        },
        "transactions": {name: action.version for name, action in snapshot.transactions.items()},
        "change_data_feed": state.has_change_data_feed,
    }


def _show_properties(snapshot: Snapshot) -> dict[str, object]:
    """Return the same properties, human-readable."""
    shown: dict[str, object] = {
        "protocol": _protocol_text(snapshot.state),
        "change data feed": "on" if snapshot.state.has_change_data_feed else "off",
        "last checkpoint": snapshot.checkpoint_version,
    }
    for name, domain in snapshot.domain_metadata.items():
        shown[f"domain {name}"] = domain.configuration
    for name, transaction in snapshot.transactions.items():
        shown[f"writer {name}"] = transaction.version
    return shown


def _protocol_text(state: TableState) -> str:
    protocol = state.protocol
    features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    versions = f"reader {protocol.min_reader_version}, writer {protocol.min_writer_version}"
    return f"{versions}: {', '.join(sorted(features))}" if features else versions


def _describe_file(file: LiveFile) -> FileDescription:
    vector = file.deletion_vector
    return FileDescription(
        path=file.path,
        size_bytes=file.size_bytes,
        partition_values=dict(file.partition_values),
        modification_time_ms=file.modification_time_ms,
        num_rows=file.num_records,
        deletion_vector=None if vector is None else vector.unique_id,
        deleted_rows=file.deleted_rows,
    )


def _describe_commit(version: int, plan: CommitPlan, commit: Commit) -> CommitDescription:
    return CommitDescription(
        version=Version(version),
        timestamp_ms=plan.timestamp_us // 1000,
        operation=plan.operation or None,
        files_added=commit.added.files,
        files_removed=commit.removed.files,
        bytes_added=commit.added.size_bytes,
        bytes_removed=commit.removed.size_bytes,
        change_files=commit.change_files.files,
        change_bytes=commit.change_files.size_bytes,
        changes=plan.kind.value,
        application_ids=plan.applications,
        user_metadata=plan.user_metadata,
    )
