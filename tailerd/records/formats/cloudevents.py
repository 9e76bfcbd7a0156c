"""Encode the values of any format as CloudEvents 1.0: in headers, or in a JSON envelope.

Protocol: CloudEvents 1.0.2; Kafka Protocol Binding; JSON Event Format
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, Self, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.errors import BugError
from tailerd.records.base import FormatOptions, Header, RecordFormat, Records, SchemaRegistry
from tailerd.records.binary.byte_pieces import binary_array, joined_rows
from tailerd.records.binary.row_columns import BLOCK_ROWS
from tailerd.records.byte_rows import ConstantBytes, Piece, byte_column
from tailerd.records.event_ids import record_ids
from tailerd.records.json_leaves import base64_texts, escaped_texts
from tailerd.records.json_text import quote_text, timestamp_text

Mode = Literal["binary", "structured"]

EVENT_TYPE = "io.tailerd.datachangeevent"
STRUCTURED_CONTENT = "application/cloudevents+json; charset=UTF-8"
_VERSION_ATTRIBUTE = "iotailerdversion"
_CHANGE_ATTRIBUTE = "iotailerdchange"
_BLOCK_BYTES = 256 * 1024 * 1024
_JSON_CONTENT = "application/json"
_UNKNOWN_CONTENT = "application/octet-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventContext:
    """The attributes that all events of a table have in common.

    Attributes:
        source: URI reference of the events' source; unique in combination with an event's id.
        subject: The table's name.
        content_type: Media type of the values, such as `application/json`.
        is_json: Whether the values are JSON texts without a prefix, which a JSON envelope can
            contain unchanged; other values are base64-encoded.
        schema_uri: URI of the values' schema; omitted if empty.
        type: Type of all events.
    """

    source: str
    subject: str
    content_type: str
    is_json: bool = False
    schema_uri: str = ""
    type: str = EVENT_TYPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Records as events.

    Attributes:
        records: The records; in structured mode their values are the envelopes.
        headers: Headers of each record.
    """

    records: Records
    headers: tuple[Header, ...]


@runtime_checkable
class HasContentType(Protocol):
    """A value format that declares the media type of its values. Optional."""

    content_type: str


class CloudEventsRecords:
    """Encodes the records of another value format as events."""

    def __init__(self, options: FormatOptions) -> None:
        self._options = options
        if options.events is None:
            raise BugError("CloudEvents were requested without their attributes.")
        self._events = options.events
        self._data: RecordFormat = options.events.data
        data = self._data
        content = data.content_type if isinstance(data, HasContentType) else _UNKNOWN_CONTENT
        self._context = EventContext(
            source=options.events.source,
            subject=options.table,
            content_type=content,
            is_json=content == _JSON_CONTENT,
        )

    def prepare(self, rows: pa.Schema, registry: SchemaRegistry) -> Self:
        """Return this format with its inner format prepared."""
        data = self._data.prepare(rows, registry)
        return type(self)(replace(self._options, events=replace(self._events, data=data)))

    def records(self, batch: ChangeBatch, *, now_us: int | None = None) -> Records:
        """Return the records of the other format as events; see `events`."""
        records = self._data.records(batch, now_us=now_us)
        found = events(self._context, self._events.mode, batch, records)
        return replace(found.records, headers=(*records.headers, *found.headers))


def events(context: EventContext, mode: Mode, batch: ChangeBatch, records: Records) -> Events:
    """Return the records of a batch as events.

    Ids are those of `event_ids`, so a repeated delivery has the same ids. Each event also has the
    version (`iotailerdversion`) and the row's change type (`iotailerdchange`). Tombstones keep
    their null value.

    Args:
        context: The table's context.
        mode: `binary` puts the attributes in headers, `structured` in the value.
        batch: The batch of the records.
        records: Records of any value format.
    """
    ids = record_ids(batch, records)
    changes = records.from_rows(batch.change_types())
    if mode == "binary":
        return Events(records=records, headers=_headers(context, batch, ids, changes))
    values = _envelopes(context, batch, records.values, ids, changes)
    content = Header(name="content-type", value=STRUCTURED_CONTENT.encode())
    return Events(records=replace(records, values=values), headers=(content,))


def _constants(context: EventContext, batch: ChangeBatch) -> dict[str, str]:
    """Return the attributes that are the same in all events of a batch."""
    found = {
        "specversion": "1.0",
        "source": context.source,
        "type": context.type,
        "subject": context.subject,
        "time": timestamp_text(batch.timestamp_us),
        _VERSION_ATTRIBUTE: str(batch.version),
    }
    return {**found, "dataschema": context.schema_uri} if context.schema_uri else found


def _headers(
    context: EventContext, batch: ChangeBatch, ids: pa.Array, changes: pa.Array
) -> tuple[Header, ...]:
    constants = _constants(context, batch).items()
    return (
        Header(name="content-type", value=context.content_type.encode()),
        *(Header(name=f"ce_{name}", value=value.encode()) for name, value in constants),
        Header(name="ce_id", value=ids),
        Header(name=f"ce_{_CHANGE_ATTRIBUTE}", value=changes),
    )


def _envelopes(
    context: EventContext, batch: ChangeBatch, values: pa.Array, ids: pa.Array, changes: pa.Array
) -> pa.Array:
    constants = {**_constants(context, batch), "datacontenttype": context.content_type}
    head = "".join(f"{quote_text(name)}:{quote_text(text)}," for name, text in constants.items())
    opening = f'{{{head}"id":"'.encode()
    middle = f'","{_CHANGE_ATTRIBUTE}":"'.encode()
    name = b'","data":' if context.is_json else b'","data_base64":'
    step = max(1, min(BLOCK_ROWS, len(values) * _BLOCK_BYTES // max(values.nbytes, 1)))
    parts = []
    for start in range(0, len(values), step):
        block = values.slice(start, step)
        data = block if context.is_json else base64_texts(block.cast(pa.binary()))
        pieces: list[Piece] = [
            ConstantBytes(opening),
            byte_column(escaped_texts(ids.slice(start, step))),
            ConstantBytes(middle),
            byte_column(escaped_texts(changes.slice(start, step))),
            ConstantBytes(name),
            byte_column(data),
            ConstantBytes(b"}"),
        ]
        parts.append(joined_rows(pieces, len(block)))
    return _copy_nulls(values, parts)


def _copy_nulls(values: pa.Array, parts: Sequence[pa.Array]) -> pa.Array:
    whole = binary_array(parts) if parts else pa.array([], pa.binary())
    return pc.if_else(values.is_valid(), whole, None) if values.null_count else whole
