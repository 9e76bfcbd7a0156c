"""Converts columns of a file to the table's schema.

Only casts that a table's history allows are made: wider numbers, other units of time, missing
columns as null. Everything else is an error that names the column and both types.
"""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.changefeed.change_batch import FIELD_ID, VARIANT_FIELD
from tailerd.errors import UnreadableDataFileError
from tailerd.reading.file_scan import FieldScan
from tailerd.reading.legacy_calendar import null_mask, own_offsets, zero_based
from tailerd.reading.shredded_variant import TYPED_VALUE, assemble_variant

_Key = TypeVar("_Key", str, bytes)


class FileFields:
    """The columns of a file, or the fields of a struct in it, indexed for lookup.

    A lookup takes constant time: a table may have ten thousand columns.

    Args:
        fields: The file's fields.
        names: Names in the file of all columns of the table, also of those that are not read.
    """

    def __init__(self, fields: Iterable[pa.Field], names: Collection[str] = ()) -> None:
        self._fields = tuple(fields)
        self._names = names
        self._by_name = _positions(
            (field.name, position) for position, field in enumerate(self._fields)
        )

    @cached_property
    def _by_folded_name(self) -> Mapping[str, list[str]]:
        """Names by the name that is the same for all cases, without names of other columns."""
        known = frozenset(self._names)
        found: dict[str, list[str]] = defaultdict(list)
        for name in self._by_name:
            if name not in known:
                found[fold_name(name)].append(name)
        return found

    @cached_property
    def _lacking(self) -> Counter[str]:
        """How many columns of the table that the file lacks have a folded name."""
        return Counter(fold_name(name) for name in self._names if name not in self._by_name)

    @cached_property
    def _by_id(self) -> Mapping[bytes, int]:
        ids = enumerate((field.metadata or {}).get(FIELD_ID) for field in self._fields)
        return _positions((number, position) for position, number in ids if number is not None)

    @property
    def have_ids(self) -> bool:
        """Whether any column has a field id."""
        return bool(self._by_id)

    def find(self, scan: FieldScan) -> int | None:
        """Return the position of the column of `scan`; None if the file lacks it.

        Engines differ in the case of column names, and Delta's names are case-insensitive. So a
        column is also found by a name that differs only in case, unless that is the exact name of
        another column of the table.

        Raises:
            UnreadableDataFileError: Several columns have its name, or its id.
        """
        if scan.field_id is not None and scan.other_names and not self.have_ids:
            named = (self._by_name[name] for name in scan.other_names if name in self._by_name)
            found = next(named, None)
        elif scan.field_id is not None:
            found = self._by_id.get(str(scan.field_id).encode())
        else:
            found = self._by_name.get(scan.name)
        if found == _SEVERAL:
            meant = f"the name {scan.name!r}" if scan.field_id is None else f"id {scan.field_id}"
            raise UnreadableDataFileError(f"several of its columns have {meant}")
        if found is not None or scan.field_id is not None:
            return found
        return self._find_folded(scan.name)

    def _find_folded(self, name: str) -> int | None:
        folded = fold_name(name)
        similar = self._by_folded_name.get(folded)
        if similar is None:
            return None
        found = self._by_name[similar[0]]
        if len(similar) > 1 or found == _SEVERAL:
            several = ", ".join(map(repr, similar))
            raise UnreadableDataFileError(
                f"several of its columns could be {name!r}, because case is ignored: {several}"
            )
        if self._lacking[folded] > 1:
            raise UnreadableDataFileError(
                f"its column {similar[0]!r} could be several of the table's columns, because case"
                " is ignored"
            )
        return found


_SEVERAL = -1


def _positions(keyed: Iterable[tuple[_Key, int]]) -> dict[_Key, int]:
    """Return positions by key; `_SEVERAL` if a key has more than one."""
    found: dict[_Key, int] = {}
    for key, position in keyed:
        found[key] = _SEVERAL if key in found else position
    return found


