"""The one table of record formats: a new one is a module and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tailerd.errors import ConfigError
from tailerd.records.debezium_records import DebeziumRecords
from tailerd.records.json_records import JsonRecords
from tailerd.records.records import FormatOptions, RecordFormat

FORMATS: Mapping[str, Callable[[FormatOptions], RecordFormat]] = MappingProxyType(
    {
        "debezium": DebeziumRecords,
        "json": JsonRecords,
    }
)
"""Name in the configuration -> what makes the format of its options."""


def record_format(name: str, options: FormatOptions) -> RecordFormat:
    """Make a format by its name.

    Raises:
        ConfigError: There is no format of that name.
    """
    make = FORMATS.get(name)
    if make is None:
        raise ConfigError(
            f"The record format {name!r} is not known.",
            hint=f"Known are: {', '.join(sorted(FORMATS))}.",
        )
    return make(options)
