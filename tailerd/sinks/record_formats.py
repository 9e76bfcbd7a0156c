"""Value formats as sinks use them: made by name, prepared for each schema before its first rows."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.errors import BugError, ConfigError
from tailerd.records.base import FormatOptions, RecordFormat, Records, RecordSchema, SchemaIds
from tailerd.registry import value_format


@runtime_checkable
class _FormatClass(Protocol):
    def __call__(self, options: FormatOptions) -> RecordFormat: ...

    def prepare(self, format_: RecordFormat, rows: pa.Schema, ids: SchemaIds) -> RecordFormat: ...

    def records(self, format_: RecordFormat, batch: ChangeBatch) -> Records: ...


def record_format(name: str, options: FormatOptions) -> RecordFormat:
    """Make a value format by its name.

    Raises:
        ConfigError: There is none of that name, or the distribution that brings it does not load.
    """
    format_class = value_format(name)
    if not isinstance(format_class, _FormatClass):
        raise BugError(f"The class of the value format {name!r} is no RecordFormat.")
    return format_class(options)


class TableRecords:
    """Makes the records of one table in one value format."""

    def __init__(self, name: str, options: FormatOptions, ids: SchemaIds | None = None) -> None:
        """Make the format.

        Args:
            name: Of the value format.
            options: What it is told.
            ids: Gives the ids of schemas; None where no registry is configured.

        Raises:
            ConfigError: As `record_format`.
        """
        self._name = name
        self._ids = self._no_registry if ids is None else ids
        self._format = record_format(name, options)
        self._prepared = self._format
        self._schema: pa.Schema | None = None

    def records(self, batch: ChangeBatch, *, now_us: int | None = None) -> Records:
        """Return the records of a batch; where its schema is new, ids may be asked for first.

        Raises:
            TailerdError: As `RecordFormat.prepare` and `RecordFormat.records`.
        """
        schema = batch.rows.schema
        if self._schema is None or not self._schema.equals(schema, check_metadata=True):
            self._prepared = self._format.prepare(schema, self._ids)
            self._schema = schema
        return self._prepared.records(batch, now_us=now_us)

    def _no_registry(self, schema: RecordSchema) -> int:
        raise ConfigError(
            f"The value format {self._name} has its {schema.kind} schemas in a schema registry, and"
            " none is configured.",
            hint="Choose the format json or debezium.",
        )
