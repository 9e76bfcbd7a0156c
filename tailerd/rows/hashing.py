"""Hashes rows to 128 bits, column by column: equal rows, and no others, have equal hashes.

Equality, for all code that compares rows: null = null; NaN = NaN with any bits; -0.0 = 0.0;
decimals by value, both being of the schema's type; texts and binary by bytes; structs field by
field, a null struct being different from a struct of nulls; lists in order; maps as unordered sets
of entries; variants by value (`VariantEquality.BY_VALUE`), see `variant_values`.

**Collisions.** Two given rows that differ have equal hashes with a probability of about 2^-120 over
the seeds (see `hash_kernels`); among n rows the probability of any collision is n^2 * 2^-121: 2^-73
for 16 million. The seed must be random and unknown to the writers of the rows: for a known seed
colliding rows can be computed. The same seed yields the same hashes in every process.
"""

from __future__ import annotations

import enum
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailerd.changefeed.change_batch import VARIANT_FIELD
from tailerd.errors import BugError
from tailerd.rows.hash_kernels import (
    BLOCK_ROWS,
    U64,
    Bools,
    Factors,
    Rows,
    Sums,
    Texts,
    add_lengths,
    add_nulls,
    add_values,
    count_within_runs,
    draw_numbers,
    scramble_numbers,
    sum_runs,
)
from tailerd.rows.variant_encoding import (
    BAD_BYTES,
    VariantReader,
    bytes_at,
    signed_at,
    unsigned_at,
    variant_names,
)

_Path = tuple[int, ...]
_Numbers = npt.NDArray[np.integer | np.floating]


class VariantEquality(enum.Enum):
    """When two variants are equal."""

    BY_BYTES = enum.auto()
    """The same bytes: fast; equal values may differ, because names may be in any order."""
    BY_VALUE = enum.auto()
    """The same value; decoded row by row."""


HASHED_BYTES = 8 * 1024 * 1024
"""Hashed at a time: long texts take five times their size meanwhile."""


@dataclass(frozen=True, slots=True)
class RowHashes:
    """Hashes of rows: two columns of uint64, shape (n,) each."""

    first: U64
    second: U64

    def __len__(self) -> int:
        return len(self.first)

    def take(self, rows: Rows) -> RowHashes:
        """Return the hashes of the given rows."""
        return RowHashes(self.first[rows], self.second[rows])


