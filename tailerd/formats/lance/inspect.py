"""The inspector of Lance tables: versions, fragments' files and commits, without pylance."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tailerd.changefeed.change_task import ChangeSourceKind
from tailerd.changefeed.offset import Version
from tailerd.changefeed.points import parse_point, to_ms
from tailerd.errors import UsageError
from tailerd.formats.inspection import CommitDescription, FileDescription, TableDescription
from tailerd.formats.lance.origin import TableOrigin
from tailerd.formats.lance.protocol.columns import Column
from tailerd.formats.lance.protocol.commit_plan import Difference, difference, is_only_rearranged
from tailerd.formats.lance.protocol.fragments import Fragment
from tailerd.formats.lance.protocol.manifest import Manifest
from tailerd.formats.lance.protocol.transactions import Operation
from tailerd.formats.lance.version_log import VersionLog, staged_warning
from tailerd.formats.part_request import PartRequest
from tailerd.state.ledger import open_ledger

_FILES_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals over the fragments of a version; None if writers did not record the values."""

    files: int
    size_bytes: int | None
    rows: int | None
    deleted_rows: int


class LanceInspection:
    """Inspects one table; read-only."""

    def __init__(self, request: PartRequest) -> None:
        self._request, self._location = request, request.location
        location = request.location
        self._log = VersionLog(location.store, location.root, location.url)

    async def _manifest(self, version: Version | None) -> Manifest:
        if not self._log.versions:
            await self._log.refresh()
            if self._log.staged is not None:
                self._request.warn(staged_warning(self._log, self._location.url))
        requested = self._log.head if version is None else version
        return await self._log.manifest(requested, lambda: "or never existed")

    async def version_at(self, timestamp: str) -> Version:
        """Return the newest version not later than a timestamp.

        Raises:
            UsageError: The text is not a timestamp, or before the oldest version.
        """
        point = parse_point(timestamp)
        if isinstance(point, int):
            return Version(point)
        await self._manifest(None)
        until_us = to_ms(point) * 1000 + 999
        for version in reversed(self._log.versions):
            found = await self._log.find(version)
            if found is not None and found.timestamp_us <= until_us:
                return version
        raise UsageError(f"There is no version at or before {timestamp}.")

    async def describe(self, version: Version | None = None) -> TableDescription:
        """Describe a version, the newest by default.

        Raises:
            NotATableError, MissingVersionError: It does not exist.
            TableError, StorageError: It cannot be read.
        """
        manifest = await self._manifest(version)
        columns = tuple(_describe_column(each) for each in self._log.columns(manifest))
        totals = sum_fragments(map(manifest.parse, manifest.fragments))
        ledger = open_ledger(self._request.ledger, self._location.stores)
        origin = await TableOrigin.open(self._log, ledger)
        facts = {
            "num_fragments": len(manifest.fragments),
            "deleted_rows": totals.deleted_rows,
            "oldest_version": self._log.versions[0],
            "stable_row_ids": manifest.has_stable_row_ids,
            "reader_flags": manifest.flags_shown,
            "data_format": manifest.file_version,
            "writer": manifest.writer,
            "staged_version": self._log.staged,
            "transaction": manifest.identity,
        }
        return TableDescription(
            table_id=origin.table_id,
            version=Version(manifest.version),
            timestamp_ms=manifest.timestamp_us // 1000,
            num_files=totals.files,
            size_bytes=totals.size_bytes,
            num_rows=totals.rows,
            columns=columns,
            schema=dict(columns),
            properties=manifest.config,
            facts=facts,
            shown={
                "fragments": len(manifest.fragments),
                "deleted rows": totals.deleted_rows,
                "oldest version": self._log.versions[0],
                "flags": ", ".join(manifest.flags_shown) or "none",
                "data format": manifest.file_version,
                "written by": manifest.writer,
            },
        )

    async def files(
        self, version: Version | None = None
    ) -> AsyncIterator[Sequence[FileDescription]]:
        """Yield the data files of a version, some at a time.

        Raises:
            As `describe`.
        """
        manifest = await self._manifest(version)
        for first in range(0, len(manifest.fragments), _FILES_AT_ONCE):
            some = map(manifest.parse, manifest.fragments[first : first + _FILES_AT_ONCE])
            yield [
                FileDescription(
                    path=file.path,
                    size_bytes=file.size_bytes,
                    partition_values={},
                    modification_time_ms=None,
                    num_rows=fragment.physical_rows or None,
                    deletion_vector=None if fragment.deletions is None else fragment.deletions.path,
                    deleted_rows=fragment.deletions.count if fragment.deletions else 0,
                )
                for fragment in some
                for file in fragment.files
            ]

    async def history(self, limit: int) -> AsyncIterator[CommitDescription]:
        """Yield the newest `limit` commits, oldest first; cleaned-up ones are left out.

        Raises:
            NotATableError: There is no table.
            TableError, StorageError: A commit cannot be read.
        """
        await self._manifest(None)
        for version in list(self._log.versions)[-limit:]:
            manifest = await self._log.find(version)
            if manifest is not None:
                yield await describe_commit(self._log, manifest)


async def describe_commit(log: VersionLog, manifest: Manifest) -> CommitDescription:
    """Describe one commit by its fragments."""
    before = await log.find(manifest.version - 1) if manifest.version > 1 else None
    operation = await log.operation(manifest)
    is_known = before is not None or manifest.version == 1 or operation is Operation.CLONE
    found = difference(before, manifest, log.columns(before), log.columns(manifest))
    if not is_known:
        found = Difference()
    added, removed = (_count_files(each) for each in (found.added, found.removed))
    return CommitDescription(
        version=Version(manifest.version),
        timestamp_ms=manifest.timestamp_us // 1000,
        operation=operation.word or None,
        files_added=added[0],
        files_removed=removed[0],
        bytes_added=added[1],
        bytes_removed=removed[1],
        change_files=0,
        change_bytes=0,
        changes=_changes(found, operation) if is_known else "unknown",
    )


def _changes(found: Difference, operation: Operation) -> str:
    """Return how rows of a commit are found by default."""
    if is_only_rearranged(found, operation):
        return ChangeSourceKind.NONE.value
    if any(each.changed for each in found.retained):
        return ChangeSourceKind.ROWS.value
    if found.retained:
        return ChangeSourceKind.VECTORS.value
    return (ChangeSourceKind.FILES if found.removed or found.added else ChangeSourceKind.NONE).value


def _count_files(fragments: Sequence[Fragment]) -> tuple[int, int]:
    return sum(len(each.files) for each in fragments), sum(each.size_bytes for each in fragments)


def sum_fragments(fragments: Iterable[Fragment]) -> Totals:
    """Return the sums over fragments."""
    files = size = rows = deleted = 0
    is_size_known = are_rows_known = True
    for each in fragments:
        files += len(each.files)
        size += each.size_bytes
        is_size_known &= all(file.size_bytes > 0 for file in each.files)
        are_rows_known &= each.live_rows is not None
        rows += each.live_rows or 0
        deleted += 0 if each.deletions is None else each.deletions.count
    return Totals(files, size if is_size_known else None, rows if are_rows_known else None, deleted)


def _describe_column(column: Column) -> tuple[str, str]:
    return column.name, str(column.type) if isinstance(column.type, pa.DataType) else column.reason
