"""Value formats of sinks: created by name, prepared for each schema before its first rows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.errors import BugError, ConfigError
from tailerd.records.base import (
    FormatOptions,
    RecordFormat,
    RecordPart,
    Records,
    RecordSchema,
    SchemaRegistry,
)
from tailerd.records.event_ids import IdentifiedRecords
from tailerd.records.record_keys import check_key_types, key_types
from tailerd.registry import value_format


@runtime_checkable
class _FormatClass(Protocol):
    def __call__(self, options: FormatOptions) -> RecordFormat: ...

    def prepare(
        self, format_: RecordFormat, rows: pa.Schema, registry: SchemaRegistry
    ) -> RecordFormat: ...

    def records(self, format_: RecordFormat, batch: ChangeBatch) -> Records: ...


def record_format(name: str, options: FormatOptions) -> RecordFormat:
    """Create a value format by name.

    Raises:
        ConfigError: The name is unknown, or the distribution that provides it cannot be loaded.
    """
    format_class = value_format(name)
    if not isinstance(format_class, _FormatClass):
        raise BugError(f"The class of the value format {name!r} is not a RecordFormat.")
    made = format_class(options)
    return IdentifiedRecords(made) if options.has_ids else made


_MAX_PREPARED = 8
"""Cached row schemas per table: the current one, and those of older files."""


class TableRecords:
    """Encodes the records of one table in one value format."""

    def __init__(
        self, name: str, options: FormatOptions, registry: SchemaRegistry | None = None
    ) -> None:
        """Create the format.

        Args:
            name: Of the value format.
            options: The format's options.
            registry: Registers its schemas; None if none is configured.

        Raises:
            ConfigError: As `record_format`.
        """
        self._registry = NoRegistry(name) if registry is None else registry
        self._options = options
        self._key_types: dict[str, str] = {}
        self._format = record_format(name, options)
        self._prepared: OrderedDict[bytes, RecordFormat] = OrderedDict()
        self._latest: tuple[pa.Schema, RecordFormat] | None = None

    def records(self, batch: ChangeBatch, *, now_us: int | None = None) -> Records:
        """Return the records of a batch; for a new schema, may query the registry first.

        Args:
            batch, now_us: As for `RecordFormat.records`.

        Raises:
            TailerdError: As `RecordFormat.prepare` and `RecordFormat.records`.
        """
        return self.prepare_schema(batch.rows.schema).records(batch, now_us=now_us)

    def prepare_schema(self, schema: pa.Schema) -> RecordFormat:
        """Return the format for rows with a schema.

        Raises:
            SchemaChangedError: A key column has another type than in the first schema.
            TailerdError: As `RecordFormat.prepare`.
        """
        if self._latest is not None and self._latest[0].equals(schema, check_metadata=True):
            return self._latest[1]
        types = key_types(schema, self._options.key)
        check_key_types(self._options.table, self._key_types, types)
        self._key_types |= types
        text = schema.serialize().to_pybytes()
        found = self._prepared.pop(text, None) or self._format.prepare(schema, self._registry)
        self._prepared[text] = found
        if len(self._prepared) > _MAX_PREPARED:
            self._prepared.popitem(last=False)
        self._latest = schema, found
        return found


class NoRegistry:
    """Replaces the registry where none is configured: a format that needs one fails."""

    def __init__(self, name: str) -> None:
        self._name = name

    def earlier(self, part: RecordPart, name: str) -> str:
        """Return an empty string: there is no earlier schema."""
        return ""

    def ids(self, schemas: Sequence[RecordSchema]) -> Sequence[int]:
        """Raise an error: there is no registry.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            f"The value format {self._name} has its {schemas[0].kind} schemas in a schema registry,"
            " and none is configured.",
            remedy="Set `schema_registry`, or choose the format json or debezium.",
        )
