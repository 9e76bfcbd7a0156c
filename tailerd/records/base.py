"""The contract of a value format: change rows in, keys and values of records out, as columns."""

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
            None when no record has one.
        values: `binary` or `large_binary`; a null is a tombstone.
        rows: For each record the row of the batch it was made of (of an update the newer image);
            None when record i is row i. Headers, topics and partitions that come from columns
            are taken with it.
        headers: What each record says of itself beside its value.
    """

    keys: pa.Array | None
    values: pa.Array
    rows: Rows | None = None
    headers: tuple[Header, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    def of_rows(self, column: pa.Array) -> pa.Array:
        """Return the value that each record's row has in a column of the batch."""
        return column if self.rows is None else column.take(pa.array(self.rows))

    def take(self, records: npt.NDArray[np.integer]) -> Records:
        """Return the given records, by their numbers, in that order."""
        wanted = pa.array(records)
        return Records(
            keys=None if self.keys is None else pc.take(self.keys, wanted),
            values=pc.take(self.values, wanted),
            rows=np.asarray(records, np.int64) if self.rows is None else self.rows[records],
            headers=tuple(header.take(wanted) for header in self.headers),
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
        """Return the header of the given records, by their numbers, in that order."""
        if not isinstance(self.value, pa.Array):
            return self
        return Header(name=self.name, value=self.value.take(records))

    def slice(self, start: int, length: int) -> Header:
        """Return the header of `length` records from `start` on, without copying."""
        if not isinstance(self.value, pa.Array):
            return self
        return Header(name=self.name, value=self.value.slice(start, length))


@dataclass(frozen=True, slots=True, kw_only=True)
class EventOptions:
    """What CloudEvents are told.

    Attributes:
        data: Makes the values that events carry.
        mode: `binary` says all in headers, `structured` in the value.
        source: URI reference of the context in which changes happen.
    """

    data: RecordFormat
    mode: Literal["binary", "structured"] = "binary"
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatOptions:
    """What formats may be told; each takes what concerns it.

    Attributes:
        name: Logical name of the server (Debezium's `topic.prefix`).
        table: The table's name.
        db, schema: Names above the table; may be empty.
        table_id: `metaData.id`; empty leaves it out.
        key: Columns that identify a row, in the order in which they are written; empty gives
            records without keys.
        routed_by: Columns that choose where a record goes. An update that changes one is a removal
            where the row was and a creation where it is, not one record; where the table has no
            such column it says nothing.
        decimals: `string` keeps every digit in any reader; `number` is the bare number.
        tombstones: A record without value follows each delete, where there is a key.
        schemas: Each key and value carries its Kafka Connect schema.
        envelope: What a value with a registered schema is: the row with its change columns
            (`none`), or Debezium's envelope.
        collections: How Protobuf writes lists and maps: `repeated` has no nulls, `wrapped` does.
        events: What CloudEvents say of a table.
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
    """A schema of keys or values as a schema registry takes it.

    Attributes:
        part: Which of the two it describes.
        kind: Its language in the registry's word, such as `AVRO`.
        name: Full name of the record it describes.
        text: The schema.
    """

    part: RecordPart
    kind: str
    name: str
    text: str


class SchemaRegistry(Protocol):
    """Where the schemas of one table's records are registered. May do IO."""

    def earlier(self, part: RecordPart, name: str) -> str:
        """Return the text of the latest schema of keys or values; empty where there is none.

        Args:
            part: Which of the two.
            name: Full name of the record.

        Raises:
            TailerdError: The registry cannot be asked.
        """
        ...

    def ids(self, schemas: Sequence[RecordSchema]) -> Sequence[int]:
        """Return the ids of the schemas of one kind of records, registered if need be.

        Args:
            schemas: The value's, and the key's where records have keys.

        Raises:
            TailerdError: The registry cannot be asked, or refuses.
        """
        ...


class RecordFormat(Protocol):
    """Turns the rows of a batch into records. Its class is made of one `FormatOptions`.

    It keeps no state between batches, does no IO and asks no clock: the same arguments give the
    same bytes in any process.

    Order: applying the records one after the other by key leaves the rows that the commit leaves.
    With a key, records that only remove a row therefore come before those that write one, and an
    update's old image stays directly before its new one, unless they go to different places.

    Errors: `ConfigError` when a key column is not among the table's columns; `TableError` for
    values that the format cannot carry. Nothing is returned then.
    """

    def prepare(self, rows: pa.Schema, registry: SchemaRegistry) -> Self:
        """Return the format for rows with this schema: ids of its schemas are part of its values.

        Called by whoever may do IO, once for each schema that comes, before its first rows. A
        format without schemas in a registry returns itself and does not ask it.

        Args:
            rows: The table's columns, without change columns.
            registry: Asked for the ids of the schemas that values and keys of such rows have.

        Raises:
            ConfigError: A key column is not among the columns.
            TableError: A column has no type in this format.
            TailerdError: What `registry` raises.
        """
        ...

    def records(self, batch: ChangeBatch, *, now_us: int | None = None) -> Records:
        """Return the records of all rows; none for an empty batch.

        Args:
            batch: Rows of one commit.
            now_us: When the change is processed, microseconds since the epoch, for formats that
                say so; None takes the commit's timestamp.
        """
        ...


Change = tuple[int, Any, int]
"""+1 or -1, the row as it stands in the record, and the version of its commit."""


@runtime_checkable
class ReadsBack(Protocol):
    """A value format whose values are JSON and can be read again, for `verify`. Optional."""

    @staticmethod
    def changes_in(value: Mapping[str, Any]) -> Iterator[Change]:
        """Yield the changes that a decoded value tells.

        Raises:
            KeyError, TypeError: It is no value of this format.
        """
        ...
