"""The contract of a value format: encodes change rows as keys and values of records, in columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.records.json import DecimalStyle

Rows = npt.NDArray[np.int64]
Envelope = Literal["none", "debezium"]
RecordPart = Literal["key", "value"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Records in the order in which they must be read.

    Attributes:
        keys: `binary` or `large_binary`, as long as `values`; a null is a record without a key.
            None if no record has a key.
        values: `binary` or `large_binary`; a null is a tombstone.
        rows: For each record, its row in the batch (for an update, the newer image); None if record
            i is row i. Headers, topics and partitions from columns are looked up with it.
        headers: The records' headers from the value format.
    """

    keys: pa.Array | None
    values: pa.Array
    rows: Rows | None = None
    headers: tuple[Header, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    def from_rows(self, column: pa.Array) -> pa.Array:
        """Return the value of a batch column for each record."""
        return column if self.rows is None else column.take(pa.array(self.rows))

    def take(self, records: npt.NDArray[np.integer]) -> Records:
        """Return the records at the given indices, in that order."""
        requested = pa.array(records)
        return Records(
            keys=None if self.keys is None else pc.take(self.keys, requested),
            values=pc.take(self.values, requested),
            rows=np.asarray(records, np.int64) if self.rows is None else self.rows[records],
            headers=tuple(header.take(requested) for header in self.headers),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A header of every record.

    Attributes:
        name: Its key.
        value: The same for all records, or one per record (`binary` or `string`).
    """

    name: str
    value: bytes | pa.Array | None

    def take(self, records: pa.Array) -> Header:
        """Return the header for the records at the given indices, in that order."""
        if not isinstance(self.value, pa.Array):
            return self
        return Header(name=self.name, value=self.value.take(records))

    def slice(self, start: int, length: int) -> Header:
        """Return the header for `length` records from `start` on, without copying."""
        if not isinstance(self.value, pa.Array):
            return self
        return Header(name=self.name, value=self.value.slice(start, length))


@dataclass(frozen=True, slots=True, kw_only=True)
class EventOptions:
    """Options of CloudEvents.

    Attributes:
        data: The format of the events' data.
        mode: `binary` puts event attributes in headers, `structured` in the value.
        source: URI reference of the context in which changes happen.
    """

    data: RecordFormat
    mode: Literal["binary", "structured"] = "binary"
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatOptions:
    """Options of all formats; each uses those that apply to it.

    Attributes:
        name: Logical name of the server (Debezium's `topic.prefix`).
        table: The table's name.
        db, schema: Database and schema of the table; may be empty.
        table_id: `metaData.id`; omitted if empty.
        key: Columns that identify a row, in the order in which they are written; empty for records
            without keys.
        routed_by: Columns that choose a record's topic or partition. An update that changes one is
            a delete in the old index and a create in the new one, not one record. Columns that the
            table does not have are ignored.
        decimals: `string` keeps every digit in any reader; `number` is the bare number.
        tombstones: A record without value follows each delete, if there is a key.
        schemas: Each key and value contains its Kafka Connect schema.
        envelope: Content of a value with a registered schema: the row with its change columns
            (`none`), or Debezium's envelope.
        collections: How Protobuf encodes lists and maps: `repeated` has no nulls, `wrapped` does.
        events: Options of CloudEvents.
        has_ids: Each record has its id in a header.
    """

    name: str
    table: str
    db: str = ""
    schema: str = ""
    table_id: str = ""
    key: Sequence[str] = ()
    routed_by: Sequence[str] = ()
    decimals: DecimalStyle = "string"
    tombstones: bool = True
    schemas: bool = False
    envelope: Envelope = "none"
    collections: Literal["repeated", "wrapped"] = "repeated"
    events: EventOptions | None = None
    has_ids: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSchema:
    """A schema of keys or values, as registered in a schema registry.

    Attributes:
        part: Whether it describes keys or values.
        kind: The registry's name of its type, such as `AVRO`.
        name: Full name of the record it describes.
        text: The schema.
    """

    part: RecordPart
    kind: str
    name: str
    text: str


class SchemaRegistry(Protocol):
    """Registers the schemas of one table's records. May do I/O."""

    def earlier(self, part: RecordPart, name: str) -> str:
        """Return the text of the latest schema of keys or values; empty if there is none.

        Args:
            part: Keys or values.
            name: Full name of the record.

        Raises:
            TailerdError: The registry cannot be reached.
        """
        ...

    def ids(self, schemas: Sequence[RecordSchema]) -> Sequence[int]:
        """Return the ids of the schemas of one kind of records; registers missing ones.

        Args:
            schemas: The value's, and the key's if records have keys.

        Raises:
            TailerdError: The registry cannot be reached, or refuses.
        """
        ...


class RecordFormat(Protocol):
    """Encodes the rows of a batch as records. Its class is constructed with one `FormatOptions`.

    It keeps no state between batches, does no I/O and reads no clock: the same arguments produce
    the same bytes in any process.

    Order: applying the records in order by key results in the rows after the commit. With a key,
    pure deletes therefore come before records that write a row, and an update's old image is
    directly before its new one, unless they have different topics or partitions.

    Errors: `ConfigError` if a key column is not among the table's columns; `TableError` for values
    that the format cannot represent. Nothing is returned then.
    """

    def prepare(self, rows: pa.Schema, registry: SchemaRegistry) -> Self:
        """Return the format for rows with this schema, with the registry's ids of its schemas.

        Called where I/O is allowed, once for each schema, before its first rows. A format without
        registered schemas returns itself and does not query the registry.

        Args:
            rows: The table's columns, without change columns.
            registry: Returns the ids of the schemas of values and keys of such rows.

        Raises:
            ConfigError: A key column is not among the columns.
            TableError: A column has no type in this format.
            TailerdError: Any error of `registry`.
        """
        ...

    def records(self, batch: ChangeBatch, *, now_us: int | None = None) -> Records:
        """Return the records of all rows; none for an empty batch.

        Args:
            batch: Rows of one commit.
            now_us: Processing time in microseconds since the epoch, for formats that include it;
                None uses the commit's timestamp.
        """
        ...


Change = tuple[int, Any, int]
"""+1 or -1, the row as in the record, and the version of its commit."""


@runtime_checkable
class ReadsBack(Protocol):
    """A value format whose values are JSON and can be read back, for `verify`. Optional."""

    @staticmethod
    def changes_in(value: Mapping[str, Any]) -> Iterator[Change]:
        """Yield the changes in a decoded value.

        Raises:
            KeyError, TypeError: It is not a value of this format.
        """
        ...
