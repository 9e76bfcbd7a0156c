"""Masks of values. Equal values always become equal masked values."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.changefeed.change_batch import TYPE
from tailerd.errors import UsageError
from tailerd.records.json_columns import column_texts, is_variant, plain_array
from tailerd.transforms.comparing import is_number

REDACTED = "***"
SHOWN = 4
"""Characters of a value that `partial` shows."""
_MIN_PARTIAL = 2 * SHOWN
"""Of shorter values they would be more than half."""
_BLOCK_BYTES = 64
_HASH_BYTES = 16
_MAX_KNOWN = 200_000
"""Hashes that are remembered, some tens of megabytes."""
_MAX_LISTED = 16_384
"""Distinct values of a column up to which looking them up costs less than hashing them."""
DATE_UNITS = ("year", "quarter", "month", "week", "day")
TIME_UNITS = (*DATE_UNITS, "hour", "minute", "second")


class MaskKind(enum.StrEnum):
    """How a value is replaced."""

    HASH = "hash"
    REDACT = "redact"
    NULL = "null"
    PARTIAL = "partial"
    TRUNCATE = "truncate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """How the values of a column are replaced.

    Attributes:
        kind: The kind.
        unit: For `TRUNCATE`: a unit of time, or a positive integer to whose multiples numbers are
            rounded towards zero.
    """

    kind: MaskKind
    unit: str = ""

    def check(self, field: pa.Field) -> None:
        """Make sure that a column can be masked so.

        Raises:
            UsageError: It cannot.
        """
        kind = field.type
        if self.kind is MaskKind.TRUNCATE:
            units: Sequence[str] = ()
            if pa.types.is_date(kind):
                units = DATE_UNITS
            elif pa.types.is_timestamp(kind):
                units = TIME_UNITS
            elif is_number(kind) and self.unit.isdigit() and int(self.unit) > 0:
                return
            if self.unit not in units:
                possible = f"one of {', '.join(units)}" if units else "a positive integer"
                if not units and not is_number(kind):
                    raise UsageError(
                        f"The mask `truncate` is for dates, times and numbers; {field.name!r} has"
                        f" the type {kind}.",
                        remedy="Use hash, redact or null.",
                    )
                raise UsageError(
                    f"The mask `truncate` of {field.name!r} is {self.unit!r}.",
                    remedy=f"Write {possible}.",
                )
        elif self.kind is MaskKind.PARTIAL and (pa.types.is_nested(kind) or is_variant(field)):
            raise UsageError(
                f"The mask `partial` is not for {field.name!r}, which has the type {kind}.",
                remedy="Use hash, redact or null.",
            )

    def field(self, field: pa.Field) -> pa.Field:
        """Return the field of the masked values."""
        metadata = {k: v for k, v in (field.metadata or {}).items() if k != TYPE}
        match self.kind:
            case MaskKind.HASH | MaskKind.PARTIAL:
                return pa.field(field.name, pa.string(), field.nullable, metadata)
            case MaskKind.TRUNCATE:
                return field
            case MaskKind.REDACT if _is_text(field.type):
                return pa.field(field.name, pa.string(), field.nullable, metadata)
            case _:
                return field.with_nullable(True)

    def values(self, values: pa.Array, field: pa.Field, hasher: Hasher) -> pa.Array:
        """Return the masked values; null stays null.

        Args:
            field: Of the values.
            hasher: For `HASH`.
        """
        match self.kind:
            case MaskKind.HASH:
                return hasher.hash(values, field)
            case MaskKind.PARTIAL:
                return _partial(values, field)
            case MaskKind.TRUNCATE:
                return _truncate(values, self.unit)
            case MaskKind.REDACT if _is_text(field.type):
                return pc.if_else(values.is_null(), None, pa.scalar(REDACTED, pa.string()))
            case _:
                return pa.nulls(len(values), field.type)


class Hasher:
    """Hashes values with a secret key; thread-safe. Remembers the hashes of some values.

    Args:
        key: The secret.
    """

    def __init__(self, key: bytes) -> None:
        key = hashlib.sha256(key).digest() if len(key) > _BLOCK_BYTES else key
        key = key.ljust(_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha256(key.translate(_XOR_36))
        self._outer = hashlib.sha256(key.translate(_XOR_5C))
        self._known: dict[str, str] = {}
        self._listed: dict[tuple[str, pa.DataType], tuple[pa.Array, pa.Array] | None] = {}

    def hash(self, values: pa.Array, field: pa.Field) -> pa.Array:
        """Return HMAC-SHA-256 of the JSON texts of values: the first 16 bytes, in hexadecimal.

        Equal values have equal texts, whatever the width of their type. Each distinct value of a
        batch is hashed once, and those that many batches have once for all.
        """
        values = plain_array(values)
        listed = self._find_listed(values, field)
        if listed is not None:
            return listed
        if pa.types.is_nested(values.type):
            # Arrow has no dictionaries of nested values.
            texts = column_texts(values, field, quote_decimals=False).complete()
            codes = pc.if_else(values.is_null(), None, texts).dictionary_encode()
            return self._hash_texts(codes.dictionary).take(codes.indices)
        codes = values.dictionary_encode()
        return self._hash_values(codes.dictionary, field).take(codes.indices)

    def _find_listed(self, values: pa.Array, field: pa.Field) -> pa.Array | None:
        """Return the hashes of values of a column that has few distinct ones; None for others.

        Arrow finds them without an object for each distinct value of each batch.
        """
        listed = self._listed.get((field.name, values.type), _nothing(values.type))
        if listed is None:
            return None
        known, hashes = listed
        found = pc.index_in(values, value_set=known)
        if found.null_count > values.null_count:
            new = values.filter(pc.and_not(found.is_null(), values.is_null())).unique()
            if len(known) + len(new) > _MAX_LISTED:
                self._listed[field.name, values.type] = None
                return None
            known = pa.concat_arrays([known, new])
            hashes = pa.concat_arrays([hashes, self._hash_values(new, field)])
            self._listed[field.name, values.type] = known, hashes
            found = pc.index_in(values, value_set=known)
        return hashes.take(found)

    def _hash_values(self, values: pa.Array, field: pa.Field) -> pa.Array:
        return self._hash_texts(column_texts(values, field, quote_decimals=False).complete())

    def _hash_texts(self, texts: pa.Array) -> pa.Array:
        if len(self._known) > _MAX_KNOWN:
            self._known = {}
        known = self._known
        hashes = [known.get(text) or self._hash(text) for text in texts.to_pylist()]
        return pa.array(hashes, pa.string())

    def _hash(self, text: str) -> str:
        first, second = self._inner.copy(), self._outer.copy()
        first.update(text.encode())
        second.update(first.digest())
        found = self._known[text] = second.hexdigest()[: 2 * _HASH_BYTES]
        return found


def _nothing(kind: pa.DataType) -> tuple[pa.Array, pa.Array] | None:
    is_listed = pa.types.is_string(kind) or pa.types.is_integer(kind)
    return (pa.array([], kind), pa.array([], pa.string())) if is_listed else None


_XOR_36 = bytes(byte ^ 0x36 for byte in range(256))
_XOR_5C = bytes(byte ^ 0x5C for byte in range(256))


def _partial(values: pa.Array, field: pa.Field) -> pa.Array:
    texts = plain_array(values)
    if not pa.types.is_string(texts.type):
        texts = column_texts(values, field, quote_decimals=False).complete()
        texts = pc.utf8_trim(texts, '"')
    shown = pc.binary_join_element_wise(REDACTED, pc.utf8_slice_codeunits(texts, -SHOWN), "")
    is_long = pc.greater_equal(pc.utf8_length(texts), _MIN_PARTIAL)
    found = pc.if_else(is_long, shown, REDACTED)
    return pc.if_else(values.is_null(), None, found) if values.null_count else found


def _truncate(values: pa.Array, unit: str) -> pa.Array:
    """Return times at the start of their unit, and numbers rounded towards zero."""
    kind = values.type
    if pa.types.is_temporal(kind):
        return pc.floor_temporal(values, unit=unit).cast(kind)
    step = int(unit)
    if pa.types.is_floating(kind):
        numbers = values.cast(pa.float64())
        return pc.multiply(pc.trunc(pc.divide(numbers, float(step))), float(step)).cast(kind)
    if pa.types.is_decimal(kind):
        # In Arrow the product of two decimals has more digits than its type.
        codes = values.dictionary_encode()
        whole = [int(value.as_py()) for value in codes.dictionary]
        rounded = [abs(number) // step * (step if number > 0 else -step) for number in whole]
        return pa.array(map(Decimal, rounded), kind).take(codes.indices)
    numbers = values.fill_null(0).to_numpy()
    most = int(np.iinfo(numbers.dtype).max)
    found = numbers - np.fmod(numbers, step) if step <= most else np.zeros_like(numbers)
    return pa.array(found, kind, mask=values.is_null().to_numpy(zero_copy_only=False))


def _is_text(kind: pa.DataType) -> bool:
    return any(
        check(kind)
        for check in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_string_view,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_binary_view,
            pa.types.is_fixed_size_binary,
        )
    )
