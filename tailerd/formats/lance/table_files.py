"""Resolves the files of a table: in its folder, or below one of its base paths."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyroaring

from tailerd.errors import (
    FileMissingError,
    InvalidDeletionVectorError,
    PathOutsideTableError,
)
from tailerd.formats.lance.protocol.fragments import (
    DATA_FOLDER,
    DeletionFile,
    Fragment,
    LanceFile,
)
from tailerd.formats.lance.protocol.manifest import Manifest
from tailerd.formats.lance.version_log import missing_version
from tailerd.rows.hash_kernels import Rows
from tailerd.storage.stores import normal_url
from tailerd.storage.table_location import TableLocation

_AT_ONCE = 32


class TableFiles:
    """Resolves and reads the files that manifests of one table reference.

    Args:
        location: The table.
    """

    def __init__(self, location: TableLocation) -> None:
        self._name = location.name
        self._url = location.url.rstrip("/")
        self._stores = location.stores
        self._allowed = location.allowed

    def data_url(self, manifest: Manifest, file: LanceFile) -> str:
        """Return where a data file is.

        Raises:
            PathOutsideTableError: It is outside the table and every allowed location.
        """
        if file.base is None:
            return f"{self._url}/{DATA_FOLDER}/{file.path}"
        folder, is_table = self._base(manifest, file.base)
        return f"{folder}/{DATA_FOLDER}/{file.path}" if is_table else f"{folder}/{file.path}"

    def _base(self, manifest: Manifest, number: int) -> tuple[str, bool]:
        base = next((each for each in manifest.base_paths if each.number == number), None)
        if base is None:
            raise PathOutsideTableError(
                f"Version {manifest.version} of {self._name} has files at a base path {number}"
                " that it does not name.",
                remedy="Its writer is broken: restore the manifest.",
            )
        folder = normal_url(base.path).rstrip("/")
        locations = (self._url, *self._allowed)
        if not any(f"{folder}/".startswith(f"{location}/") for location in locations):
            raise PathOutsideTableError(
                f"Version {manifest.version} of {self._name} has files in {folder}, outside of the"
                " table: it is a clone, or has several base paths.",
                remedy="If this is intended, allow the path with --allow-path (or allowed_paths in"
                " the configuration).",
            )
        return folder, base.is_table

    def check(self, manifest: Manifest, fragments: Iterable[Fragment]) -> None:
        """Make sure that all files of fragments are in allowed locations.

        Raises:
            PathOutsideTableError: One is not.
        """
        for fragment in fragments:
            for base in {file.base for file in fragment.files} - {None}:
                self._base(manifest, base or 0)
            if fragment.deletions is not None and fragment.deletions.base is not None:
                self._base(manifest, fragment.deletions.base)

    async def deleted_rows(
        self, requested: Sequence[tuple[Manifest, DeletionFile | None]]
    ) -> list[Rows]:
        """Return the offsets of deleted rows, ascending, for each deletion file; none for None.

        Raises:
            MissingVersionError: A file is missing.
            InvalidDeletionVectorError: One is damaged.
            PathOutsideTableError: One is outside the table and every allowed location.
        """
        found: list[Rows] = []
        for first in range(0, len(requested), _AT_ONCE):
            some = requested[first : first + _AT_ONCE]
            found += await asyncio.gather(*(self._read_deletions(*each) for each in some))
        return found

    async def _read_deletions(self, manifest: Manifest, file: DeletionFile | None) -> Rows:
        if file is None:
            return np.empty(0, np.int64)
        folder = self._url if file.base is None else self._base(manifest, file.base)[0]
        store, root = self._stores.locate(folder)
        path = f"{root}/{file.path}"
        try:
            content = await store.get(path)
        except FileMissingError as error:
            why = f"and with it the deletion file {file.path}"
            raise missing_version(self._name, manifest.version, why) from error
        return decode_deletions(content, file, store.format_url(path))


def decode_deletions(content: bytes, file: DeletionFile, url: str) -> Rows:
    """Return the offsets in a deletion file, ascending.

    Raises:
        InvalidDeletionVectorError: It is damaged, or their number differs from the manifest's.
    """
    try:
        if file.is_bitmap:
            found = np.array(pyroaring.BitMap.deserialize(content), np.int64)
        else:
            column = pa.ipc.open_file(pa.py_buffer(content)).read_all().column(0)
            found = np.unique(column.to_numpy().astype(np.int64))
    except (ValueError, pa.ArrowException, IndexError) as error:
        raise InvalidDeletionVectorError(
            f"The deletion file {url} cannot be read: {error}.", remedy="Restore it from a backup."
        ) from error
    if file.count and file.count != len(found):
        raise InvalidDeletionVectorError(
            f"The deletion file {url} holds {len(found)} rows, and its manifest says {file.count}.",
            remedy="Restore it from a backup.",
        )
    return found