def conform(array: pa.Array, scan: FieldScan) -> pa.Array:
    """Return `array` with the type of `scan.target`.

    Raises:
        UnreadableDataFileError: The file's type does not fit the column's.
    """
    target = scan.target.type
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if scan.is_uuid and pa.types.is_fixed_size_binary(array.type):
        array = _format_uuids(array)
    if pa.types.is_null(array.type) or pa.types.is_null(target):
        # Writers use this type for any column with only nulls; a void column has no values.
        array = pa.nulls(len(array), target)
    elif pa.types.is_struct(target):
        array = _conform_struct(array, scan)
    elif pa.types.is_list(target):
        array = _conform_list(array, scan)
    elif pa.types.is_map(target):
        array = _conform_map(array, scan)
    elif array.type != target:
        array = _cast(array, scan)
    if scan.pad_to is not None:
        array = pc.utf8_rpad(array, width=scan.pad_to)
    return array


def missing_values(scan: FieldScan, count: int) -> pa.Array:
    """Return the values of a column that the file lacks."""
    if scan.missing is None:
        return pa.nulls(count, scan.target.type)
    return pa.repeat(scan.missing, count)


_HEX_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
_UUID_BYTES = 16
_UUID_CHARS = 36
_DASHES = [8, 13, 18, 23]


def _format_uuids(array: pa.Array) -> pa.Array:
    """Return the texts of UUIDs."""
    if array.type.byte_width != _UUID_BYTES:
        return array
    count = len(array)
    stored = np.frombuffer(array.buffers()[1] or b"", np.uint8)
    start = array.offset * _UUID_BYTES
    values = stored[start : start + count * _UUID_BYTES]
    texts = np.full((count, _UUID_CHARS), ord("-"), np.uint8)
    digits = np.stack([_HEX_DIGITS[values >> 4], _HEX_DIGITS[values & 15]], -1)
    at = np.delete(np.arange(_UUID_CHARS), _DASHES)
    texts[:, at] = digits.reshape(count, 2 * _UUID_BYTES)
    offsets = np.arange(0, (count + 1) * _UUID_CHARS, _UUID_CHARS, dtype=np.int32)
    found = pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(texts))
    return pc.if_else(array.is_valid(), found, None) if array.null_count else found


def _conform_struct(array: pa.Array, scan: FieldScan) -> pa.Array:
    target = scan.target.type
    if not pa.types.is_struct(array.type):
        raise _retype_error(array, scan)
    is_variant = (scan.target.metadata or {}).items() >= VARIANT_FIELD.items()
    if is_variant and array.type.get_field_index(TYPED_VALUE) >= 0:
        array = assemble_variant(array)
    fields = [array.type.field(index) for index in range(array.type.num_fields)]
    columns = array.flatten()
    positions = FileFields(fields, [child.name for child in scan.children])
    parts = []
    for child in scan.children:
        position = positions.find(child)
        parts.append(
            missing_values(child, len(array))
            if position is None
            else conform(columns[position], child)
        )
    targets = [target.field(index) for index in range(target.num_fields)]
    if not targets:
        return pa.array([{}] * len(array), target, mask=array.is_null().to_numpy(False))
    return pa.StructArray.from_arrays(parts, fields=targets, mask=null_mask(array))


def _conform_list(array: pa.Array, scan: FieldScan) -> pa.Array:
    if pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type):
        array = array.cast(pa.list_(array.type.value_field))
    elif pa.types.is_list_view(array.type) or pa.types.is_large_list_view(array.type):
        array = _convert_views(array)
    if not pa.types.is_list(array.type):
        raise _retype_error(array, scan)
    if len(array) == 0:
        return pa.nulls(0, scan.target.type)
    offsets, start, end = zero_based(array)
    values = conform(array.values.slice(start, end - start), scan.children[0])
    return pa.ListArray.from_arrays(
        own_offsets(offsets), values, type=scan.target.type, mask=null_mask(array)
    )


def _convert_views(array: pa.Array) -> pa.ListArray:
    """Return a list array from list views; PyArrow 26 leaves the last offset unset in its cast."""
    sizes = pc.if_else(array.is_valid(), array.sizes, 0)
    offsets = pa.concat_arrays(
        [pa.array([0], pa.int64()), pc.cumulative_sum(sizes.cast(pa.int64()))]
    )
    kind = pa.list_(array.type.value_field)
    return pa.ListArray.from_arrays(
        offsets.cast(pa.int32()), array.flatten(), type=kind, mask=null_mask(array)
    )


