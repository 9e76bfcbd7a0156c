"""Adds a zone to partition timestamps without one, in planned tasks.

A plan is made in one process and read in many. Its values are unambiguous instants, so that
reading, filters and restarts agree without knowing the configured zone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

from tailerd.changefeed.change_task import ChangeTask
from tailerd.clock import zone_named
from tailerd.errors import ConfigError, ZoneAssumedError
from tailerd.formats.delta.protocol.data_file import DataFile, TableSchema
from tailerd.formats.delta.protocol.partition_values import in_zone, lacks_zone
from tailerd.formats.delta.protocol.rewritten_files import with_files
from tailerd.formats.delta.protocol.schema import UTC_TIMESTAMP, arrow_field, parse_schema


class PartitionZone:
    """The zone of a table's partition timestamps that have none.

    Args:
        location: The table, for the warning.
        name: An IANA name; empty or None to assume UTC.
        on_guess: Called once, for the first value whose zone is assumed.

    Raises:
        ConfigError: There is no zone of that name.
    """

    def __init__(
        self,
        location: str,
        name: str | None = None,
        on_guess: Callable[[ZoneAssumedError], None] | None = None,
    ) -> None:
        try:
            self._zone = zone_named(name) if name else None
        except ValueError as error:
            raise ConfigError(
                f"The partition timezone of {location} is {name!r}, but {error}."
            ) from (error)
        self._location = location
        self._on_guess = on_guess
        self._is_reported = False

    def apply(self, tasks: Sequence[ChangeTask]) -> Sequence[ChangeTask]:
        """Return tasks whose partition timestamps have a zone, as far as one is set."""
        if self._zone is None and (self._on_guess is None or self._is_reported):
            return tasks
        return [with_files(task, self._file) for task in tasks]

    def _file(self, file: DataFile) -> DataFile:
        columns = _instants(file.schema) if file.partition_values else {}
        if not columns:
            return file
        values = tuple(
            (name, self._text(columns[name], text) if text and name in columns else text)
            for name, text in file.partition_values
        )
        if values == file.partition_values:
            return file
        return replace(file, partition_values=values)

    def _text(self, column: str, text: str) -> str:
        if self._zone is not None:
            return _in_zone(text, self._zone)
        if self._on_guess is not None and not self._is_reported and lacks_zone(text):
            self._is_reported = True
            self._on_guess(
                ZoneAssumedError(
                    f"Partition timestamps of {column} in {self._location} have no zone and are"
                    " taken as UTC.",
                    remedy="Name the zone they are in, such as Europe/Berlin or UTC:"
                    " partition_timezone in the configuration, --partition-timezone of a command,"
                    " the option partitionTimezone in Spark.",
                )
            )
        return text


# A table has few distinct values, each in many files.
_in_zone = functools.lru_cache(maxsize=4096)(in_zone)


@functools.lru_cache(maxsize=256)
def _instants(schema: TableSchema) -> dict[str, str]:
    """Return the partition columns of type timestamp: logical names by physical ones."""
    found = {}
    columns = parse_schema(schema.text)
    for name in schema.partition_columns:
        field = columns.find_field(name)
        if field is not None and arrow_field(field).type == UTC_TIMESTAMP:
            found[field.physical_name(schema.column_mapping)] = name
    return found