class RowHasher:
    """Hashes rows of one schema.

    Args:
        schema: The columns; variants are marked by `VARIANT_FIELD`. Widths of integers and of
            offsets (`string`, `large_string`) do not matter to a hash, all else does.
        seed: Secret, at least 0, preferably 128 random bits.
        variants: When variants are equal.
    """

    def __init__(
        self,
        schema: pa.Schema,
        seed: int,
        variants: VariantEquality = VariantEquality.BY_VALUE,
    ) -> None:
        self._schema = schema
        self._columns = [
            _Column(field, seed, (number,), variants) for number, field in enumerate(schema)
        ]

    def hash(self, rows: pa.RecordBatch) -> RowHashes:
        """Return the hash of each row.

        Raises:
            BugError: The rows have other columns than the schema.
        """
        if rows.num_columns != len(self._columns):
            raise BugError(f"{rows.num_columns} columns for a schema of {len(self._columns)}")
        pieces = min(rows.num_rows, rows.nbytes // HASHED_BYTES + 1)
        if pieces <= 1:
            return self._hash(rows)
        step = -(-rows.num_rows // pieces)
        found = [self._hash(rows.slice(at, step)) for at in range(0, rows.num_rows, step)]
        return RowHashes(
            np.concatenate([each.first for each in found]),
            np.concatenate([each.second for each in found]),
        )

    def _hash(self, rows: pa.RecordBatch) -> RowHashes:
        parts = [
            part
            for column, array in zip(self._columns, rows.columns, strict=True)
            for part in column.parts(array)
        ]
        sums = _add_sums(parts, rows.num_rows)
        return RowHashes(sums.first, sums.second)


def has_variants(kind: pa.Field | pa.DataType | pa.Schema) -> bool:
    """Return whether a column, or a part of one, is a variant."""
    if isinstance(kind, pa.Field):
        return is_variant(kind) or has_variants(kind.type)
    if isinstance(kind, pa.Schema):
        return any(has_variants(field) for field in kind)
    return any(has_variants(kind.field(number)) for number in range(kind.num_fields))


def is_variant(field: pa.Field) -> bool:
    """Return whether a column is a variant."""
    return bool((field.metadata or {}).items() >= VARIANT_FIELD.items())


class _Part(Protocol):
    """The contribution of one flat column to the sums of its rows."""

    def add(self, rows: slice, sums: Sums) -> None: ...


def _add_sums(parts: list[_Part], count: int) -> Sums:
    """Return the sums of all parts, block by block."""
    sums = Sums(np.zeros(count, np.uint64), np.zeros(count, np.uint64))
    for first in range(0, count, BLOCK_ROWS):
        rows = slice(first, min(first + BLOCK_ROWS, count))
        block = Sums(sums.first[rows], sums.second[rows])
        for part in parts:
            part.add(rows, block)
    return sums


@dataclass(frozen=True, slots=True)
class _NumberPart:
    """Integers, times, booleans, words of decimals."""

    values: _Numbers
    is_null: Bools | None
    factors: Factors

    def add(self, rows: slice, sums: Sums) -> None:
        numbers = self._numbers(self.values[rows])
        if self.is_null is not None:
            nulls = self.is_null[rows]
            numbers[nulls] = 0
            add_nulls(nulls, self.factors, sums)
        add_values(numbers, self.factors, sums)

    def _numbers(self, values: _Numbers) -> U64:
        if not np.issubdtype(values.dtype, np.floating):
            return values.astype(np.uint64)
        canonical = values + values.dtype.type(0)  # Of -0.0 it makes 0.0.
        is_nan = np.isnan(canonical)
        if is_nan.any():
            canonical[is_nan] = np.nan
        return canonical.view(f"u{values.dtype.itemsize}").astype(np.uint64, copy=False)


@dataclass(frozen=True, slots=True)
class _TextPart:
    texts: Texts
    is_null: Bools | None
    factors: Factors

    def add(self, rows: slice, sums: Sums) -> None:
        if self.is_null is not None:
            add_nulls(self.is_null[rows], self.factors, sums)
        self.texts.add(rows, self.factors, sums)


@dataclass(frozen=True, slots=True)
class _NullPart:
    """Whether a struct or a list is null."""

    is_null: Bools
    factors: Factors

    def add(self, rows: slice, sums: Sums) -> None:
        add_nulls(self.is_null[rows], self.factors, sums)


@dataclass(frozen=True, slots=True)
class _SumsPart:
    """Lists and maps: sums of their elements, computed for all rows at once."""

    sums: Sums
    lengths: Rows
    factors: Factors

    def add(self, rows: slice, sums: Sums) -> None:
        sums.first += self.sums.first[rows]
        sums.second += self.sums.second[rows]
        add_lengths(self.lengths[rows], self.factors, sums)


class _Column:
    """One column, or part of a nested one, with its secret factors and those of its children."""

    def __init__(self, field: pa.Field, seed: int, path: _Path, variants: VariantEquality) -> None:
        kind = field.type
        self._is_decoded = is_variant(field) and variants is VariantEquality.BY_VALUE
        self._factors = Factors.derive(seed, path)
        words = kind.byte_width // 8 if pa.types.is_decimal(kind) else 0
        self._words = [Factors.derive(seed, (*path, 0, word)) for word in range(words)]
        self._children = [
            _Column(child, seed, (*path, 1, number), variants)
            for number, child in enumerate(_children(kind))
        ]

    def parts(self, array: pa.Array) -> Iterator[_Part]:
        """Yield the column's contributions to the hashes of its rows."""
        kind = array.type
        if self._is_decoded:
            yield from self._texts(canonical_variants(array))
        elif isinstance(kind, pa.BaseExtensionType):
            yield from self.parts(array.storage)
        elif pa.types.is_dictionary(kind):
            yield from self._dictionary(array)
        elif pa.types.is_struct(kind):
            yield from self._struct(array)
        elif pa.types.is_map(kind):
            yield from self._map(array)
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            yield from self._list(array)
        elif pa.types.is_fixed_size_list(kind):
            yield from self._list(array.cast(pa.list_(kind.value_field)))
        elif pa.types.is_null(kind):
            yield _NullPart(np.ones(len(array), np.bool_), self._factors)
        elif _is_text(kind):
            yield from self._texts(array)
        else:
            yield from self._numbers(array)

    def sums(self, array: pa.Array) -> Sums:
        """Return the sums of this column alone."""
        return _add_sums(list(self.parts(array)), len(array))

    def _struct(self, array: pa.StructArray) -> Iterator[_Part]:
        if array.null_count:
            yield _NullPart(find_nulls(array), self._factors)
        # `flatten` makes the children of a null struct null, whatever is stored there.
        for child, values in zip(self._children, array.flatten(), strict=True):
            yield from child.parts(values)

    def _dictionary(self, array: pa.DictionaryArray) -> Iterator[_Part]:
        kind = array.type.value_type
        if pa.types.is_nested(kind) or array.null_count or array.dictionary.null_count:
            yield from self.parts(array.dictionary_decode())
            return
        sums = self.sums(array.dictionary)
        positions = array.indices.to_numpy(zero_copy_only=False)
        taken = Sums(sums.first[positions], sums.second[positions])
        yield _SumsPart(taken, np.zeros(len(array), np.int64), self._factors)

    def _list(self, array: pa.ListArray) -> Iterator[_Part]:
        lengths, offsets = _ranges(array)
        [child] = self._children
        elements = child.sums(_take_ranges(array.values, array, offsets, lengths))
        positions = count_within_runs(lengths)
        factors = self._factors
        for values, seed in (
            (elements.first, factors.seed_first),
            (elements.second, factors.seed_second),
        ):
            values *= factors.scramble
            values.byteswap(inplace=True)
            values *= draw_numbers(positions, seed)
        yield from self._sum_elements(array, elements, lengths)

    def _map(self, array: pa.MapArray) -> Iterator[_Part]:
        lengths, offsets = _ranges(array)
        key, item = self._children
        keys = _take_ranges(array.keys, array, offsets, lengths)
        items = _take_ranges(array.items, array, offsets, lengths)
        entries = _add_sums([*key.parts(keys), *item.parts(items)], len(keys))
        # A sum has no order: without scrambling, parts of different entries could be swapped.
        summed = Sums(
            scramble_numbers(entries.first ^ self._factors.seed_first),
            scramble_numbers(entries.second ^ self._factors.seed_second),
        )
        yield from self._sum_elements(array, summed, lengths)

    def _sum_elements(self, array: pa.Array, elements: Sums, lengths: Rows) -> Iterator[_Part]:
        if array.null_count:
            yield _NullPart(find_nulls(array), self._factors)
        sums = Sums(sum_runs(elements.first, lengths), sum_runs(elements.second, lengths))
        yield _SumsPart(sums, lengths, self._factors)

    def _texts(self, array: pa.Array) -> Iterator[_Part]:
        is_null = find_nulls(array) if array.null_count else None
        yield _TextPart(split_texts(array, is_null), is_null, self._factors)

    def _numbers(self, array: pa.Array) -> Iterator[_Part]:
        is_null = find_nulls(array) if array.null_count else None
        if not self._words:
            yield _NumberPart(numbers_in(array), is_null, self._factors)
            return
        width = len(self._words)
        end = (array.offset + len(array)) * width
        # A buffer may be longer than its values, by a fraction of one value.
        words = np.frombuffer(array.buffers()[1] if end else b"", np.uint64, end)
        words = words[array.offset * width :]
        for number, factors in enumerate(self._words):
            yield _NumberPart(words[number::width], is_null, factors)


def _children(kind: pa.DataType) -> list[pa.Field]:
    if isinstance(kind, pa.BaseExtensionType):
        return _children(kind.storage_type)
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(number) for number in range(kind.num_fields)]


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_binary(kind)
        or types.is_large_string(kind)
        or types.is_large_binary(kind)
        or types.is_string_view(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )


def find_nulls(array: pa.Array) -> Bools:
    """Return which values are null; shape (n,)."""
    found: Bools = array.is_null().to_numpy(zero_copy_only=False)
    return found


def numbers_in(array: pa.Array) -> _Numbers:
    """Return a flat column's stored numbers; values at nulls are arbitrary.

    Raises:
        BugError: The type does not consist of fixed-width numbers.
    """
    kind, count = array.type, len(array)
    if not count:
        return np.empty(0, np.uint64)
    buffer = array.buffers()[1]
    if pa.types.is_boolean(kind):
        bits = np.frombuffer(buffer, np.uint8)
        bits = bits[array.offset // 8 : (array.offset + count + 7) // 8]
        first = array.offset % 8
        return np.unpackbits(bits, bitorder="little")[first : first + count]
    if not pa.types.is_primitive(kind) or kind.bit_width > 64:
        raise BugError(f"Rows with a column of type {kind} cannot be compared.")
    letter = "f" if pa.types.is_floating(kind) else "i"
    numbers = np.frombuffer(buffer, f"{letter}{kind.bit_width // 8}", array.offset + count)
    return numbers[array.offset :]


def split_texts(array: pa.Array, is_null: Bools | None) -> Texts:
    """Return the byte strings of a column of texts or binary; those of nulls are empty."""
    kind, count = array.type, len(array)
    if pa.types.is_fixed_size_binary(kind):
        starts = np.arange(array.offset, array.offset + count) * kind.byte_width
        lengths = np.full(count, kind.byte_width)
        data_buffer = array.buffers()[1]
    else:
        if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
            array = array.cast(pa.large_binary())
            kind = array.type
        is_large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
        _, offset_buffer, data_buffer = array.buffers()
        if not count or offset_buffer is None:
            offsets = np.zeros(count + 1, np.int64)
        else:
            width = np.int64 if is_large else np.int32
            found = np.frombuffer(offset_buffer, width, array.offset + count + 1)
            offsets = found[array.offset :].astype(np.int64)
        starts, lengths = offsets[:-1], np.diff(offsets)
    if is_null is not None:
        lengths[is_null] = 0
    data = np.frombuffer(data_buffer or b"", np.uint8)
    return Texts.pad(data, starts, lengths)


def _ranges(array: pa.Array) -> tuple[Rows, Rows]:
    """Return the length of each list, 0 if it is null, and all offsets."""
    if not len(array):
        return np.zeros(0, np.int64), np.zeros(1, np.int64)
    offsets = array.offsets.to_numpy().astype(np.int64)
    lengths = np.diff(offsets)
    if array.null_count:
        lengths[find_nulls(array)] = 0
    return lengths, offsets


def _take_ranges(values: pa.Array, array: pa.Array, offsets: Rows, lengths: Rows) -> pa.Array:
    """Return the elements of the lists, without those stored for null lists."""
    start, end = int(offsets[0]), int(offsets[-1])
    if int(lengths.sum()) == end - start:
        return values.slice(start, end - start)
    positions = np.repeat(offsets[:-1], lengths) + count_within_runs(lengths)
    return values.take(pa.array(positions))


# Equal, according to the encoding's equivalence classes: exact numbers of any width and scale (1,
# 1.00), short and long strings, timestamps in micro- and nanoseconds, objects whatever the order
# of their names. A float, a double and an exact number are never equal. NaN = NaN and -0.0 = 0.0,
# as in columns.
#
# Protocol: parquet-format VariantEncoding.md; PROTOCOL.md#variant-data-type

_INTEGERS = {3: 1, 4: 2, 5: 4, 6: 8}
_DECIMALS = {8: 4, 9: 8, 10: 16}
_TIMES = {12: (b"T", 1000), 13: (b"N", 1000), 18: (b"T", 1), 19: (b"N", 1)}
_FIXED = {11: (b"D", 4), 17: (b"c", 8), 20: (b"u", 16)}
_SIZED = {15: b"b", 16: b"s"}
_CONSTANTS = {0: b"n", 1: b"t", 2: b"f"}


def canonical_variants(array: pa.StructArray) -> pa.Array:
    """Return `large_binary`: equal bytes for equal variants, null for null.

    Bytes that are not a valid variant are equal only to themselves; decoding them raises the error.
    """
    metadata, value = array.type.get_field_index("metadata"), array.type.get_field_index("value")
    columns = array.flatten()
    is_there = array.is_valid().to_pylist()
    found = [
        canonical_variant(names or b"", data or b"") if there else None
        for there, names, data in zip(
            is_there, columns[metadata].to_pylist(), columns[value].to_pylist(), strict=True
        )
    ]
    return pa.array(found, pa.large_binary())


def canonical_variant(metadata: bytes, value: bytes) -> bytes:
    """Return bytes that are equal for variants of equal value."""
    try:
        return VariantReader(variant_names(metadata), value, _CANONICAL).read()
    except BAD_BYTES:
        return b"x" + _prefix_size(metadata) + value


class _Canonical:
    """Maps values to canonical bytes, as a `VariantMaker`."""

    def primitive(self, data: bytes, kind: int, position: int) -> bytes:
        return _primitive(data, kind, position)

    def short_string(self, text: bytes) -> bytes:
        return b"s" + _prefix_size(text)

    def object(self, members: Sequence[tuple[bytes, bytes]]) -> bytes:
        ordered = sorted(members)
        return b"o%d;" % len(ordered) + b"".join(
            _prefix_size(name) + made for name, made in ordered
        )

    def array(self, items: Sequence[bytes]) -> bytes:
        return b"a%d;" % len(items) + b"".join(items)


_CANONICAL = _Canonical()


def _primitive(data: bytes, kind: int, position: int) -> bytes:
    if kind in _CONSTANTS:
        return _CONSTANTS[kind]
    if kind in _INTEGERS:
        return _exact(signed_at(data, position, _INTEGERS[kind]), 0)
    if kind in _DECIMALS:
        scale = unsigned_at(data, position, 1)
        return _exact(signed_at(data, position + 1, _DECIMALS[kind]), scale)
    if kind in _TIMES:
        tag, factor = _TIMES[kind]
        return tag + b"%d;" % (signed_at(data, position, 8) * factor)
    if kind in _FIXED:
        tag, width = _FIXED[kind]
        return tag + bytes_at(data, position, width)
    if kind in _SIZED:
        length = unsigned_at(data, position, 4)
        return _SIZED[kind] + _prefix_size(bytes_at(data, position + 4, length))
    if kind == 7:
        return b"F" + _floating(data, position, "<d", 8)
    if kind == 14:
        return b"g" + _floating(data, position, "<f", 4)
    raise ValueError("type")


def _exact(unscaled: int, scale: int) -> bytes:
    if scale > 38:
        raise ValueError("scale")
    while scale and unscaled % 10 == 0:
        unscaled, scale = unscaled // 10, scale - 1
    return b"d%de%d;" % (unscaled, scale)


def _floating(data: bytes, position: int, form: str, width: int) -> bytes:
    [number] = struct.unpack(form, bytes_at(data, position, width))
    return struct.pack(form, math.nan if math.isnan(number) else number + 0.0)


def _prefix_size(data: bytes) -> bytes:
    return b"%d:" % len(data) + data
