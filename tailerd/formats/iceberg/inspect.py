"""The inspector of Iceberg tables: versions, data files and commits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from tailerd.changefeed.offset import BEFORE_ALL, Version
from tailerd.changefeed.points import parse_point, to_ms
from tailerd.errors import MissingVersionError, TableError, UsageError
from tailerd.formats.base import OpenRequest
from tailerd.formats.iceberg.columns import parse_columns
from tailerd.formats.iceberg.commit_plan import CommitFiles, DeleteIndex
from tailerd.formats.iceberg.manifests import Content, ContentFile
from tailerd.formats.iceberg.metadata import Commit, PartitionSpec
from tailerd.formats.iceberg.planner import REPLACE, IcebergPlanner, change_source
from tailerd.formats.iceberg.table_files import TableFiles, open_files
from tailerd.formats.inspection import CommitDescription, FileDescription, TableDescription
from tailerd.formats.part_request import PartRequest

_FILES_AT_ONCE = 500


class IcebergInspection:
    """Inspects one table; read-only."""

    def __init__(self, request: PartRequest) -> None:
        self._request, self._location = request, request.location
        self._opened: TableFiles | None = None

    @property
    def _files(self) -> TableFiles:
        assert self._opened is not None
        return self._opened

    @property
    def _planner(self) -> IcebergPlanner:
        return IcebergPlanner(self._files, self._location.name, OpenRequest())

    async def _commit(self, version: Version | None) -> Commit | None:
        if self._opened is None:
            self._opened, _ = await open_files(self._location, self._request.options)
        state = self._files.state
        if version is None:
            return state.head
        if (found := state.at(version)) is None:
            raise MissingVersionError(
                f"Version {version} of {self._location.url} is not in the table's history.",
                remedy="`tailerd history` shows the versions.",
            )
        return found

    async def version_at(self, timestamp: str) -> Version:
        """Return the newest version not later than a timestamp.

        Raises:
            UsageError: The text is not a timestamp, or before the oldest version.
        """
        point = parse_point(timestamp)
        if isinstance(point, int):
            return Version(point)
        await self._commit(None)
        until = to_ms(point)
        for each in reversed(self._files.state.commits):
            if each.snapshot.timestamp_ms <= until:
                return each.version
        raise UsageError(f"There is no version at or before {timestamp}.")

    async def describe(self, version: Version | None = None) -> TableDescription:
        """Describe a version, the newest by default.

        Raises:
            NotATableError, MissingVersionError: It does not exist.
            TableError, StorageError: It cannot be read.
        """
        commit = await self._commit(version)
        state = self._files.state
        snapshot = None if commit is None else commit.snapshot
        columns = parse_columns(self._planner.whole_schema(snapshot))
        data, deletes = await self._live_files(commit)
        spec = state.specs.get(state.metadata.default_spec_id, PartitionSpec())
        facts = {
            "format_version": state.metadata.format_version,
            "snapshot_id": None if snapshot is None else snapshot.snapshot_id,
            "metadata_file": state.path,
            "location": state.metadata.location,
            "delete_files": len(deletes),
            "oldest_version": state.commits[0].version if state.commits else None,
            "branches": sorted(state.metadata.refs or {}),
        }
        types = tuple((each.name, each.type_name) for each in columns)
        return TableDescription(
            table_id=state.table_id,
            version=BEFORE_ALL if commit is None else commit.version,
            timestamp_ms=None if snapshot is None else snapshot.timestamp_ms,
            num_files=len(data),
            size_bytes=sum(each.size_bytes for each in data),
            num_rows=self._count_rows(data, deletes),
            columns=types,
            schema=dict(types),
            partition_columns=[each.name for each in spec.fields],
            properties=state.metadata.properties,
            facts=facts,
            shown={
                "format version": state.metadata.format_version,
                "snapshot": facts["snapshot_id"],
                "delete files": len(deletes),
                "oldest version": facts["oldest_version"],
                "metadata file": state.path,
            },
        )

    async def _live_files(
        self, commit: Commit | None
    ) -> tuple[list[ContentFile], list[ContentFile]]:
        if commit is None:
            return [], []
        data = await self._files.live_files(commit.snapshot, are_deletes=False)
        return data, await self._files.live_files(commit.snapshot, are_deletes=True)

    def _index(self, deletes: Sequence[ContentFile]) -> DeleteIndex:
        specs = self._files.state.specs
        return DeleteIndex.of(
            deletes, lambda spec_id: spec_id not in specs or specs[spec_id].is_partitioned
        )

    def _count_rows(
        self, data: Sequence[ContentFile], deletes: Sequence[ContentFile]
    ) -> int | None:
        """Return the number of live rows; None if only reading delete files shows it."""
        total = sum(each.rows for each in data)
        if any(each.offset is None for each in deletes):
            return None
        index = self._index(deletes)
        return total - sum(delete.rows for file in data for delete in index.find(file))

    async def files(
        self, version: Version | None = None
    ) -> AsyncIterator[Sequence[FileDescription]]:
        """Yield the data files of a version, some at a time.

        Raises:
            As `describe`.
        """
        data, deletes = await self._live_files(await self._commit(version))
        index = self._index(deletes)
        for first in range(0, len(data), _FILES_AT_ONCE):
            yield [
                self._describe_file(each, index.find(each))
                for each in data[first : first + _FILES_AT_ONCE]
            ]

    def _describe_file(self, file: ContentFile, deletes: Sequence[ContentFile]) -> FileDescription:
        spec = self._files.state.specs.get(file.spec_id, PartitionSpec())
        values = zip(spec.fields, file.partition, strict=False)
        counted = [each for each in deletes if each.content is Content.POSITION_DELETES]
        vector = next((each for each in deletes if each.offset is not None), None)
        return FileDescription(
            path=file.path,
            size_bytes=file.size_bytes,
            partition_values={
                field.name: None if value is None else str(value) for field, value in values
            },
            modification_time_ms=None,
            num_rows=file.rows,
            deletion_vector=None if vector is None else f"{vector.path}@{vector.offset}",
            deleted_rows=sum(each.rows for each in counted if each.data_file == file.path),
        )

    async def history(self, limit: int) -> AsyncIterator[CommitDescription]:
        """Yield the newest `limit` commits, oldest first.

        Raises:
            NotATableError: There is no table.
            TableError, StorageError: A commit cannot be read.
        """
        await self._commit(None)
        for commit in self._files.state.commits[-limit:]:
            try:
                files = await self._planner.commit_files(commit)
            except TableError as error:
                self._request.warn(error)
                continue
            yield _describe_commit(commit, files)


def _describe_commit(commit: Commit, files: CommitFiles) -> CommitDescription:
    added, removed = files.data(files.added), files.data(files.removed)
    is_rewrite = commit.snapshot.operation == REPLACE
    changes = "unknown" if not commit.has_parent else change_source(files).value
    return CommitDescription(
        version=commit.version,
        timestamp_ms=commit.snapshot.timestamp_ms,
        operation=commit.snapshot.operation or None,
        files_added=len(added),
        files_removed=len(removed),
        bytes_added=sum(each.size_bytes for each in added),
        bytes_removed=sum(each.size_bytes for each in removed),
        change_files=0,
        change_bytes=0,
        changes="none" if is_rewrite else changes,
    )
