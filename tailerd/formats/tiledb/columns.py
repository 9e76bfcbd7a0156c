"""Maps columns of arrays to Arrow: their types, and TileDB's buffers to Arrow arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.errors import UnreadableDataFileError, UnsupportedFeatureError

_UNITS = {"s": "s", "ms": "ms", "us": "us", "ns": "ns"}
_DAY_UNITS = ("Y", "M", "W", "D")
_LONG_UNITS = ("h", "m")
_UNNAMED_ATTRIBUTE = "__attr"

Buffers = tuple[Any, Any, Any]
"""TileDB's buffers of a column: values, byte offsets (empty for fixed length), validity (0 is null;
empty for a column without nulls)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A dimension or attribute.

    Attributes:
        field: The Arrow field.
        is_dimension: Whether it is a coordinate.
        dtype: Of one value in TileDB's buffers.
        is_var: Whether cells have variable length.
        is_exact: Whether the negation of a condition that is false for a cell is true for it; not
            so for columns with nulls or NaN.
        is_enumerated: Whether its cells are codes of an enumeration.
        is_nullable: Whether it is a nullable attribute.
        fill: Value of cells that were written before the attribute was added; None for null.
    """

    field: pa.Field
    dtype: np.dtype[Any]
    is_dimension: bool
    is_exact: bool
    is_var: bool = False
    is_enumerated: bool = False
    is_nullable: bool = False
    fill: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayShape:
    """The schema of an array.

    Attributes:
        dimensions, attributes: In order; together the columns.
        is_sparse, allows_duplicates: As in TileDB.
        ranges_first: Whether the first dimension can be divided into ranges of whole numbers.
    """

    dimensions: tuple[Column, ...]
    attributes: tuple[Column, ...]
    is_sparse: bool
    allows_duplicates: bool

    @property
    def schema(self) -> pa.Schema:
        """Dimensions, then attributes."""
        return pa.schema([each.field for each in (*self.dimensions, *self.attributes)])

    @property
    def keys(self) -> list[str]:
        """Names of the dimensions."""
        return [each.field.name for each in self.dimensions]

    def column(self, name: str) -> Column | None:
        """Return the column with a name; None if there is none."""
        columns = (*self.dimensions, *self.attributes)
        return next((each for each in columns if each.field.name == name), None)


def read_shape(array: Any, location: str) -> ArrayShape:
    """Return the schema of an open array.

    Raises:
        UnsupportedFeatureError: It has a column of an unsupported type.
    """
    schema = array.schema
    if getattr(schema, "has_dim_labels", False) or _has_labels(schema):
        raise _refuse_column(location, "has dimension labels")
    domain = schema.domain
    dimensions = [domain.dim(number) for number in range(domain.ndim)]
    attributes = [schema.attr(number) for number in range(schema.nattr)]
    names = [each.name for each in (*dimensions, *attributes)]
    if len(set(names)) < len(names) or "" in names:
        dimensions, attributes = list(dimensions), list(attributes)
    return ArrayShape(
        dimensions=tuple(
            _dimension(each, number, location) for number, each in enumerate(dimensions)
        ),
        attributes=tuple(
            _attribute(each, number, array, location) for number, each in enumerate(attributes)
        ),
        is_sparse=bool(schema.sparse),
        allows_duplicates=bool(schema.sparse and schema.allows_duplicates),
    )


def _has_labels(schema: Any) -> bool:
    domain = schema.domain
    return any(schema.has_dim_label(domain.dim(n).name) for n in range(domain.ndim))


def _dimension(dim: Any, number: int, location: str) -> Column:
    dtype = np.dtype(dim.dtype)
    kind = pa.string() if dtype.kind in "SU" else _arrow_type(dtype, dim.name, location)
    name = dim.name or f"__dim_{number}"
    return Column(
        field=pa.field(name, kind),
        dtype=dtype,
        is_dimension=True,
        is_exact=dtype.kind != "f",
        is_var=bool(dim.isvar),
    )


def _attribute(attr: Any, number: int, array: Any, location: str) -> Column:
    name = attr.name or f"__attr_{number}"
    if attr.enum_label is not None:
        values = _enumeration(array, attr.enum_label, location)
        return Column(
            field=pa.field(name, values.type),
            dtype=np.dtype(attr.dtype),
            is_dimension=False,
            is_exact=False,
            is_enumerated=True,
            is_nullable=bool(attr.isnullable),
        )
    dtype = np.dtype(attr.dtype)
    kind = _arrow_type(dtype, name, location)
    if attr.isvar and dtype.kind not in "SUO":
        kind = pa.list_(kind)
    is_exact = not attr.isnullable and dtype.kind not in "fVc" and not pa.types.is_list(kind)
    return Column(
        field=pa.field(name, kind),
        dtype=dtype,
        is_dimension=False,
        is_var=bool(attr.isvar),
        is_exact=is_exact,
        is_nullable=bool(attr.isnullable),
        fill=None if attr.isnullable or attr.isvar else _fill(attr),
    )


def _fill(attr: Any) -> object:
    value = np.asarray(attr.fill).reshape(-1)
    return value[:1]


def _arrow_type(dtype: np.dtype[Any], name: str, location: str) -> pa.DataType:
    if dtype.kind == "M":
        unit = np.datetime_data(dtype)[0]
        if unit in _DAY_UNITS:
            return pa.date32()
        if unit in _UNITS or unit in _LONG_UNITS:
            return pa.timestamp("us")
        return pa.int64()
    if dtype.kind == "m":
        return pa.int64()
    if dtype.kind == "S":
        return pa.binary()
    if dtype.kind in "UO":
        return pa.string()
    if dtype.kind in "biuf":
        return pa.from_numpy_dtype(dtype)
    raise _refuse_column(location, f"has the column {name!r} of the type {dtype}")


def _refuse_column(location: str, what: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"The array {location} {what}, which this release cannot read.",
        remedy="Copy what you need into an array without it.",
        path=location,
    )


def _enumeration(array: Any, label: str, location: str) -> pa.Array:
    try:
        values = array.enum(label).values()
    except Exception as error:
        if type(error).__name__ != "TileDBError":
            raise
        raise _refuse_column(location, f"has the enumeration {label!r} without values") from error
    if isinstance(values, np.ndarray):
        return pa.array(values)
    return pa.array(list(values)) if len(values) else pa.array([], pa.string())


def cells_to_arrow(cells: Mapping[str, Buffers], shape: ArrayShape, array: Any) -> pa.RecordBatch:
    """Return the result of a TileDB query: the columns it has, in the order of `shape`.

    Raises:
        UnreadableDataFileError: A text is not UTF-8.
    """
    named = {_name(name, shape): buffers for name, buffers in cells.items()}
    fields, arrays = [], []
    for column in (*shape.dimensions, *shape.attributes):
        buffers = named.get(column.field.name)
        if buffers is not None:
            fields.append(column.field)
            arrays.append(_column(buffers, column, array))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _name(name: str, shape: ArrayShape) -> str:
    if name in ("", _UNNAMED_ATTRIBUTE):
        return str(next(each.field.name for each in shape.attributes))
    return name


def _column(buffers: Buffers, column: Column, array: Any) -> pa.Array:
    kind = column.field.type
    data, offsets, validity = buffers
    gone = validity == 0 if column.is_nullable and len(validity) else None
    try:
        if column.is_var:
            return _var_column(data, offsets, gone, column)
        flat = data.view(column.dtype)
        if column.is_enumerated:
            return _decode_enumeration(flat, gone, column, array)
        return _fixed_column(flat, gone, kind)
    except (pa.ArrowException, UnicodeError) as error:
        raise UnreadableDataFileError(
            f"The column {column.field.name!r} has a value that is not a valid {kind}: {error}.",
            remedy="Leave the column out, or write its values again.",
        ) from error


def _var_column(data: Any, offsets: Any, gone: Any, column: Column) -> pa.Array:
    """Return cells of variable length: `offsets` has the first byte of each."""
    count, kind = len(offsets), column.field.type
    starts = np.append(offsets.astype(np.int64), data.nbytes)
    valid = None if gone is None else pa.array(~gone).buffers()[1]
    content = pa.py_buffer(np.ascontiguousarray(data))
    if not pa.types.is_list(kind):
        buffers = [valid, pa.py_buffer(starts), content]
        large = pa.Array.from_buffers(pa.large_binary(), count, buffers)
        return _without_fill(large.cast(pa.binary()), starts, data).cast(kind)
    values = _fixed_column(data.view(column.dtype), None, kind.value_type)
    lists = pa.Array.from_buffers(
        pa.large_list(kind.value_type),
        count,
        [valid, pa.py_buffer(starts // column.dtype.itemsize)],
        children=[values],
    )
    return lists.cast(kind)


def _without_fill(texts: pa.Array, starts: Any, data: Any) -> pa.Array:
    """Return texts, with never written ones as empty: these have one zero byte."""
    ones = np.flatnonzero(np.diff(starts) == 1)
    is_fill = np.zeros(len(texts), bool)
    is_fill[ones] = data.view(np.uint8)[starts[ones]] == 0
    if not is_fill.any():
        return texts
    return pc.if_else(pa.array(is_fill), pa.scalar(b""), texts)


def _fixed_column(values: Any, mask: Any, kind: pa.DataType) -> pa.Array:
    if pa.types.is_date32(kind):
        days = _times(values, mask, "datetime64[D]")
        return (
            pa.array(days.astype(np.int64), pa.int64(), mask=np.isnat(days))
            .cast(pa.int32())
            .view(kind)
        )
    if pa.types.is_timestamp(kind):
        return pa.array(_times(values, mask, "datetime64[us]"), kind)
    if values.dtype.kind in "mM":
        values = values.astype(np.int64)
    return pa.array(values, kind, mask=mask)


def _times(values: Any, mask: Any, unit: str) -> Any:
    """Return times in another unit, without those of the mask; NumPy floors finer units.

    Raises:
        pyarrow.ArrowInvalid: A time is out of the unit's range: NumPy would wrap it around.
    """
    if mask is not None:
        values = np.where(mask, np.datetime64("NaT"), values)
    found = values.astype(unit)
    is_finer = np.can_cast(unit, values.dtype)
    if not is_finer and not np.array_equal(found.astype(values.dtype), values, equal_nan=True):
        raise pa.ArrowInvalid("a time is out of range")
    return found


def _decode_enumeration(codes: Any, mask: Any, column: Column, array: Any) -> pa.Array:
    label = array.schema.attr(column.field.name).enum_label
    values = _enumeration(array, str(label), "")
    codes = codes.astype(np.int64)
    is_code = (codes >= 0) & (codes < len(values))
    gone = ~is_code if mask is None else mask | ~is_code
    return values.take(pa.array(np.where(is_code, codes, 0), mask=gone))


def conform_rows(rows: pa.RecordBatch, shape: ArrayShape) -> pa.RecordBatch:
    """Return rows of an older schema in a newer one.

    An added column has its fill value, as TileDB returns it for old cells.
    """
    arrays = []
    for column in (*shape.dimensions, *shape.attributes):
        field = column.field
        if field.name in rows.schema.names and rows.schema.field(field.name).type == field.type:
            arrays.append(rows.column(field.name))
        else:
            arrays.append(_fill_column(column, rows.num_rows))
    return pa.RecordBatch.from_arrays(arrays, schema=shape.schema)


def _fill_column(column: Column, count: int) -> pa.Array:
    kind = column.field.type
    if column.is_nullable or column.is_enumerated:
        return pa.nulls(count, kind)
    if column.fill is None:
        empty = "" if pa.types.is_string(kind) else b"" if pa.types.is_binary(kind) else []
        return pa.repeat(pa.scalar(empty, kind), count)
    nothing = np.empty(0, np.uint8)
    one = _column((np.asarray(column.fill, column.dtype), nothing, nothing), column, None)
    return pa.repeat(one[0], count)
