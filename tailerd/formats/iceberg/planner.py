"""Plans the tasks whose rows are the difference of two snapshots of a table."""

from __future__ import annotations

import enum
import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from tailerd.changefeed.change_task import ChangeSourceKind, ChangeType
from tailerd.errors import MissingVersionError, UnsupportedFeatureError
from tailerd.formats.base import OpenRequest
from tailerd.formats.iceberg.columns import TableSchema, column_scans, parse_columns, rows_schema
from tailerd.formats.iceberg.commit_plan import (
    CommitFiles,
    DeleteIndex,
    FileChange,
    RowChanges,
    group_changes,
    live_rows,
    row_changes,
)
from tailerd.formats.iceberg.manifests import Content, ContentFile, Manifest, Status
from tailerd.formats.iceberg.metadata import Commit, PartitionSpec, Snapshot
from tailerd.formats.iceberg.payload import (
    ComparedRows,
    DataRows,
    Deletes,
    KeyDeletes,
    Payload,
    StoredFile,
    Vector,
)
from tailerd.formats.iceberg.table_files import TableFiles
from tailerd.formats.plain_schema import encode_schema
from tailerd.reading.file_scan import PARQUET
from tailerd.reading.other_files import AVRO
from tailerd.remedies import RESET_PIPELINE
from tailerd.rows.difference import Side
from tailerd.rows.groups import FilesToCompare

NAME_MAPPING = "schema.name-mapping.default"
REPLACE = "replace"
_PUFFIN = "puffin"
_DATA_FORMATS = frozenset({PARQUET})
_DELETE_FORMATS = frozenset({PARQUET, AVRO})


