"""Fragments: a range of rows in data files, and which of the rows are deleted. Pure.

Specification: "Fragments", "Deletion".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tailerd.errors import UnsupportedFeatureError
from tailerd.formats.lance.protocol.wire import content, fields, number, numbers, text

DATA_FOLDER = "data"
DELETIONS_FOLDER = "_deletions"
_OVERLAYS = 11
ColumnLocation = tuple[str, int | None, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LanceFile:
    """A data file of a fragment.

    Attributes:
        field_ids: Of its columns; negative for one that is no longer used.
        columns: Index of each column in the file; empty in files of version 1.
        size_bytes: 0 if not recorded.
        base: Number of its base path; None for the table's own folder.
        is_legacy: Whether it is of version 1.
    """

    path: str
    field_ids: tuple[int, ...]
    columns: tuple[int, ...]
    size_bytes: int
    base: int | None
    is_legacy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionFile:
    """The file with the deleted rows of a fragment.

    Attributes:
        is_bitmap: Whether it is a Roaring bitmap; else an Arrow file.
        count: Number of deleted rows; 0 if not recorded.
    """

    fragment: int
    is_bitmap: bool
    read_version: int
    id: int
    count: int
    base: int | None

    @property
    def path(self) -> str:
        """Its path, relative to the table's folder."""
        suffix = "bin" if self.is_bitmap else "arrow"
        return f"{DELETIONS_FOLDER}/{self.fragment}-{self.read_version}-{self.id}.{suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """A range of rows of a table.

    Attributes:
        physical_rows: Including deleted ones; 0 if not recorded.
    """

    id: int
    files: tuple[LanceFile, ...]
    deletions: DeletionFile | None
    physical_rows: int

    @property
    def live_rows(self) -> int | None:
        """Rows that are not deleted; None if not recorded."""
        deletions = self.deletions
        if not self.physical_rows or (deletions is not None and not deletions.count):
            return None
        return self.physical_rows - (0 if deletions is None else deletions.count)

    @property
    def size_bytes(self) -> int:
        """Total size of its data files, as far as recorded."""
        return sum(file.size_bytes for file in self.files)

    @property
    def is_legacy(self) -> bool:
        """Whether any data file is of version 1."""
        return any(file.is_legacy for file in self.files)

    def shares_files_with(self, other: Fragment) -> bool:
        """Return whether both have a common data file: ids may restart after an overwrite."""
        paths = {(file.base, file.path) for file in other.files}
        return any((file.base, file.path) in paths for file in self.files)

    def locate_columns(self, field_ids: Iterable[int]) -> frozenset[tuple[int, ColumnLocation]]:
        """Return the location of the values of fields: id, and file, base and column."""
        requested = frozenset(field_ids)
        return frozenset(
            (each, (file.path, file.base, file.columns[index] if file.columns else index))
            for file in self.files
            for index, each in enumerate(file.field_ids)
            if each in requested
        )


def parse_fragment(message: bytes) -> Fragment:
    """Parse a fragment.

    Raises:
        CorruptLogError: It is not a fragment.
        UnsupportedFeatureError: Values of its rows may be in other files, such as overlays.
    """
    reported: dict[int, int | bytes] = {}
    files: list[LanceFile] = []
    for field_number, value in fields(message):
        if field_number == 2:
            files.append(_data_file(content(value)))
        elif field_number >= _OVERLAYS:
            what = "overlay files" if field_number == _OVERLAYS else f"a part {field_number}"
            raise UnsupportedFeatureError(
                f"A fragment has {what}, which this release does not support: they may have"
                " values of its rows.",
                remedy="Use a newer release, or compact the table.",
            )
        else:
            reported[field_number] = value
    number_ = number(reported.get(1, 0))
    deletions = _deletion_file(number_, content(reported[3])) if 3 in reported else None
    return Fragment(
        id=number_,
        files=tuple(files),
        deletions=deletions,
        physical_rows=number(reported.get(4, 0)),
    )


def _data_file(message: bytes) -> LanceFile:
    path, size, base, versions = "", 0, None, [0, 0]
    ids: list[int] = []
    columns: list[int] = []
    for field_number, value in fields(message):
        match field_number:
            case 1:
                path = text(value)
            case 2:
                ids += numbers(value)
            case 3:
                columns += numbers(value)
            case 4 | 5:
                versions[field_number - 4] = number(value)
            case 6:
                size = number(value)
            case 7:
                base = number(value)
    return LanceFile(
        path=path,
        field_ids=tuple(ids),
        columns=tuple(columns) if len(columns) == len(ids) else (),
        size_bytes=size,
        base=base,
        # Version 2 files start at number 0.3.
        is_legacy=versions[0] == 0 and versions[1] < 3,
    )


def _deletion_file(fragment: int, message: bytes) -> DeletionFile:
    reported = {field_number: number(value) for field_number, value in fields(message)}
    return DeletionFile(
        fragment=fragment,
        is_bitmap=reported.get(1, 0) == 1,
        read_version=reported.get(2, 0),
        id=reported.get(3, 0),
        count=reported.get(4, 0),
        base=reported.get(7),
    )
