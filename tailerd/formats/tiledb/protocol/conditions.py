"""Parses the condition of a delete: what must be true for a cell to stay. Pure.

A delete of `v >= 40` is stored as `v < 40`, and of `a or b` as `and` of negations; this is not in
the format specification (see `deletes_and_updates.cc`). So to find deleted cells, the stored
condition is negated. A cell for which the stored condition is not true is deleted, including nulls
and NaN, for which its negation is not true either.

Format specification: delete_commit_file.md, generic_tile.md, tile.md, filter_pipeline.md.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tailerd.errors import CorruptLogError, UnsupportedFeatureError

_HEADER = struct.Struct("<IQQBQBI")
"""Format, stored bytes, bytes, type, bytes of a cell, encryption, bytes of the filters."""
_CHUNK = struct.Struct("<III")
_GZIP = 1
_NO_FILTER = 0
_MAX_BYTES = 64 * 1024 * 1024
_DEEPEST = 200


class Operator(enum.IntEnum):
    """How a field is compared; only the first six are in the specification."""

    LESS = 0
    AT_MOST = 1
    GREATER = 2
    AT_LEAST = 3
    EQUAL = 4
    NOT_EQUAL = 5
    IN = 6
    NOT_IN = 7
    ALWAYS_TRUE = 253
    ALWAYS_FALSE = 254


_NEGATED = {
    Operator.LESS: Operator.AT_LEAST,
    Operator.AT_MOST: Operator.GREATER,
    Operator.GREATER: Operator.AT_MOST,
    Operator.AT_LEAST: Operator.LESS,
    Operator.EQUAL: Operator.NOT_EQUAL,
    Operator.NOT_EQUAL: Operator.EQUAL,
    Operator.IN: Operator.NOT_IN,
    Operator.NOT_IN: Operator.IN,
    Operator.ALWAYS_TRUE: Operator.ALWAYS_FALSE,
    Operator.ALWAYS_FALSE: Operator.ALWAYS_TRUE,
}


class Combination(enum.IntEnum):
    """How conditions are combined."""

    AND = 0
    OR = 1
    NOT = 2


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of a field with a value; the value has the encoding of the file."""

    operator: Operator
    field: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Combined:
    """Conditions, combined."""

    combination: Combination
    parts: tuple[Condition, ...]


Condition = Comparison | Combined


def negate(condition: Condition) -> Condition:
    """Return the condition that is true if another is false, for cells without nulls and NaN."""
    if isinstance(condition, Comparison):
        return Comparison(_NEGATED[condition.operator], condition.field, condition.value)
    if condition.combination is Combination.NOT:
        return condition.parts[0]
    other = Combination.OR if condition.combination is Combination.AND else Combination.AND
    return Combined(other, tuple(map(negate, condition.parts)))


def comparisons(condition: Condition) -> Iterator[Comparison]:
    """Yield every comparison of a condition."""
    if isinstance(condition, Comparison):
        yield condition
        return
    for part in condition.parts:
        yield from comparisons(part)


