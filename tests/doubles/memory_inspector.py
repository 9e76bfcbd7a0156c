"""The inspector of the tests' own format: the one optional part that it has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from tailerd.changefeed.change_task import ChangeSourceKind, ChangeType
from tailerd.changefeed.offset import Version
from tailerd.changefeed.points import parse_point, to_ms
from tailerd.errors import MissingVersionError, UsageError
from tailerd.formats.inspection import CommitDescription, FileDescription, TableDescription
from tailerd.formats.part_request import PartRequest
from tests.doubles.memory_format import FILE, FOLDER, SCHEMA, MemoryTable

_GONE = (ChangeType.DELETE, ChangeType.UPDATE_PREIMAGE)


class MemoryInspection:
    """Looks at one table; every look reads the file again."""

    def __init__(self, request: PartRequest) -> None:
        self._location = request.location

    async def _table(self, version: Version | None) -> tuple[MemoryTable, Version]:
        body = await self._location.store.get(f"{self._location.root}/{FOLDER}/{FILE}")
        table = MemoryTable.load(body.decode())
        expected = Version(table.head) if version is None else version
        if expected not in table.commits:
            raise MissingVersionError(f"Version {expected} is not there.")
        return table, expected

    async def version_at(self, timestamp: str) -> Version:
        point = parse_point(timestamp)
        if isinstance(point, int):
            return Version(point)
        table, _ = await self._table(None)
        before = [version for version in table.commits if version * 1000 <= to_ms(point)]
        if not before:
            raise UsageError(f"There is no commit before {timestamp}.")
        return Version(max(before))

    async def describe(self, version: Version | None = None) -> TableDescription:
        table, expected = await self._table(version)
        columns = tuple((field.name, str(field.type)) for field in SCHEMA)
        return TableDescription(
            table_id=table.table_id,
            version=expected,
            timestamp_ms=expected * 1000,
            num_files=None,
            size_bytes=None,
            num_rows=len(table.rows(expected)),
            columns=columns,
            schema=dict(columns),
            facts={"first_version": table.first},
            shown={"first version": table.first},
        )

    async def files(
        self, version: Version | None = None
    ) -> AsyncIterator[Sequence[FileDescription]]:
        _, expected = await self._table(version)
        size = (
            await self._location.store.head(f"{self._location.root}/{FOLDER}/{FILE}")
        ).size_bytes
        rows = (await self.describe(expected)).num_rows
        yield [
            FileDescription(
                path=f"{FOLDER}/{FILE}",
                size_bytes=size,
                partition_values={},
                modification_time_ms=None,
                num_rows=rows,
            )
        ]

    async def history(self, limit: int) -> AsyncIterator[CommitDescription]:
        table, _ = await self._table(None)
        kept = [version for version in sorted(table.commits) if version >= table.first]
        for version in kept[-limit:]:
            kinds = [kind for kind, _, _ in table.commits[version]]
            yield CommitDescription(
                version=Version(version),
                timestamp_ms=version * 1000,
                operation=None,
                files_added=int(any(kind not in _GONE for kind in kinds)),
                files_removed=int(any(kind in _GONE for kind in kinds)),
                bytes_added=0,
                bytes_removed=0,
                change_files=0,
                change_bytes=0,
                changes=ChangeSourceKind.CDC.value,
            )
