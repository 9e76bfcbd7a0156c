"""The size of each row, as a function of its values alone.

Files of a delivery are cut by it. A repeated delivery reads the same rows in other batches, and has
to cut them at the same rows; sizes of buffers or of compressed bytes would differ.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Sizes = npt.NDArray[np.int64]

_CHANGE_COLUMNS_BYTES = 32
_LENGTH_BYTES = 4
_OTHER_BYTES = 8


def measure_rows(rows: pa.RecordBatch) -> Sizes:
    """Return the bytes of each row before compression, shape (num_rows,)."""
    sizes = np.full(rows.num_rows, _CHANGE_COLUMNS_BYTES, np.int64)
    for column in rows.columns:
        sizes += _measure(column)
    return sizes


def _measure(values: pa.Array) -> Sizes:
    kind, types = values.type, pa.types
    if isinstance(values, pa.ExtensionArray):
        return _measure(values.storage)
    if types.is_dictionary(kind):
        return _measure_dictionary(values)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return _measure_views(values)
    is_text = types.is_string(kind) or types.is_large_string(kind)
    if is_text or types.is_binary(kind) or types.is_large_binary(kind):
        lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
        return np.asarray(lengths, np.int64) + _LENGTH_BYTES
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        return _measure_lists(values)
    if types.is_struct(kind):
        return sum(map(_measure, values.flatten()), np.ones(len(values), np.int64))
    return np.full(len(values), _fixed_bytes(kind), np.int64)


def _measure_views(values: pa.Array) -> Sizes:
    # Arrow has no kernel for it; the first four of a view's 16 bytes are the length.
    views = np.frombuffer(values.buffers()[1], np.int32).reshape(-1, 4)
    lengths = views[values.offset : values.offset + len(values), 0]
    is_null = values.is_null().to_numpy(zero_copy_only=False)
    return np.where(is_null, 0, lengths).astype(np.int64) + _LENGTH_BYTES


def _measure_dictionary(values: pa.DictionaryArray) -> Sizes:
    # A null has the size that it has without a dictionary.
    plain = _measure(pa.nulls(1, values.type.value_type))[0]
    if not len(values.dictionary):
        return np.full(len(values), plain, np.int64)
    sizes = _measure(values.dictionary)
    numbers = pc.fill_null(values.indices, 0).to_numpy(zero_copy_only=False)
    is_null = values.indices.is_null().to_numpy(zero_copy_only=False)
    return np.asarray(np.where(is_null, plain, sizes[numbers]), np.int64)


def _measure_lists(values: pa.Array) -> Sizes:
    # Slices share the values of the whole array: only their own are measured.
    offsets = values.offsets.to_numpy().astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    if pa.types.is_map(values.type):
        items = _measure(values.keys[first:last]) + _measure(values.items[first:last])
    else:
        items = _measure(values.values[first:last])
    sums = np.concatenate(([0], np.cumsum(items)))
    sizes = sums[offsets[1:] - first] - sums[offsets[:-1] - first]
    # What a null list refers to is arbitrary.
    sizes[values.is_null().to_numpy(zero_copy_only=False)] = 0
    return np.asarray(sizes + _LENGTH_BYTES, np.int64)


def _fixed_bytes(kind: pa.DataType) -> int:
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * _fixed_bytes(kind.value_type)
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return _OTHER_BYTES