def read_condition(content: bytes, file: str) -> Condition:
    """Parse a delete's file: a generic tile with the tree of the condition.

    Args:
        file: Its name, for errors.

    Raises:
        CorruptLogError: It is damaged.
        UnsupportedFeatureError: It is encrypted, or has an unknown filter or operator.
    """
    try:
        tree = _unfilter(content, file)
        condition, end = _node(tree, 0, 0, file)
    except (struct.error, zlib.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise _damage_error(file, str(error)) from error
    if end != len(tree):
        raise _damage_error(file, f"{len(tree) - end} bytes follow the condition")
    return condition


def _damage_error(file: str, why: str) -> CorruptLogError:
    return CorruptLogError(
        f"The delete {file} cannot be read: {why}.",
        remedy="Restore it from a backup of the array.",
        path=file,
    )


def _unfilter(content: bytes, file: str) -> bytes:
    _, stored, size, _, _, encryption, pipeline = _HEADER.unpack_from(content)
    if encryption:
        raise UnsupportedFeatureError(
            f"The delete {file} is encrypted, which this release cannot read.", path=file
        )
    if size > _MAX_BYTES:
        raise ValueError(f"its condition has {size} bytes")
    filters = list(_filters(content[_HEADER.size : _HEADER.size + pipeline]))
    if any(each not in (_GZIP, _NO_FILTER) for each in filters):
        raise UnsupportedFeatureError(
            f"The delete {file} is stored with filters that this release does not support.",
            path=file,
        )
    start = _HEADER.size + pipeline
    data = content[start : start + stored]
    if len(data) != stored:
        raise ValueError(f"it ends after {len(content)} bytes")
    found = b"".join(_limit_parts(_chunks(data, is_packed=_GZIP in filters)))
    if len(found) != size:
        raise ValueError(f"its condition has {len(found)} bytes instead of {size}")
    return found


def _limit_parts(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield parts of a condition; a few bytes may become many."""
    left = _MAX_BYTES
    for part in parts:
        left -= len(part)
        if left < 0:
            raise ValueError(f"it becomes more than {_MAX_BYTES} bytes")
        yield part


def _filters(pipeline: bytes) -> Iterator[int]:
    """Yield the types of a pipeline's filters: u32 largest chunk, u32 count, then each."""
    count, at = int.from_bytes(pipeline[4:8], "little"), 8
    for _ in range(count):
        kind, size = struct.unpack_from("<BI", pipeline, at)
        yield kind
        at += 5 + size


def _chunks(data: bytes, *, is_packed: bool) -> Iterator[bytes]:
    count, at = int.from_bytes(data[:8], "little"), 8
    for _ in range(count):
        size, stored, meta_size = _CHUNK.unpack_from(data, at)
        at += _CHUNK.size
        meta, at = data[at : at + meta_size], at + meta_size
        body, at = data[at : at + stored], at + stored
        if size > _MAX_BYTES:
            raise ValueError(f"a chunk has {size} bytes")
        yield b"".join(_limit_parts(_parts(meta, body))) if is_packed else body


def _parts(meta: bytes, body: bytes) -> Iterator[bytes]:
    """Yield the decompressed parts of a chunk; metadata of other filters does not occur."""
    metas, count = struct.unpack_from("<II", meta)
    at = 0
    for number in range(metas + count):
        size, stored = struct.unpack_from("<II", meta, 8 + 8 * number)
        unpacked = zlib.decompressobj().decompress(body[at : at + stored], min(size, _MAX_BYTES))
        at += stored
        if number >= metas:
            yield unpacked


def _node(tree: bytes, at: int, depth: int, file: str) -> tuple[Condition, int]:
    if depth > _DEEPEST:
        raise ValueError("its condition is too deep")
    kind = tree[at]
    if kind == 1:
        return _comparison(tree, at + 1, file)
    if kind != 0:
        raise ValueError(f"a node is of the kind {kind}")
    combination = Combination(tree[at + 1])
    (count,) = struct.unpack_from("<Q", tree, at + 2)
    at += 10
    parts: list[Condition] = []
    if not 0 < count <= len(tree):
        raise ValueError(f"{count} conditions are combined")
    for _ in range(count):
        part, at = _node(tree, at, depth + 1, file)
        parts.append(part)
    if combination is Combination.NOT and count != 1:
        raise ValueError(f"{count} conditions are negated at once")
    return Combined(combination, tuple(parts)), at


def _comparison(tree: bytes, at: int, file: str) -> tuple[Condition, int]:
    try:
        operator = Operator(tree[at])
    except ValueError as error:
        raise UnsupportedFeatureError(
            f"The delete {file} compares with the operator {tree[at]}, which is not known.",
            path=file,
        ) from error
    field, at = _read_counted(tree, at + 1, "<I")
    value, at = _read_counted(tree, at, "<Q")
    if operator in (Operator.IN, Operator.NOT_IN):
        _, at = _read_counted(tree, at, "<Q")
    return Comparison(operator, field.decode(), value), at


def _read_counted(tree: bytes, at: int, size: str) -> tuple[bytes, int]:
    (count,) = struct.unpack_from(size, tree, at)
    start = at + struct.calcsize(size)
    if start + count > len(tree):
        raise ValueError("a value is cut off")
    return tree[start : start + count], start + count
