"""Parquet files of delivered rows: each column comes back, encoded as its values suggest."""

from __future__ import annotations

import io
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailerd.sinks.parquet_writer import open_writer

ROWS = 5000
NUMBERS = range(ROWS)
KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "long": (pa.int64(), [*NUMBERS]),
    "double": (pa.float64(), [number / 7 for number in NUMBERS]),
    "decimal": (pa.decimal128(10, 2), [Decimal(number) for number in NUMBERS]),
    "date": (pa.date32(), [*NUMBERS]),
    "timestamp": (pa.timestamp("us", "UTC"), [*NUMBERS]),
    "text": (pa.string(), [f"name {number}" for number in NUMBERS]),
    "large text": (pa.large_string(), [f"name {number}" for number in NUMBERS]),
    "bytes": (pa.binary(), [str(number).encode() for number in NUMBERS]),
    "fixed bytes": (pa.binary(4), [number.to_bytes(4, "big") for number in NUMBERS]),
}
WITH_PARTS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "struct": (pa.struct({"a.b": pa.int64()}), [{"a.b": number} for number in NUMBERS]),
    "list": (pa.list_(pa.int64()), [[number] for number in NUMBERS]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("k", number)] for number in NUMBERS]),
    "uuid": (pa.uuid(), [number.to_bytes(16, "big") for number in NUMBERS]),
}


def written(rows: pa.Table) -> tuple[pa.Table, dict[str, bool]]:
    """Return the rows of a file, and of each leaf column whether it has a dictionary."""
    target = io.BytesIO()
    with open_writer(target, rows, compression="zstd") as writer:
        writer.write_table(rows)
    group = pq.ParquetFile(target).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return pq.read_table(target), {c.path_in_schema: c.has_dictionary_page for c in columns}


@pytest.mark.parametrize("kind", KINDS)
def test_only_values_that_repeat_have_a_dictionary(kind: str) -> None:
    of_type, values = KINDS[kind]
    rows = pa.table(
        {
            "a.different": pa.array(values, of_type),
            "a.repeated": pa.array(values[:100] * (ROWS // 100), of_type),
            "absent": pa.nulls(ROWS, of_type),
        }
    )
    found, has_dictionary = written(rows)
    assert found.equals(rows)
    assert (has_dictionary["a.different"], has_dictionary["a.repeated"]) == (False, True)


@pytest.mark.parametrize("kind", WITH_PARTS)
def test_columns_with_parts_keep_their_dictionaries_beside_plain_ones(kind: str) -> None:
    of_type, values = WITH_PARTS[kind]
    rows = pa.table({"id": pa.array(NUMBERS), "all": pa.array(values, of_type)})
    found, has_dictionary = written(rows)
    assert found.equals(rows)
    assert has_dictionary.pop("id") is False
    assert set(has_dictionary.values()) == {True}


def test_columns_that_cannot_be_judged_have_a_dictionary() -> None:
    for count in (0, 1, 100):
        rows = pa.table({"id": pa.array(range(count)), "void": pa.nulls(count)})
        found, has_dictionary = written(rows)
        assert found.equals(rows)
        assert has_dictionary["id"] is True
