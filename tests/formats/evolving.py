"""Adds a column to a table of each format, with a row that has it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import tiledb

from tailerd.changefeed.offset import Version
from tests.formats.conftest import (
    Table,
    WrittenDelta,
    WrittenIceberg,
    WrittenKartothek,
    WrittenLance,
    WrittenTileDB,
)

EXTRA = pa.field("extra", pa.float64())


def add_column(table: Table, number: int) -> Version:
    """Add `extra` and then a row with it; return the row's version."""
    return _ADD[table.format](table, number)


def _delta(table: WrittenDelta, number: int) -> Version:
    builder = table._builder
    builder.change_metadata(fields=[*builder.fields, ("extra", "double")])
    return Version(builder.append([_row(number)]).version)


def _iceberg(table: WrittenIceberg, number: int) -> Version:
    with table._writer.table.update_schema() as update:
        update.union_by_name(pa.schema([*table._writer.schema, EXTRA]))
    table._writer.schema = pa.schema([*table._writer.schema, EXTRA])
    return Version(table._writer.append([_row(number)]))


def _kartothek(table: WrittenKartothek, number: int) -> Version:
    table._writer.schema = pa.schema([*table._writer.schema, EXTRA])
    table._writer.commit([_row(number)])
    return table._observed()


def _lance(table: WrittenLance, number: int) -> Version:
    table._writer.dataset.add_columns(pa.schema([EXTRA]))
    table._writer.schema = pa.schema([*table._writer.schema, EXTRA])
    return Version(table._writer.append([_row(number)]))


def _tiledb(table: WrittenTileDB, number: int) -> Version:
    evolution = tiledb.ArraySchemaEvolution(tiledb.default_ctx())
    evolution.add_attribute(tiledb.Attr("extra", dtype="float64"))
    evolution.timestamp(int(table._next()))
    evolution.array_evolve(str(table.location))
    version = table._next()
    values = {"name": np.array([f"n{number}"], dtype=object), "extra": np.array([0.5])}
    with tiledb.open(str(table.location), "w", timestamp=int(version)) as array:
        array[np.array([number], np.int64)] = values
    return version


def _row(number: int) -> dict[str, object]:
    return {"id": number, "name": f"n{number}", "extra": 0.5}


_ADD: dict[str, Callable[..., Version]] = {
    "delta": _delta,
    "iceberg": _iceberg,
    "kartothek": _kartothek,
    "lance": _lance,
    "tiledb": _tiledb,
}
