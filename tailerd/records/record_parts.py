"""Encode large batches in parts, whose texts stay below the 2 GiB limit of 32-bit offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.errors import TableError
from tailerd.records.json_leaves import value_bytes
from tailerd.remedies import LEAVE_OUT, START_AFTER

MAX_PART_BYTES = 128 * 1024 * 1024
"""Maximum Arrow bytes of a part; its JSON is rarely more than a few times as large."""


class Part(Protocol):
    """Rows that are encoded at once unless they are too large."""

    @property
    def batch(self) -> ChangeBatch:
        """The rows of this part."""
        ...

    def halves(self) -> tuple[Self, Self] | None:
        """Return two non-empty parts, in order; None if this is a single record."""
        ...


P = TypeVar("P", bound=Part)


@dataclass(frozen=True, slots=True)
class RowPart:
    """Rows that are encoded independently of each other."""

    batch: ChangeBatch

    def halves(self) -> tuple[RowPart, RowPart] | None:
        """Return the first and the second half of the rows, without copying."""
        count = self.batch.num_rows
        if count < 2:
            return None
        half = count // 2
        first, second = self.batch.slice(0, half), self.batch.slice(half, count - half)
        return RowPart(first), RowPart(second)


def encode_in_parts(part: P, encode: Callable[[P], pa.Array]) -> pa.Array:
    """Return the records of a part as `binary`, or as `large_binary` if it was split.

    Args:
        part: The rows to encode.
        encode: Returns a `string` array without nulls; may raise `pyarrow.ArrowCapacityError`.

    Raises:
        TableError: A single record is too large.
    """
    texts = list(_texts(part, encode))
    if len(texts) == 1:
        return texts[0].cast(pa.binary())
    return pa.concat_arrays(
        [text.cast(pa.large_string()).cast(pa.large_binary()) for text in texts]
    )


def lines_in_parts(part: P, encode: Callable[[P], pa.Array]) -> bytes:
    """Return the concatenated bytes of all records; `encode` ends each with a line break.

    Raises:
        TableError: A single record is too large.
    """
    return b"".join(value_bytes(text)[0].tobytes() for text in _texts(part, encode))


def _texts(part: P, encode: Callable[[P], pa.Array]) -> Iterator[pa.Array]:
    halves = part.halves() if part.batch.rows.nbytes > MAX_PART_BYTES else None
    if halves is None:
        try:
            yield encode(part)
            return
        except pa.ArrowCapacityError as error:
            halves = part.halves()
            if halves is None:
                raise TableError(
                    f"A row of version {part.batch.version} gives more than 2 GiB of text, because"
                    " it holds very large values.",
                    remedy=f"Either {START_AFTER}, or {LEAVE_OUT}.",
                ) from error
    for half in halves:
        yield from _texts(half, encode)
