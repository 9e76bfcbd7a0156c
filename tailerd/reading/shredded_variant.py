"""Assembles shredded variants: converts typed columns to the bytes of unshredded variants.

Columns of one type are encoded column by column; arrays and objects, whose bytes depend on each
row's dictionary of names, row by row.

Protocol: parquet-format VariantShredding.md, VariantEncoding.md; PROTOCOL.md#variant-shredding
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.errors import UnreadableDataFileError

TYPED_VALUE = "typed_value"
_METADATA, _VALUE = "metadata", "value"
_NULL = b"\x00"
_MAX_DEPTH = 60
_SHORT_TEXT_BYTES = 64
_OBJECT, _ARRAY = 2, 3

_TRUE, _FALSE, _BINARY, _TEXT, _UUID = 1, 2, 15, 16, 20
_FIXED: Mapping[pa.DataType, int] = {
    pa.int8(): 3,
    pa.int16(): 4,
    pa.int32(): 5,
    pa.int64(): 6,
    pa.float64(): 7,
    pa.date32(): 11,
    pa.timestamp("us", "UTC"): 12,
    pa.timestamp("us"): 13,
    pa.float32(): 14,
    pa.time64("us"): 17,
    pa.timestamp("ns", "UTC"): 18,
    pa.timestamp("ns"): 19,
}
"""Type id in the encoding for Arrow's fixed-width types."""

_Bytes = npt.NDArray[np.uint8]


def assemble_variant(array: pa.StructArray) -> pa.StructArray:
    """Return a variant column with `metadata` and `value` alone.

    A field that is in neither column is missing from its object; elsewhere this is a variant null.

    Raises:
        UnreadableDataFileError: Columns contradict each other, or have types no variant can have.
    """
    metadata = pc.struct_field(array, _METADATA).cast(pa.binary())
    try:
        values = _encode_group(array, metadata, 0)
    except (IndexError, struct.error, ValueError) as error:
        raise UnreadableDataFileError(f"a shredded variant cannot be assembled: {error}") from error
    return pa.StructArray.from_arrays(
        [metadata, values.fill_null(_NULL)], [_METADATA, _VALUE], mask=array.is_null()
    )


def _encode_group(group: pa.StructArray, metadata: pa.Array, depth: int) -> pa.Array:
    """Return a group of `value` and `typed_value` as variants; null if it has neither.

    Args:
        metadata: The dictionary of each row.
    """
    if depth > _MAX_DEPTH:
        raise ValueError(f"nested deeper than {_MAX_DEPTH} levels")
    if not pa.types.is_struct(group.type):
        raise ValueError(f"a field of it is {group.type} and not a group")
    # `flatten` makes the children of a null group null.
    parts = dict(zip((item.name for item in group.type), group.flatten(), strict=True))
    rest, typed = parts.get(_VALUE), parts.get(TYPED_VALUE)
    if rest is None and typed is None:
        raise ValueError("a field of it has neither value nor typed_value")
    rest = pa.nulls(len(group), pa.binary()) if rest is None else rest.cast(pa.binary())
    if typed is None:
        return rest
    if pa.types.is_struct(typed.type):
        return _objects(typed, rest, metadata, depth)
    if pc.any(pc.and_(rest.is_valid(), typed.is_valid())).as_py():
        raise ValueError("a value that is not an object is in value and in typed_value")
    return pc.coalesce(_encode_typed(typed, metadata, depth), rest)


def _encode_typed(array: pa.Array, metadata: pa.Array, depth: int) -> pa.Array:
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _arrays(array, metadata, depth)
    if (type_id := _FIXED.get(kind)) is not None:
        width = kind.bit_width // 8
        whole = {1: pa.int8(), 2: pa.int16(), 4: pa.int32(), 8: pa.int64()}[width]
        numbers = array.view(whole).fill_null(0).to_numpy(zero_copy_only=False)
        return _build_width(type_id << 2, numbers.view(np.uint8).reshape(-1, width), array)
    if pa.types.is_boolean(kind):
        headers = pc.if_else(array, _TRUE << 2, _FALSE << 2).fill_null(0)
        none = np.empty((len(array), 0), np.uint8)
        return _build_width(headers.to_numpy(zero_copy_only=False).astype(np.uint8), none, array)
    if pa.types.is_decimal128(kind):
        return _decimals(array)
    if pa.types.is_fixed_size_binary(kind) and kind.byte_width == 16:
        return pc.binary_join_element_wise(bytes([_UUID << 2]), array.cast(pa.binary()), b"")
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if is_text or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _texts(array.cast(pa.binary()), is_text=is_text)
    raise ValueError(f"typed_value is {kind}, which is not a variant's type")


