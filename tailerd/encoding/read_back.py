"""Records as they were delivered, read back: which rows came and went, each in one spelling.

The inverse of `json` and `debezium`, for comparing what was delivered with the table. Rows are
compared by their current columns: a column that was dropped is left out; null, and not there yet,
are the same. Values that a widened column spells differently are spelled alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from tailerd.changefeed.change_batch import CHANGE_COLUMNS, CHANGE_TYPE, COMMIT_VERSION
from tailerd.changefeed.change_task import ChangeType
from tailerd.errors import SinkError

_SIGNS = {
    ChangeType.INSERT.value: 1,
    ChangeType.UPDATE_POSTIMAGE.value: 1,
    ChangeType.DELETE.value: -1,
    ChangeType.UPDATE_PREIMAGE.value: -1,
}
_MIDNIGHT = "T00:00:00.000000"
_LENGTH_OF_DATE = 10

Change = tuple[int, dict[str, Any], int]
"""+1 or -1, the row, and the version of its commit."""


@dataclass(slots=True)
class RowReader:
    """Reads records of one table.

    Attributes:
        schema: The table's columns now, as Arrow.
        format: `json` or `debezium`.
        foreign: Columns met that the table does not have now.
    """

    schema: pa.Schema
    format: str
    foreign: set[str] = field(default_factory=set)
    _columns: Mapping[str, Callable[[Any], Any]] = field(init=False)

    def __post_init__(self) -> None:
        self._columns = {column.name: _spelling(column.type) for column in self.schema}

    def read(self, values: Sequence[bytes]) -> tuple[list[bytes], list[int], list[int]]:
        """Return the rows of records: their JSON texts, their signs, the versions of their commits.

        Raises:
            SinkError: A record is not of this format.
        """
        changes_of = _debezium_changes if self.format == "debezium" else _json_changes
        rows: list[bytes] = []
        signs: list[int] = []
        versions: list[int] = []
        for value in values:
            try:
                for sign, row, version in changes_of(msgspec.json.decode(value)):
                    rows.append(self._text(row))
                    signs.append(sign)
                    versions.append(version)
            except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
                raise SinkError(
                    f"A record is no {self.format} change: {value[:80]!r} ({error!r}). Something"
                    " else writes to the same place.",
                    hint="Verify a place that only this pipeline writes to.",
                ) from error
        return rows, signs, versions

    def _text(self, row: dict[str, Any]) -> bytes:
        kept: dict[str, Any] = {}
        for name, value in row.items():
            if value is None:
                continue
            spelling = self._columns.get(name)
            if spelling is None:
                self.foreign.add(name)
            else:
                kept[name] = spelling(value)
        return msgspec.json.encode(kept, order="sorted")


def _json_changes(record: dict[str, Any]) -> Iterator[Change]:
    sign, version = _SIGNS[record[CHANGE_TYPE]], record[COMMIT_VERSION]
    yield sign, {k: v for k, v in record.items() if k not in CHANGE_COLUMNS}, version


def _debezium_changes(record: dict[str, Any]) -> Iterator[Change]:
    envelope = record["payload"] if "payload" in record and "schema" in record else record
    version = envelope["source"]["commit_version"]
    if envelope["before"] is not None:
        yield -1, envelope["before"], version
    if envelope["after"] is not None:
        yield 1, envelope["after"], version


def _spelling(kind: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_decimal(kind):
        return _plain_decimal
    if pa.types.is_floating(kind):
        return _plain_number
    if pa.types.is_timestamp(kind):
        return _plain_timestamp
    return _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def _plain_decimal(value: Any) -> Any:
    number = Decimal(value)
    return "0" if number == 0 else f"{number.normalize():f}"


def _plain_number(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _plain_timestamp(value: Any) -> Any:
    is_date = isinstance(value, str) and "T" not in value and len(value) >= _LENGTH_OF_DATE
    return value + _MIDNIGHT if is_date else value