def _conform_map(array: pa.Array, scan: FieldScan) -> pa.Array:
    if not pa.types.is_map(array.type):
        raise _retype_error(array, scan)
    if len(array) == 0:
        return pa.nulls(0, scan.target.type)
    offsets, start, end = zero_based(array)
    key, item = scan.children
    keys = conform(array.keys.slice(start, end - start), key)
    items = conform(array.items.slice(start, end - start), item)
    return pa.MapArray.from_arrays(
        own_offsets(offsets), keys, items, type=scan.target.type, mask=null_mask(array)
    )


_Family = Callable[[pa.DataType], bool]


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_string_view(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


_CASTS: tuple[tuple[_Family, _Family], ...] = (
    (pa.types.is_integer, _is_number),
    (pa.types.is_float16, pa.types.is_floating),
    (pa.types.is_float32, pa.types.is_float64),
    (pa.types.is_decimal, pa.types.is_decimal),
    (pa.types.is_date, pa.types.is_timestamp),
    (pa.types.is_date64, pa.types.is_date32),
    (_is_text, _is_text),
)


_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""Ticks per second by unit."""


def _cast(array: pa.Array, scan: FieldScan) -> pa.Array:
    source, target = array.type, scan.target.type
    if pa.types.is_timestamp(source) and pa.types.is_timestamp(target):
        return _cast_timestamp(array, scan)
    if not any(is_from(source) and is_to(target) for is_from, is_to in _CASTS):
        raise _retype_error(array, scan)
    if pa.types.is_date64(source) and pa.types.is_date32(target):
        # A time of day is not part of a date.
        array = array.view(pa.timestamp("ms"))
    try:
        return array.cast(target)
    except pa.ArrowInvalid as error:
        raise _retype_error(array, scan, f": {error}") from error


def _cast_timestamp(array: pa.Array, scan: FieldScan) -> pa.Array:
    """Change the unit and keep the instant: files without a zone hold UTC.

    A finer unit is floored, as a clock of the coarser unit would; a coarser unit may exceed the
    range of the finer one.
    """
    source, target = array.type, scan.target.type
    numbers = array.view(pa.int64())
    factor = _TICKS[target.unit] / _TICKS[source.unit]
    if factor > 1:
        try:
            numbers = pc.multiply_checked(numbers, int(factor))
        except pa.ArrowInvalid as error:
            raise UnreadableDataFileError(
                f"column {scan.target.name} is {source} in the file and has a time beyond the"
                f" range of {target}"
            ) from error
    elif factor < 1:
        divisor = _TICKS[source.unit] // _TICKS[target.unit]
        quotients = pc.divide(numbers, divisor)
        is_above = pc.greater(pc.multiply(quotients, divisor), numbers)
        numbers = pc.subtract(quotients, is_above.cast(pa.int64()))
    return numbers.view(target)


def _retype_error(array: pa.Array, scan: FieldScan, detail: str = "") -> UnreadableDataFileError:
    return UnreadableDataFileError(
        f"column {scan.target.name} is {array.type} in the file and {scan.target.type} in the"
        f" table's schema{detail}"
    )


_SIGMA = "\N{GREEK CAPITAL LETTER SIGMA}"
_FINAL_SIGMA = "\N{GREEK SMALL LETTER FINAL SIGMA}"
_WORD = re.compile(r"\w+(?:[-.']\w+)*")


@functools.lru_cache(maxsize=16_384)
def fold_name(name: str) -> str:
    """Return the name in Java's lower case; names with the same result are the same to Spark.

    Case folding would also join names that are different to Spark, such as `straße` and `strasse`.
    Python's lower case differs from Java's in one letter: where Java sees the end of a word.
    """
    return _WORD.sub(_lower_word, name).lower() if _SIGMA in name else name.lower()


def _lower_word(match: re.Match[str]) -> str:
    """Return a word with its capital sigmas in lower case: final after a letter and before none."""
    word = match[0]
    cased = [position for position, letter in enumerate(word) if letter.lower() != letter.upper()]
    last = cased[-1]
    is_final = len(cased) > 1 and word[last] == _SIGMA
    lower = word.replace(_SIGMA, "\N{GREEK SMALL LETTER SIGMA}")
    return f"{lower[:last]}{_FINAL_SIGMA}{lower[last + 1 :]}" if is_final else lower
