"""Parses manifest lists and manifests: Avro files that list a snapshot's files.

Read with fastavro: pyiceberg 0.12 knows neither partitions by nanoseconds nor the fields of format
version 3. Only the fields that are needed are decoded, without statistics of columns.

Specification: "Manifest Lists", "Manifests", "Sequence Number Inheritance", "Row Lineage"
"""

from __future__ import annotations

import enum
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tailerd.errors import CorruptLogError, MissingExtraError, UnsupportedFeatureError

POSITION_PATH = 2147483546
"""Field id of the column of data files in a position delete file."""
POSITION = 2147483545
"""Field id of the column of row positions in it."""

_LIST_FIELDS = {
    500: "manifest_path",
    501: "manifest_length",
    502: "partition_spec_id",
    517: "content",
    515: "sequence_number",
    516: "min_sequence_number",
    503: "added_snapshot_id",
    504: "added_files_count",
    505: "existing_files_count",
    506: "deleted_files_count",
    519: "key_metadata",
    520: "first_row_id",
}
_ENTRY_FIELDS = {
    0: "status",
    1: "snapshot_id",
    3: "sequence_number",
    2: "data_file",
}
_FILE_FIELDS = {
    134: "content",
    100: "file_path",
    101: "file_format",
    102: "partition",
    103: "record_count",
    104: "file_size_in_bytes",
    131: "key_metadata",
    135: "equality_ids",
    142: "first_row_id",
    143: "referenced_data_file",
    144: "content_offset",
    145: "content_size_in_bytes",
}
_BOUNDS_FIELDS = {125: "lower_bounds", 128: "upper_bounds"}
"""Of delete files only: equal bounds show that all positions are of one data file."""
_REQUIRED = frozenset({500, 502, 503, 0, 2, 100, 101, 102, 103})
_ALTERNATIVE_NAMES = {
    504: "added_data_files_count",
    505: "existing_data_files_count",
    506: "deleted_data_files_count",
}
"""Names that old writers gave, for files without field ids."""


class Content(enum.IntEnum):
    """The kinds of files of a table."""

    DATA = 0
    POSITION_DELETES = 1
    EQUALITY_DELETES = 2


class Status(enum.IntEnum):
    """How a manifest's snapshot treats a file."""

    EXISTING = 0
    ADDED = 1
    DELETED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One entry of a manifest list.

    Attributes:
        is_deletes: Whether its files are delete files.
        has_changes: Whether its snapshot added or removed files that it lists, as far as known.
        has_files: Whether it lists files that the snapshot has, as far as known.
    """

    path: str
    spec_id: int
    is_deletes: bool
    sequence: int
    added_snapshot_id: int
    has_changes: bool
    has_files: bool
    first_row_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentFile:
    """One data or delete file of a snapshot.

    Attributes:
        path: As in the metadata; position deletes name data files by it.
        file_format: In lower case.
        partition: Its partition values, in the order of the spec.
        sequence: Its data sequence number.
        rows: Number of rows; of a deletion vector, of deleted rows.
        first_row_id: Id of its first row; None before format version 3.
        equality_ids: Ids of the columns of equality deletes.
        data_file: The only data file that the deletes are of, if known.
        offset, length: Where a deletion vector is in its file.
    """

    content: Content
    path: str
    file_format: str
    spec_id: int
    partition: tuple[Any, ...]
    sequence: int
    rows: int
    size_bytes: int
    first_row_id: int | None = None
    equality_ids: tuple[int, ...] = ()
    data_file: str | None = None
    offset: int | None = None
    length: int | None = None

    @property
    def key(self) -> tuple[str, int | None, int]:
        """Distinguishes it from the snapshot's other files, and from itself added again."""
        return self.path, self.offset, self.sequence

    @property
    def partition_key(self) -> tuple[object, ...]:
        """Its partition and the spec; NaN equals NaN, and -0.0 equals 0.0."""
        return self.spec_id, *(_hashable(value) for value in self.partition)


