"""The inspector of datasets: the current state, and earlier ones from a ledger."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from tailerd.changefeed.offset import Version
from tailerd.changefeed.points import parse_point, to_ms
from tailerd.errors import MissingVersionError, NotATableError, UsageError
from tailerd.formats.inspection import CommitDescription, FileDescription, TableDescription
from tailerd.formats.kartothek.dataset import DatasetAddress, find_dataset
from tailerd.formats.kartothek.file_rows import MAX_FOOTERS, count_rows
from tailerd.formats.kartothek.history import DatasetHistory
from tailerd.formats.kartothek.state import ObservedState
from tailerd.formats.kartothek.table_schema import path_pieces, printable, split_folder
from tailerd.formats.part_request import PartRequest
from tailerd.formats.plain_schema import decode_schema
from tailerd.state.ledger import open_ledger

_FILES_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class _Opened:
    address: DatasetAddress
    history: DatasetHistory


class KartothekInspection:
    """Inspects one table of a dataset; read-only, also for the ledger."""

    def __init__(self, request: PartRequest) -> None:
        self._request, self._location = request, request.location
        self._opened: _Opened | None = None

    async def _open(self) -> _Opened:
        if self._opened is None:
            address = await find_dataset(self._location.store, self._location.root)
            if address is None:
                raise NotATableError(f"There is no dataset at {self._location.url}.")
            requested = (
                None
                if self._request.ledger is None
                else replace(self._request.ledger, is_read_only=True)
            )
            ledger = open_ledger(requested, self._location.stores)
            history = await DatasetHistory.open(
                self._location.store, address, ledger, self._location.url
            )
            self._opened = _Opened(address, history)
        return self._opened

    async def _state(self, version: Version | None) -> ObservedState:
        history = (await self._open()).history
        state = history.newest if version is None else await history.state(version)
        if state is None:
            raise MissingVersionError(
                f"Version {version} of {self._location.url} is not known: a dataset has no"
                " history except in a ledger.",
                remedy="Name the ledger's folder with --ledger FOLDER; or leave the version out.",
            )
        return state

    async def version_at(self, timestamp: str) -> Version:
        """Return the newest observed version not later than a timestamp.

        Raises:
            UsageError: The text is not a timestamp, or before the first observed state.
        """
        point = parse_point(timestamp)
        if isinstance(point, int):
            return Version(point)
        commits = (await self._open()).history.newest.commits
        before = [each.number for each in commits if each.timestamp_ms <= to_ms(point)]
        if not before:
            raise UsageError(f"No state was observed at or before {timestamp}.")
        return Version(before[-1])

    async def describe(self, version: Version | None = None) -> TableDescription:
        """Describe a version, the newest by default.

        Raises:
            NotATableError, MissingVersionError: It does not exist.
            TableError, StorageError: It cannot be read.
        """
        state = await self._state(version)
        opened = await self._open()
        sizes = await opened.history.sizes.fetch_sizes(state.keys)
        is_whole = len(sizes) == len(state.keys)
        columns = tuple((field.name, str(field.type)) for field in decode_schema(state.schema))
        rows = await self._rows(state.keys) if is_whole else None
        facts = {
            "dataset_uuid": state.uuid,
            "table": state.table,
            "creation_time": state.creation_time,
            "indices": state.indices,
            "metadata": msgspec.json.decode(state.user_metadata),
            "first_version": opened.history.first_number,
        }
        return TableDescription(
            table_id=state.table_id,
            version=Version(state.number),
            timestamp_ms=state.timestamp_ms,
            num_files=len(state.keys),
            size_bytes=sum(sizes.values()) if is_whole else None,
            num_rows=None if rows is None else sum(rows),
            columns=columns,
            schema=dict(columns),
            partition_columns=_partition_columns(state),
            facts=facts,
            shown={
                "dataset": state.uuid,
                "table of it": state.table,
                "created or overwritten": state.creation_time,
                "indices": ", ".join(state.indices) or "none",
                "oldest known version": opened.history.first_number,
            },
        )

    async def files(
        self, version: Version | None = None
    ) -> AsyncIterator[Sequence[FileDescription]]:
        """Yield the data files of a version, some at a time.

        Raises:
            As `describe`.
        """
        state = await self._state(version)
        opened = await self._open()
        is_counted = len(state.keys) <= MAX_FOOTERS
        for first in range(0, len(state.keys), _FILES_AT_ONCE):
            keys = state.keys[first : first + _FILES_AT_ONCE]
            sizes = await opened.history.sizes.fetch_sizes(keys)
            there = [key for key in keys if key in sizes]
            rows = await self._rows(there) if is_counted else None
            yield [
                FileDescription(
                    path=key,
                    size_bytes=sizes[key],
                    partition_values={
                        printable(name): printable(value)
                        for name, value in path_pieces(split_folder(key))
                    },
                    modification_time_ms=None,
                    num_rows=None if rows is None else rows[number],
                )
                for number, key in enumerate(there)
            ]

    async def _rows(self, keys: Sequence[str]) -> list[int] | None:
        assert self._opened is not None
        return await count_rows(self._location.store, self._opened.address, keys)

    async def history(self, limit: int) -> AsyncIterator[CommitDescription]:
        """Yield the newest `limit` observed commits, oldest first.

        Raises:
            NotATableError: There is no dataset.
            TableError, StorageError: It cannot be read.
        """
        for commit in (await self._open()).history.newest.commits[-limit:]:
            yield CommitDescription(
                version=Version(commit.number),
                timestamp_ms=commit.timestamp_ms,
                operation=commit.operation,
                files_added=commit.files_added,
                files_removed=commit.files_removed,
                bytes_added=_positive_size(commit.bytes_added),
                bytes_removed=_positive_size(commit.bytes_removed),
                change_files=0,
                change_bytes=0,
                changes=commit.changes,
            )


def _positive_size(size_bytes: int) -> int | None:
    return None if size_bytes < 0 else size_bytes


def _partition_columns(state: ObservedState) -> list[str]:
    """Return the partition columns in the path of the first file; all files have the same."""
    pieces = path_pieces(split_folder(state.keys[0])) if state.keys else ()
    return [printable(name) for name, _ in pieces]