def _build_width(header: int | _Bytes, bodies: _Bytes, nulls_from: pa.Array) -> pa.Array:
    """Return variants of one size: a header byte, then their row of `bodies`."""
    count, width = bodies.shape
    rows = np.empty((count, width + 1), np.uint8)
    rows[:, 0] = header
    rows[:, 1:] = bodies
    offsets = np.arange(count + 1, dtype=np.int64) * (width + 1)
    found = pa.Array.from_buffers(
        pa.large_binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(rows)]
    )
    return pc.if_else(nulls_from.is_valid(), found, None).cast(pa.binary())


def _decimals(array: pa.Array) -> pa.Array:
    precision, scale = array.type.precision, array.type.scale
    type_id, width = (8, 4) if precision <= 9 else (9, 8) if precision <= 18 else (10, 16)
    # Wider decimals use the following bytes, little-endian.
    packed = pa.concat_arrays([array]) if array.offset == 0 else array.take(_all(len(array)))
    buffer = packed.buffers()[1]
    digits = np.frombuffer(buffer, np.uint8, len(array) * 16).reshape(-1, 16)[:, :width]
    scales = np.full((len(array), 1), scale, np.uint8)
    return _build_width(type_id << 2, np.hstack([scales, digits]), array)


def _all(count: int) -> pa.Array:
    return pa.array(np.arange(count))


def _texts(array: pa.Array, *, is_text: bool) -> pa.Array:
    sizes = pc.binary_length(array)
    lengths = sizes.fill_null(0).to_numpy(zero_copy_only=False).astype("<u4")
    type_id = _TEXT if is_text else _BINARY
    headers = _build_width(type_id << 2, lengths.view(np.uint8).reshape(-1, 4), array)
    if is_text:
        is_short = pc.less(sizes, _SHORT_TEXT_BYTES)
        short = _short_headers().take(pc.if_else(is_short, sizes, None))
        headers = pc.coalesce(short, headers)
    return pc.binary_join_element_wise(headers, array, b"")


@functools.cache
def _short_headers() -> pa.Array:
    # Created on demand: to create an array from a list, Arrow imports pandas if it is installed.
    return pa.array([bytes([1 | size << 2]) for size in range(_SHORT_TEXT_BYTES)])


def _arrays(array: pa.Array, metadata: pa.Array, depth: int) -> pa.Array:
    offsets = array.offsets.to_numpy().astype(np.int64)
    items = array.values.slice(offsets[0], offsets[-1] - offsets[0])
    owners = np.repeat(np.arange(len(array)), np.diff(offsets))
    encoded = _encode_group(items, metadata.take(pa.array(owners)), depth + 1)
    elements = encoded.fill_null(_NULL).to_pylist()
    spans = pairwise((offsets - offsets[0]).tolist())
    return pa.array(
        [
            _array(elements[start:end]) if is_there else None
            for (start, end), is_there in zip(spans, array.is_valid().to_pylist(), strict=True)
        ],
        pa.binary(),
    )


