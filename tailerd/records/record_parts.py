"""Large batches in parts: texts of one part stay below the 2 GiB that 32-bit offsets reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.errors import LEAVE_OUT, START_BEHIND, TableError
from tailerd.records.json_leaves import value_bytes

MAX_PART_BYTES = 128 * 1024 * 1024
"""Arrow bytes of one part; JSON is seldom more than a few times as large."""


class Part(Protocol):
    """What is encoded in one piece unless it is too large."""

    @property
    def batch(self) -> ChangeBatch:
        """The rows of this part."""
        ...

    def halves(self) -> tuple[Self, Self] | None:
        """Return two parts that are not empty, in order; None when this is one record."""
        ...


P = TypeVar("P", bound=Part)


@dataclass(frozen=True, slots=True)
class RowPart:
    """Rows that do not depend on each other."""

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
    """Return the records of a part as `binary`, or as `large_binary` where it took several.

    Args:
        part: What to encode.
        encode: Gives a `string` array without nulls; may raise `pyarrow.ArrowCapacityError`.

    Raises:
        TableError: One record alone is too large.
    """
    texts = list(_texts(part, encode))
    if len(texts) == 1:
        return texts[0].cast(pa.binary())
    return pa.concat_arrays(
        [text.cast(pa.large_string()).cast(pa.large_binary()) for text in texts]
    )


def lines_in_parts(part: P, encode: Callable[[P], pa.Array]) -> bytes:
    """Return the bytes of all records one after the other; `encode` ends each with a line end.

    Raises:
        TableError: One record alone is too large.
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
                    remedy=f"Either {START_BEHIND}, or {LEAVE_OUT}.",
                ) from error
    for half in halves:
        yield from _texts(half, encode)