class Comparison(enum.StrEnum):
    """How a commit's removed and added rows are treated; the value is saved in offsets."""

    NONE = "f"
    """All of them are returned."""
    ROWS = "r"
    """Equal rows cancel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTask:
    """The content of one task; `change` and `kind` as in `ChangeTask`."""

    change: ChangeType | None
    kind: ChangeSourceKind
    payload: Payload
    schema: bytes
    size_bytes: int
    rows: int | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """URLs of the data files."""
        payload = self.payload
        if isinstance(payload, DataRows):
            return (payload.file.url,)
        return tuple(each.file.url for each in (*payload.removed, *payload.added))


class IcebergPlanner:
    """Plans the tasks of one table.

    Args:
        request: Which columns are read, and by which key updates are paired.
    """

    def __init__(self, files: TableFiles, name: str, request: OpenRequest) -> None:
        self._files = files
        self._name = name
        self._request = request

    def schema(self, snapshot: Snapshot | None) -> TableSchema:
        """Return the schema of a snapshot without unsupported columns; None: the current one.

        Raises:
            UnsupportedFeatureError: A requested column is not supported.
            TableError: The schema is malformed.
        """
        whole = self.whole_schema(snapshot)
        columns = parse_columns(whole)
        column_scans(whole, self._request.columns(each.name for each in columns))
        ids = {each.id for each in columns if each.scan is not None}
        return whole if len(ids) == len(columns) else _with_columns(whole, ids)

    def whole_schema(self, snapshot: Snapshot | None) -> TableSchema:
        """Return the schema of a snapshot; None: the current one."""
        state = self._files.state
        mapping = state.metadata.properties.get(NAME_MAPPING, "")
        return TableSchema(state.schema_text(snapshot), mapping)

    async def commit_files(self, commit: Commit) -> CommitFiles:
        """Return the files that a commit adds and removes.

        Raises:
            MissingVersionError: It has more files than it added, and the commits that added those
                are gone.
            TableError: They cannot be read.
        """
        snapshot = commit.snapshot
        listed = await self._files.manifests(snapshot)
        own = [each for each in listed if _is_own(each, snapshot)]
        is_foreign = len(own) < len(listed) and any(e.has_files for e in listed if e not in own)
        added: list[ContentFile] = []
        removed: list[ContentFile] = []
        changed = [each for each in own if each.has_changes or commit.parent is None]
        ids = {each.added_snapshot_id for each in own}
        async for entries in self._files.entries(changed, snapshot):
            for entry in entries:
                # A manifest may also list what earlier snapshots added or removed.
                is_change = entry.snapshot_id in ids
                if entry.status is Status.ADDED and is_change:
                    added.append(entry.file)
                elif entry.status is Status.DELETED and is_change:
                    removed.append(entry.file)
                elif entry.status is not Status.DELETED:
                    is_foreign = True
        if commit.parent is None and is_foreign:
            raise self.gap(commit)
        return CommitFiles(tuple(added), tuple(removed))

    def gap(self, commit: Commit) -> MissingVersionError:
        """Return the error for a commit whose parent is gone."""
        return MissingVersionError(
            f"The changes of version {commit.version} of {self._name} are not known: the snapshot"
            " before it expired, or was made in format version 1.",
            remedy=f"{RESET_PIPELINE} Expire snapshots later than the slowest pipeline delivers.",
        )

    async def commit(
        self, commit: Commit, comparison: Comparison
    ) -> tuple[CommitFiles, list[PlannedTask]]:
        """Return the files of a commit, and its tasks, deletes before inserts.

        Raises:
            MissingVersionError: Its parent is gone.
            TableError: Its changes cannot be determined.
        """
        if not commit.has_parent:
            raise self.gap(commit)
        files = await self.commit_files(commit)
        has_deletes = len(files.data(files.added)) < len(files.added) or len(
            files.data(files.removed)
        ) < len(files.removed)
        number = commit.snapshot.sequence_number or 0
        is_old = any(each.sequence < number for each in files.data(files.added))
        data_before: list[ContentFile] = []
        deletes_before: list[ContentFile] = []
        if commit.parent is not None and (has_deletes or files.removed or is_old):
            deletes_before = await self._files.live_files(commit.parent, are_deletes=True)
        if commit.parent is not None and has_deletes:
            data_before = await self._files.live_files(commit.parent, are_deletes=False)
        changes = row_changes(files, data_before, deletes_before, self._is_partitioned)
        is_rewrite = commit.snapshot.operation == REPLACE and comparison is Comparison.ROWS
        return files, self._tasks(changes, commit.snapshot, comparison, is_rewrite=is_rewrite)

    async def net(self, before: Snapshot | None, after: Snapshot) -> list[PlannedTask]:
        """Return the tasks of the difference of two snapshots, as one step.

        Raises:
            TableError: It cannot be determined.
        """
        sides = []
        for snapshot in (before, after):
            found: list[ContentFile] = []
            if snapshot is not None:
                found += await self._files.live_files(snapshot, are_deletes=False)
                found += await self._files.live_files(snapshot, are_deletes=True)
            sides.append(found)
        old, new = sides
        files = CommitFiles(_difference(new, old), _difference(old, new))
        changes = row_changes(
            files,
            [each for each in old if each.content is Content.DATA],
            [each for each in old if each.content is not Content.DATA],
            self._is_partitioned,
        )
        tasks = self._tasks(changes, after, Comparison.ROWS, is_rewrite=False)
        first = 0 if before is None else before.snapshot_id
        return [replace(each, kind=ChangeSourceKind.NET) for each in _prefixed(tasks, first)]

    async def snapshot(self, snapshot: Snapshot) -> list[PlannedTask]:
        """Return a task for each data file of a snapshot, in the order of its manifests.

        Raises:
            TableError: They cannot be read.
        """
        data = await self._files.live_files(snapshot, are_deletes=False)
        deletes = await self._files.live_files(snapshot, are_deletes=True)
        rows = live_rows(data, DeleteIndex.of(deletes, self._is_partitioned))
        payloads = self._payloads(rows, Side.ADDED, self.schema(snapshot))
        kind = ChangeSourceKind.SNAPSHOT
        return [_whole(ChangeType.INSERT, kind, each) for each in payloads]

    def _is_partitioned(self, spec_id: int) -> bool:
        spec = self._files.state.specs.get(spec_id)
        return spec is None or spec.is_partitioned

    # ------------------------------------------------------------------ tasks

    def _tasks(
        self,
        changes: RowChanges,
        snapshot: Snapshot,
        comparison: Comparison,
        *,
        is_rewrite: bool,
    ) -> list[PlannedTask]:
        schema = self.schema(snapshot)
        removed, added = (
            self._payloads(rows, side, schema)
            for side, rows in ((Side.REMOVED, changes.removed), (Side.ADDED, changes.added))
        )
        is_compared = comparison is Comparison.ROWS and (is_rewrite or (removed and added))
        if is_compared and (removed or added):
            names = {each.name for each in parse_columns(schema)}
            key = tuple(self._request.identity)
            payload = ComparedRows(
                removed=tuple(removed),
                added=tuple(added),
                schema=schema,
                groups=group_changes(changes),
                key=key if set(key) <= names else (),
                is_rewrite=is_rewrite,
            )
            return [_compared(payload)]
        return [
            _whole(change, _kind(each), each)
            for change, payloads in ((ChangeType.DELETE, removed), (ChangeType.INSERT, added))
            for each in payloads
        ]

    def _payloads(
        self, rows: Sequence[FileChange], side: Side, schema: TableSchema
    ) -> list[DataRows]:
        return [
            self._payload(each, 2 * number + int(side), schema) for number, each in enumerate(rows)
        ]

    def _payload(self, rows: FileChange, number: int, schema: TableSchema) -> DataRows:
        file = rows.file
        only = None if rows.only is None else self._deletes(rows.only, file)
        return DataRows(
            file=self._stored(file),
            path=file.path,
            number=number,
            schema=schema,
            size_bytes=_requested_bytes(rows),
            num_rows=file.rows,
            identities=self._identities(file),
            only=only,
            without=self._deletes(rows.without, file),
            first_row_id=file.first_row_id,
            sequence=file.sequence,
        )

    def _identities(self, file: ContentFile) -> tuple[tuple[int, Any], ...]:
        spec = self._files.state.specs.get(file.spec_id, PartitionSpec())
        return tuple(
            (number, file.partition[position])
            for position, number in spec.identities.items()
            if position < len(file.partition)
        )

    def _stored(self, file: ContentFile) -> StoredFile:
        is_data = file.content is Content.DATA
        if file.file_format not in (_DATA_FORMATS if is_data else _DELETE_FORMATS):
            raise UnsupportedFeatureError(
                f"The file {file.path} of {self._name} has the format {file.file_format}, and this"
                " release reads data files in Parquet, and delete files in Parquet and Avro.",
                remedy="Set `write.format.default` to parquet, and rewrite the table's files.",
            )
        return StoredFile(self._files.paths.resolve(file.path), file.file_format)

    def _deletes(self, files: Sequence[ContentFile], data: ContentFile) -> Deletes:
        vectors: list[Vector] = []
        positions: list[StoredFile] = []
        by_key: dict[tuple[object, ...], list[ContentFile]] = {}
        for file in files:
            if file.content is Content.EQUALITY_DELETES:
                key = (frozenset(file.equality_ids), self._identities(file))
                by_key.setdefault(key, []).append(file)
            elif file.file_format == _PUFFIN:
                vectors.append(self._vector(file))
            else:
                positions.append(self._stored(file))
        keys = tuple(
            KeyDeletes(
                schema=self._key_schema(same[0].equality_ids),
                files=tuple(map(self._stored, same)),
                identities=self._identities(same[0]),
            )
            for same in by_key.values()
        )
        return Deletes(vectors=tuple(vectors), positions=tuple(positions), keys=keys)

    def _vector(self, file: ContentFile) -> Vector:
        return Vector(
            url=self._files.paths.resolve(file.path),
            offset=file.offset or 0,
            length=file.length or 0,
            rows=file.rows,
        )

    def _key_schema(self, ids: Sequence[int]) -> TableSchema:
        """Return the schema of equality deletes' columns, which may have been dropped since.

        Raises:
            UnsupportedFeatureError: A column is part of another one.
        """
        state = self._files.state
        mapping = state.metadata.properties.get(NAME_MAPPING, "")
        current = state.schema_text(None)
        fields: dict[int, Any] = {}
        for text in (current, *state.all_schemas()):
            for each in msgspec.json.decode(text)["fields"]:
                fields.setdefault(each["id"], each)
        if lacking := [number for number in ids if number not in fields]:
            raise UnsupportedFeatureError(
                f"The table {self._name} has equality deletes by the column with id {lacking[0]},"
                " which is part of another column, and these are not read in this release.",
                remedy="Compact the table, so that it has no equality deletes.",
            )
        chosen = [fields[number] for number in sorted(ids)]
        return TableSchema(msgspec.json.encode({"fields": chosen}).decode(), mapping)


def _is_own(manifest: Manifest, snapshot: Snapshot) -> bool:
    """Return whether a snapshot added a manifest.

    Some tools round snapshot ids in the metadata file, as JavaScript does; sequence numbers are
    unique too.
    """
    if manifest.added_snapshot_id == snapshot.snapshot_id:
        return True
    return bool(snapshot.sequence_number) and manifest.sequence == snapshot.sequence_number


def _difference(
    files: Iterable[ContentFile], others: Iterable[ContentFile]
) -> tuple[ContentFile, ...]:
    """Return the files that are not among others, as multisets."""
    left = Counter(each.key for each in others)
    found = []
    for each in files:
        if left[each.key]:
            left[each.key] -= 1
        else:
            found.append(each)
    return tuple(found)


def _prefixed(tasks: Iterable[PlannedTask], first: int) -> Iterable[PlannedTask]:
    """Return tasks as one comparison; its rows differ in position from those of commits."""
    tasks = list(tasks)
    if len(tasks) == 1 and isinstance(tasks[0].payload, ComparedRows):
        return [replace(tasks[0], payload=replace(tasks[0].payload, prefix=f"net-{first}."))]
    removed, added = (
        tuple(each.payload for each in tasks if each.change is change)
        for change in (ChangeType.DELETE, ChangeType.INSERT)
    )
    if not tasks:
        return []
    one = tasks[0].payload
    assert isinstance(one, DataRows)
    sides = (range(len(removed)), range(len(added)))
    payload = ComparedRows(
        removed=tuple(each for each in removed if isinstance(each, DataRows)),
        added=tuple(each for each in added if isinstance(each, DataRows)),
        schema=one.schema,
        groups=(FilesToCompare(removed=tuple(sides[0]), added=tuple(sides[1])),),
        prefix=f"net-{first}.",
    )
    return [_compared(payload)]


@functools.lru_cache(maxsize=64)
def _row_columns(schema: TableSchema) -> bytes:
    return encode_schema(rows_schema(schema))


def _compared(payload: ComparedRows) -> PlannedTask:
    return PlannedTask(
        change=None,
        kind=ChangeSourceKind.ROWS,
        payload=payload,
        schema=_row_columns(payload.schema),
        size_bytes=sum(each.size_bytes for each in (*payload.removed, *payload.added)),
    )


def _whole(change: ChangeType, kind: ChangeSourceKind, rows: DataRows) -> PlannedTask:
    return PlannedTask(
        change=change,
        kind=kind,
        payload=rows,
        schema=_row_columns(rows.schema),
        size_bytes=rows.size_bytes,
        rows=rows.num_rows,
    )


def _kind(rows: DataRows) -> ChangeSourceKind:
    return ChangeSourceKind.FILES if rows.only is None else ChangeSourceKind.VECTORS


def _requested_bytes(rows: FileChange) -> int:
    """Return an estimate of the bytes to read for the rows of a file."""
    file = rows.file
    is_known = rows.only is not None and file.rows > 0
    if not is_known or any(e.content is Content.EQUALITY_DELETES for e in rows.only or ()):
        return file.size_bytes
    deleted = sum(each.rows for each in rows.only or ())
    return min(file.size_bytes, file.size_bytes * deleted // file.rows + 1)


def _with_columns(schema: TableSchema, ids: set[int]) -> TableSchema:
    """Return a schema without columns that are not read."""
    decoded = msgspec.json.decode(schema.text)
    fields = [each for each in decoded["fields"] if each["id"] in ids]
    text = msgspec.json.encode({**decoded, "fields": fields}).decode()
    return TableSchema(text, schema.name_mapping)


def change_source(files: CommitFiles) -> ChangeSourceKind:
    """Return how the rows of a commit are found by default."""
    added, removed = files.data(files.added), files.data(files.removed)
    has_deletes = len(added) < len(files.added) or len(removed) < len(files.removed)
    if (removed or has_deletes) and added:
        return ChangeSourceKind.ROWS
    if has_deletes:
        return ChangeSourceKind.VECTORS
    return ChangeSourceKind.FILES if added or removed else ChangeSourceKind.NONE
