"""Converts between Arrow and Spark: the declared schema, and batches of other versions."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.types as types
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
    VariantType,
)

from tailerd.changefeed.change_batch import VARIANT_FIELD, with_change_columns
from tailerd.errors import SchemaChangedError

_VARIANT = pa.struct([pa.field("metadata", pa.binary()), pa.field("value", pa.binary())])
_WIDER_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_SAFE_IN_DOUBLE = (*_WIDER_INTEGERS[:3], pa.float32())
_DECIMAL_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}


def spark_schema(table: pa.Schema) -> StructType:
    """Return the table's columns and the three change columns as Spark types, all nullable."""
    return StructType(
        [StructField(field.name, _spark_type(field), True) for field in with_change_columns(table)]
    )


def declared_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema which Spark compares the source's batches with, exactly."""
    return to_arrow_schema(schema, timezone="UTC")


def conform(batch: pa.RecordBatch, target: pa.Schema, *, may_drop: bool) -> pa.RecordBatch:
    """Return `batch` under the declared schema.

    A column the batch lacks becomes nulls, a narrower type is widened. `may_drop` says whether
    columns that were not declared are left out (for a user-defined schema).

    Raises:
        SchemaChangedError: Rows would lose a column, a field or digits.
    """
    if batch.schema.equals(target):
        return batch
    if not may_drop:
        _refuse_extra("column", batch.schema.names, target.names)
    arrays = []
    for field in target:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            arrays.append(pa.nulls(batch.num_rows, field.type))
        else:
            arrays.append(conform_array(batch.column(index), field.type, field.name))
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def conform_array(array: pa.Array, target: pa.DataType, name: str) -> pa.Array:
    """Return `array` as `target`; `name` is the column or nested field, for the error.

    Raises:
        SchemaChangedError: The type is neither the same nor a narrower one.
    """
    source = array.type
    if source.equals(target, check_metadata=True):
        return array
    if types.is_dictionary(source):
        return conform_array(array.dictionary_decode(), target, name)
    if types.is_struct(source) and types.is_struct(target):
        return _conform_struct(array, target, name)
    if _is_list(source) and types.is_list(target):
        offsets_ok = array if types.is_list(source) else array.cast(pa.list_(source.value_field))
        return _conform_list(offsets_ok, target, name)
    if types.is_map(source) and types.is_map(target):
        return _conform_map(array, target, name)
    if not _widens(source, target):
        raise SchemaChangedError(
            f"The column {name} is {source} in these rows, but this query was started when it was"
            f" {target}."
        )
    return array.cast(target)


def _spark_type(field: pa.Field) -> DataType:
    kind = field.type
    if types.is_struct(kind):
        if _is_tailerd_variant(field):
            return VariantType()
        children = [StructField(child.name, _spark_type(child), True) for child in kind]
        return StructType(children)
    if types.is_map(kind):
        return MapType(_spark_type(kind.key_field), _spark_type(kind.item_field), True)
    if _is_list(kind):
        return ArrayType(_spark_type(kind.value_field), True)
    return from_arrow_type(kind)


def _is_list(kind: pa.DataType) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind))


def _is_tailerd_variant(field: pa.Field) -> bool:
    metadata = field.metadata or {}
    return all(metadata.get(key) == value for key, value in VARIANT_FIELD.items())


def _is_spark_variant(kind: pa.DataType) -> bool:
    if not types.is_struct(kind):
        return False
    return any((child.metadata or {}).get(b"variant") == b"true" for child in kind)


def _conform_struct(array: pa.StructArray, target: pa.StructType, name: str) -> pa.Array:
    names = [field.name for field in array.type]
    if not _is_spark_variant(target):
        _refuse_extra("field", (f"{name}.{n}" for n in names), [f"{name}.{f.name}" for f in target])
    children = []
    for field in target:
        index = array.type.get_field_index(field.name)
        if index < 0:
            children.append(pa.nulls(len(array), field.type))
        else:
            children.append(conform_array(array.field(index), field.type, f"{name}.{field.name}"))
    return pa.StructArray.from_arrays(
        children, fields=list(target), mask=array.is_null() if array.null_count else None
    )


def _conform_list(array: pa.ListArray, target: pa.DataType, name: str) -> pa.Array:
    # Validity and offsets stay as they are, slices included; only the values below change.
    values = conform_array(array.values, target.value_type, f"{name}.element")
    return pa.Array.from_buffers(
        target, len(array), array.buffers()[:2], array.null_count, array.offset, [values]
    )


def _conform_map(array: pa.MapArray, target: pa.MapType, name: str) -> pa.Array:
    entries = pa.StructArray.from_arrays(
        [
            conform_array(array.keys, target.key_type, f"{name}.key"),
            conform_array(array.items, target.item_type, f"{name}.value"),
        ],
        fields=[target.key_field, target.item_field],
    )
    return pa.Array.from_buffers(
        target, len(array), array.buffers()[:2], array.null_count, array.offset, [entries]
    )


def _refuse_extra(kind: str, names: Iterable[str], declared: Iterable[str]) -> None:
    known = set(declared)
    extra = [name for name in names if name not in known]
    if extra:
        raise SchemaChangedError(
            f"These rows have the {kind} {', '.join(extra)}, which the schema this query was"
            " started with does not have."
        )


def _widens(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether every value of `source` is a value of `target`."""
    if types.is_null(source):
        return True
    if source in _WIDER_INTEGERS and target in _WIDER_INTEGERS:
        return bool(source.bit_width <= target.bit_width)
    if types.is_float64(target):
        return source in _SAFE_IN_DOUBLE
    if types.is_decimal(target):
        return _fits_decimal(source, target)
    if types.is_timestamp(target):
        if types.is_date(source):
            return target.tz is None
        return types.is_timestamp(source) and (source.tz is None) == (target.tz is None)
    if types.is_string(target):
        return _is_text(source)
    if types.is_binary(target):
        return bool(types.is_large_binary(source) or types.is_fixed_size_binary(source))
    return False


def _fits_decimal(source: pa.DataType, target: pa.DataType) -> bool:
    digits, scale = _DECIMAL_DIGITS.get(source), 0
    if types.is_decimal(source):
        digits, scale = source.precision - source.scale, source.scale
    return (
        digits is not None and digits <= target.precision - target.scale and scale <= target.scale
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_large_string(kind) or types.is_string_view(kind))
