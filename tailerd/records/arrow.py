"""Encode change rows, with their change columns, as one Arrow IPC stream."""

from __future__ import annotations

import io

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch, with_change_columns
from tailerd.errors import SchemaChangedError


class ArrowStream:
    """The bytes of one IPC stream, in pieces. Pure; not an `Encoder`, because a stream has state.

    The first batch determines the schema. Every piece can be read once it is written.
    """

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._schema: pa.Schema | None = None
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None

    def append(self, batch: ChangeBatch) -> bytes:
        """Return the bytes that a batch adds to the stream.

        Raises:
            SchemaChangedError: The batch's schema differs from the stream's.
        """
        schema = with_change_columns(batch.rows.schema)
        if self._writer is None or self._schema is None:
            self._schema = schema
            self._writer = pa.ipc.new_stream(self._buffer, schema)
        elif not schema.equals(self._schema):
            raise SchemaChangedError(
                f"Version {batch.version} changes the columns"
                f" ({_difference(self._schema, schema)}), and an Arrow stream has one schema from"
                " its first to its last byte.",
                remedy=f"Start a new stream there: tailerd tail --from {batch.version}"
                " --format arrow.",
            )
        self._writer.write_batch(batch.to_arrow())
        return self._drain_buffer()

    def finish(self) -> bytes:
        """Return the bytes that end the stream; empty if there was no batch."""
        if self._writer is None:
            return b""
        self._writer.close()
        return self._drain_buffer()

    def _drain_buffer(self) -> bytes:
        piece = self._buffer.getvalue()
        self._buffer.seek(0)
        self._buffer.truncate()
        return piece


def _difference(before: pa.Schema, after: pa.Schema) -> str:
    old = {field.name: field for field in before}
    new = {field.name: field for field in after}
    words = [f"added {name}" for name in new if name not in old]
    words += [f"removed {name}" for name in old if name not in new]
    words += [
        f"{name} was {field.type}, is {new[name].type}"
        for name, field in old.items()
        if name in new and not field.type.equals(new[name].type)
    ]
    return ", ".join(words) or "another order or other nullability"
