"""Locates a dataset, and reads its current metadata file."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from tailerd.changefeed.limits import DEFAULT_MEMORY_BYTES
from tailerd.errors import (
    FileMissingError,
    NotATableError,
    TableError,
    UnreadableMetadataError,
    UsageError,
)
from tailerd.formats.kartothek.metadata import (
    MARK,
    SUFFIXES,
    DatasetMetadata,
    check_size,
    metadata_name,
    parse_metadata,
)
from tailerd.formats.kartothek.spool import FileSpool
from tailerd.formats.kartothek.table_schema import COMMON_METADATA, read_schema
from tailerd.formats.plain_schema import encode_schema
from tailerd.storage.base import FileMeta, ObjectStore

_DEFAULT_TABLE = "table"
_INDICES = "indices"
_WAITS_SECONDS = (0.02, 0.05, 0.1, 0.3, 0.6)
"""Waits between retries: some stores show a metadata file while it is written, or briefly none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetAddress:
    """A dataset in a store.

    Attributes:
        folder: The folder of its metadata file, as named by the store.
        uuid: Its name.
        table: The named table; None for the only table of the dataset.
    """

    folder: str
    uuid: str
    table: str | None = None

    def path(self, key: str) -> str:
        """Return the path of a key's file; keys are literal names."""
        return f"{self.folder}/{key}"

    def metadata_path(self, suffix: str) -> str:
        """Return the path of its metadata file."""
        return self.path(metadata_name(self.uuid, suffix))

    def schema_path(self, table: str) -> str:
        """Return the path of a table's schema."""
        return self.path(f"{self.uuid}/{table}/{COMMON_METADATA}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataFile:
    """A metadata file: its suffix, and the result of `head`."""

    suffix: str
    meta: FileMeta


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The content of a metadata file, and the schema of one table.

    Attributes:
        digest: Of the metadata file's content.
        schema: The table's columns, as encoded by `encode_schema`.
    """

    file: MetadataFile
    metadata: DatasetMetadata
    digest: str
    table: str
    schema: bytes


def addresses(root: str) -> list[DatasetAddress]:
    """Return the possible datasets of a location: `STORE/UUID`, or `STORE/UUID/TABLE`.

    None for a bucket: it has no parent folder that could be the store.
    """
    folder, _, name = root.rstrip("/").rpartition("/")
    outer, _, inner = folder.rpartition("/")
    found = [DatasetAddress(folder=folder, uuid=name)]
    if inner:
        found.append(DatasetAddress(folder=outer, uuid=inner, table=name))
    return [each for each in found if each.folder or root.startswith("/")]


async def find_dataset(store: ObjectStore, root: str) -> DatasetAddress | None:
    """Return the dataset at a location; None if there is none.

    Raises:
        StorageError: The location cannot be read.
    """
    for address in addresses(root):
        if address.table is not None and not await _has(store, address.schema_path(address.table)):
            continue
        if await find_metadata(store, address) is not None:
            return address
    return None


async def _has(store: ObjectStore, path: str) -> bool:
    try:
        await store.head(path)
    except FileMissingError:
        return False
    return True


async def find_metadata(store: ObjectStore, address: DatasetAddress) -> MetadataFile | None:
    """Return the effective metadata file; None if there is none.

    Raises:
        StorageError: The store cannot be read.
    """
    for suffix in SUFFIXES:
        try:
            return MetadataFile(suffix=suffix, meta=await store.head(address.metadata_path(suffix)))
        except FileMissingError:
            continue
    return None


async def read_dataset(
    store: ObjectStore,
    address: DatasetAddress,
    *,
    table_before: str | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> Reading:
    """Read the effective metadata file, and the schema of the table.

    An incomplete or missing file is read again for about a second.

    Args:
        table_before: The previous table; for a dataset that no longer has files.
        memory_bytes: The configured `memory`.

    Raises:
        NotATableError: There is no dataset.
        UsageError: It has several tables and none is named, or lacks the named one.
        TableError: It is not supported.
        StorageError: It cannot be read.
    """
    file, content, metadata = await _whole(store, address, memory_bytes)
    table = await _table(store, address, metadata, table_before)
    path = address.schema_path(table)
    try:
        if store.is_local_folder:
            check_size((await store.head(path)).size_bytes, memory_bytes, path)
        schema = read_schema(await store.get(path), path, memory_bytes)
    except FileMissingError as error:
        raise TableError(
            f"The schema {path} of table {table} does not exist.",
            remedy="Writers put it before the metadata: restore it, or let its writer store the"
            " dataset again.",
        ) from error
    return Reading(
        file=file,
        metadata=metadata,
        digest=xxhash.xxh3_128_hexdigest(content),
        table=table,
        schema=encode_schema(schema),
    )


async def _whole(
    store: ObjectStore, address: DatasetAddress, memory_bytes: int
) -> tuple[MetadataFile, bytes, DatasetMetadata]:
    waits = iter(_WAITS_SECONDS)
    while True:
        try:
            file, content = await _fetch(store, address, memory_bytes)
            parsed = parse_metadata(content, address.uuid, file.suffix, memory_bytes)
            return file, content, parsed
        except (UnreadableMetadataError, NotATableError):
            wait = next(waits, None)
            if wait is None:
                raise
        await asyncio.sleep(wait)


async def _fetch(
    store: ObjectStore, address: DatasetAddress, memory_bytes: int
) -> tuple[MetadataFile, bytes]:
    for suffix in SUFFIXES:
        path = address.metadata_path(suffix)
        try:
            if store.is_local_folder:
                # A sparse file may have any size.
                check_size((await store.head(path)).size_bytes, memory_bytes, path)
            meta, content = await store.fetch(path)
        except FileMissingError:
            continue
        return MetadataFile(suffix=suffix, meta=meta), content
    raise NotATableError(
        f"There is no dataset {address.uuid} in {store.format_url(address.folder)}: no file"
        f" {address.uuid}{MARK}{{{','.join(SUFFIXES)}}}.",
        remedy="Name it STORE/UUID, or STORE/UUID/TABLE where it has several tables.",
    )


async def _table(
    store: ObjectStore, address: DatasetAddress, metadata: DatasetMetadata, before: str | None
) -> str:
    tables = sorted(metadata.files)
    if address.table is not None:
        if tables and address.table not in tables:
            raise UsageError(
                f"The dataset {address.uuid} has no table {address.table!r}; it has"
                f" {', '.join(tables)}.",
                remedy="Check the spelling; names are case-sensitive.",
            )
        return address.table
    if len(tables) > 1:
        location = store.format_url(address.path(address.uuid))
        raise UsageError(
            f"The dataset {address.uuid} has {len(tables)} tables: {', '.join(tables)}.",
            remedy=f"Name one: {' or '.join(f'{location}/{each}' for each in tables)}.",
        )
    return tables[0] if tables else before or _DEFAULT_TABLE


class FileSizes:
    """Sizes of data files, requested once each; files are never changed in place."""

    _AT_ONCE = 32
    _MAX_KNOWN = 200_000

    def __init__(
        self, store: ObjectStore, address: DatasetAddress, spool: FileSpool | None = None
    ) -> None:
        self._store = store
        self._address = address
        self._spool = spool
        self._known: dict[str, int] = {}

    async def fetch_sizes(self, keys: Sequence[str]) -> dict[str, int]:
        """Return the sizes of files in bytes; missing ones are left out.

        Raises:
            StorageError: A size cannot be requested.
        """
        if len(self._known) > self._MAX_KNOWN:
            self._known.clear()
        # Copied: concurrent calls may clear the cache.
        found = {key: self._known[key] for key in keys if key in self._known}
        unknown = [key for key in keys if key not in found]
        at_once = self._AT_ONCE if self._store.is_remote else 1
        for first in range(0, len(unknown), at_once):
            some = unknown[first : first + at_once]
            sizes = await asyncio.gather(*map(self._ask, some))
            found.update((k, size) for k, size in zip(some, sizes, strict=True) if size is not None)
        self._known.update(found)
        return found

    async def _ask(self, key: str) -> int | None:
        try:
            return (await self._store.head(self._address.path(key))).size_bytes
        except FileMissingError:
            return None if self._spool is None else self._spool.size_bytes(key)