def _objects(typed: pa.StructArray, rest: pa.Array, metadata: pa.Array, depth: int) -> pa.Array:
    """Return objects: their shredded fields plus those of `rest`; `rest` itself if not shredded."""
    names = [item.name.encode() for item in typed.type]
    columns = [_encode_group(part, metadata, depth + 1).to_pylist() for part in typed.flatten()]
    rows = zip(*columns, strict=True) if columns else ((),) * len(typed)
    shredded = frozenset(names)
    found = []
    for row, other, is_object, dictionary in zip(
        rows, rest.to_pylist(), typed.is_valid().to_pylist(), metadata.to_pylist(), strict=True
    ):
        if not is_object:
            found.append(other)
            continue
        ids = _ids(dictionary)
        fields = {name: part for name, part in zip(names, row, strict=True) if part is not None}
        if other is not None:
            # Shredded fields are not in the rest, or are ignored there.
            fields |= {name: part for name, part in _fields(other, ids) if name not in shredded}
        if missing := fields.keys() - ids.keys():
            raise ValueError(f"the name {min(missing)!r} is not in its dictionary")
        found.append(_object(sorted(fields.items()), ids))
    return pa.array(found, pa.binary())


@lru_cache(maxsize=256)
def _ids(metadata: bytes) -> Mapping[bytes, int]:
    """Return the positions of the names in a dictionary."""
    if metadata[0] & 0x0F != 1:
        raise ValueError(f"metadata version {metadata[0] & 0x0F}")
    width = (metadata[0] >> 6) + 1
    count = _number(metadata, 1, width)
    start = 1 + width
    texts = start + (count + 1) * width
    _require(metadata, texts)
    ends = [_number(metadata, start + position * width, width) for position in range(count + 1)]
    _require(metadata, texts + ends[-1])
    spans = enumerate(pairwise(ends))
    return {metadata[texts + begin : texts + end]: position for position, (begin, end) in spans}


def _fields(value: bytes, ids: Mapping[bytes, int]) -> Iterable[tuple[bytes, bytes]]:
    """Yield names and values of the fields of an object."""
    if value[0] & 3 != _OBJECT:
        raise ValueError("its value for fields that are not shredded is not an object")
    names = list(ids)
    header = value[0] >> 2
    offset_width, id_width = (header & 3) + 1, (header >> 2 & 3) + 1
    count_width = 4 if header >> 4 & 1 else 1
    count = _number(value, 1, count_width)
    at = 1 + count_width
    offsets_at = at + count * id_width
    start = offsets_at + (count + 1) * offset_width
    _require(value, start)
    offsets = [
        _number(value, offsets_at + n * offset_width, offset_width) for n in range(count + 1)
    ]
    # Fields are ordered by name, their values are not: each ends where another begins.
    edges = sorted({*offsets, len(value) - start})
    ends = dict(pairwise(edges))
    for position in range(count):
        name = names[_number(value, at + position * id_width, id_width)]
        begin = offsets[position]
        _require(value, start + begin + 1)
        yield name, value[start + begin : start + ends[begin]]


def _number(data: bytes, at: int, width: int) -> int:
    _require(data, at + width)
    return int.from_bytes(data[at : at + width], "little")


def _require(data: bytes, length: int) -> None:
    if length > len(data):
        raise ValueError(f"{length} bytes are needed, and {len(data)} are there")


def _array(items: list[bytes]) -> bytes:
    offsets, width = _offsets(items)
    is_large = len(items) > 255
    header = _ARRAY | (width - 1 | is_large << 2) << 2
    count = len(items).to_bytes(4 if is_large else 1, "little")
    return b"".join([bytes([header]), count, offsets, *items])


def _object(fields: list[tuple[bytes, bytes]], ids: Mapping[bytes, int]) -> bytes:
    items = [item for _, item in fields]
    positions = [ids[name] for name, _ in fields]
    offsets, width = _offsets(items)
    id_width = _width(max(positions, default=0))
    is_large = len(items) > 255
    header = _OBJECT | (width - 1 | (id_width - 1) << 2 | is_large << 4) << 2
    count = len(items).to_bytes(4 if is_large else 1, "little")
    numbers = b"".join(position.to_bytes(id_width, "little") for position in positions)
    return b"".join([bytes([header]), count, numbers, offsets, *items])


def _offsets(items: list[bytes]) -> tuple[bytes, int]:
    ends, total = [0], 0
    for item in items:
        total += len(item)
        ends.append(total)
    width = _width(total)
    return b"".join(end.to_bytes(width, "little") for end in ends), width


def _width(largest: int) -> int:
    return max(1, (largest.bit_length() + 7) // 8)