def _hashable(value: Any) -> object:
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0
    return bytes(value) if isinstance(value, bytearray) else value


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in a manifest."""

    status: Status
    snapshot_id: int
    file: ContentFile


def parse_manifest_list(content: bytes, path: str) -> list[Manifest]:
    """Return the manifests of a snapshot.

    Raises:
        CorruptLogError: It is damaged.
        UnsupportedFeatureError: A manifest is encrypted.
        MissingExtraError: fastavro is not installed.
    """
    return [_manifest(record, path) for record in _records(content, path, _LIST_FIELDS, {})]


def _manifest(record: Mapping[int, Any], path: str) -> Manifest:
    if record.get(519):
        raise _encrypted(record[500], path)
    counts = [record.get(number) for number in (504, 505, 506)]
    added, existing, removed = (1 if count is None else count for count in counts)
    return Manifest(
        path=record[500],
        spec_id=record[502],
        is_deletes=record.get(517) == 1,
        sequence=record.get(515) or 0,
        added_snapshot_id=record[503],
        has_changes=bool(added or removed),
        has_files=bool(added or existing),
        first_row_id=record.get(520),
    )


def parse_manifest(content: bytes, manifest: Manifest) -> list[Entry]:
    """Return the files of a manifest, with the values that they inherit from it.

    Raises:
        CorruptLogError: It is damaged.
        UnsupportedFeatureError: A file is encrypted.
        MissingExtraError: fastavro is not installed.
    """
    fields = _FILE_FIELDS | (_BOUNDS_FIELDS if manifest.is_deletes else {})
    records = _records(content, manifest.path, _ENTRY_FIELDS, fields)
    try:
        entries = [_entry(record, manifest) for record in records]
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(manifest.path, repr(error)) from error
    return list(_with_row_ids(entries, manifest.first_row_id))


def _entry(record: Mapping[int, Any], manifest: Manifest) -> Entry:
    status, file = Status(record[0]), record[2]
    if file.get(131):
        raise _encrypted(file[100], manifest.path)
    sequence = record.get(3)
    if sequence is None:
        # Only what the manifest's own snapshot added has none; before version 2 nothing has one.
        sequence = manifest.sequence
    offset = file.get(144)
    return Entry(
        status=status,
        snapshot_id=manifest.added_snapshot_id if record.get(1) is None else record[1],
        file=ContentFile(
            content=Content(file.get(134) or 0),
            path=file[100],
            file_format=str(file[101]).lower(),
            spec_id=manifest.spec_id,
            partition=tuple(file[102].values()),
            sequence=sequence,
            rows=file[103],
            size_bytes=file.get(145) if offset is not None else file.get(104) or 0,
            first_row_id=file.get(142),
            equality_ids=tuple(file.get(135) or ()),
            data_file=file.get(143) or _only_data_file(file),
            offset=offset,
            length=file.get(145),
        ),
    )


def _only_data_file(file: Mapping[int, Any]) -> str | None:
    """Return the data file of position deletes whose bounds of the path are the same."""
    if file.get(134) != Content.POSITION_DELETES:
        return None
    lower, upper = (_find_bound(file.get(number), POSITION_PATH) for number in (125, 128))
    return None if lower is None or lower != upper else lower.decode(errors="replace")


def _find_bound(bounds: object, number: int) -> bytes | None:
    # A map with keys that are no texts is a list of pairs.
    for each in bounds if isinstance(bounds, list) else ():
        if each.get("key") == number:
            return bytes(each["value"])
    return None


def _with_row_ids(entries: Sequence[Entry], first: int | None) -> Iterator[Entry]:
    """Yield entries with the row ids that data files inherit: counted through the manifest."""
    following = first
    for entry in entries:
        file = entry.file
        is_new = file.content is Content.DATA and entry.status is not Status.DELETED
        if following is None or not is_new or file.first_row_id is not None:
            yield entry
            continue
        yield replace(entry, file=replace(file, first_row_id=following))
        following += file.rows


def _records(
    content: bytes, path: str, fields: Mapping[int, str], file_fields: Mapping[int, str]
) -> Iterator[dict[int, Any]]:
    """Yield the records of an Avro file, by field id, with the given fields only."""
    fastavro = load_fastavro()
    try:
        written = fastavro.reader(io.BytesIO(content)).writer_schema
        schema, names = _select(written, fields)
        nested: dict[str, int] = {}
        if file_fields:
            position = next(i for i, each in enumerate(schema["fields"]) if _id(each) == 2)
            kind, nested = _select(schema["fields"][position]["type"], file_fields)
            schema["fields"][position] = {**schema["fields"][position], "type": kind}
        for record in fastavro.reader(io.BytesIO(content), reader_schema=schema):
            found = {number: record[name] for name, number in names.items()}
            if file_fields:
                file = found[2]
                found[2] = {number: file[name] for name, number in nested.items()}
            yield found
    except UnsupportedFeatureError:
        raise
    except Exception as error:
        # fastavro raises whatever its decoding runs into.
        raise _damaged(path, f"{type(error).__name__}: {error}") from error


def _select(
    record: Mapping[str, Any], fields: Mapping[int, str]
) -> tuple[dict[str, Any], dict[str, int]]:
    """Return a record's schema with some fields only, and their ids by name.

    Raises:
        KeyError: It lacks a required one.
    """
    by_name = {name: number for number, name in {**fields, **_ALTERNATIVE_NAMES}.items()}
    chosen: dict[int, Mapping[str, Any]] = {}
    for each in record["fields"]:
        given = _id(each)
        number = by_name.get(each["name"], -1) if given is None else given
        if number in fields:
            chosen[number] = each
    if lacking := [fields[number] for number in fields if number in _REQUIRED - chosen.keys()]:
        raise KeyError(f"no field {lacking[0]}")
    return {**record, "fields": list(chosen.values())}, {
        each["name"]: number for number, each in chosen.items()
    }


def _id(field: Mapping[str, Any]) -> int | None:
    found = field.get("field-id")
    return None if found is None else int(found)


def load_fastavro() -> Any:
    """Import fastavro.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import fastavro
    except ImportError as error:
        raise MissingExtraError(
            "The manifests of Iceberg tables are Avro files, and fastavro is not installed.",
            remedy="Install it: pip install 'tailerd[iceberg]'.",
        ) from error
    return fastavro


def _damaged(path: str, why: str) -> CorruptLogError:
    return CorruptLogError(
        f"The manifest {path} cannot be read: {why}.",
        remedy="It is damaged or incomplete: restore it from a backup, or roll the table back to a"
        " snapshot without it.",
    )


def _encrypted(file: str, path: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"The file {file}, which {path} lists, is encrypted (it has key metadata), and encrypted"
        " files are not read in this release.",
        remedy="Rewrite the table without encryption.",
    )
