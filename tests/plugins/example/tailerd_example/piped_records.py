"""The value format `piped`: the columns of a row as texts, with `|` between them."""

from __future__ import annotations

from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from tailerd.plugins import ChangeBatch, FormatOptions, Records, RecordSchema, SchemaRegistry


class PipedRecords:
    """One record per row: the id of its schema, its change type, its columns."""

    def __init__(self, options: FormatOptions, schema_id: int = 0) -> None:
        self._options = options
        self._id = schema_id

    def prepare(self, rows: pa.Schema, registry: SchemaRegistry) -> Self:
        """Ask for an id where there is a key; other tables do without a schema."""
        if not self._options.schemas:
            return self
        text = "|".join(rows.names)
        schema = RecordSchema(part="value", kind="PIPED", name=self._options.table, text=text)
        return type(self)(self._options, registry.ids([schema])[0])

    def records(self, batch: ChangeBatch, *, now_us: int | None = None) -> Records:
        """Return one record per row, in their order."""
        columns = [column.cast(pa.string()) for column in batch.rows.columns]
        head = pa.scalar(str(self._id))
        texts = pc.binary_join_element_wise(
            head, batch.change_types(), *columns, "|", null_handling="replace"
        )
        return Records(keys=None, values=texts.cast(pa.binary()))
