"""Merge records of small commits: a few full batches cost a tenth of many small ones. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailerd.records.base import Header, Records
from tailerd.sinks.kafka.produce_request import ProduceRequest

_ENOUGH_BYTES = 2 * 1024**2
_MAX_HELD_BYTES = 8 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Versioned:
    """Records of one topic, with their commit versions.

    Attributes:
        request: The records.
        versions: One for all records, or one for each.
    """

    request: ProduceRequest
    versions: int | npt.NDArray[np.int64]


@dataclass(slots=True)
class _Buffer:
    pieces: list[Versioned] = field(default_factory=list)
    size_bytes: int = 0


class BatchCoalescer:
    """Buffers small pieces of each topic until they are worth sending; preserves their order."""

    def __init__(self) -> None:
        self._buffers: dict[str, _Buffer] = {}

    def add(self, piece: Versioned) -> Iterator[Versioned]:
        """Add a piece; yield the pieces to send now."""
        topic, size = piece.request.topic, _size_bytes(piece.request.records)
        buffer = self._buffers.get(topic)
        if buffer is not None and not _fits(buffer.pieces[-1].request, piece.request):
            yield self._flush(topic)
            buffer = None
        if buffer is None and size >= _ENOUGH_BYTES:
            yield piece
            return
        buffer = self._buffers.setdefault(topic, _Buffer())
        buffer.pieces.append(piece)
        buffer.size_bytes += size
        if buffer.size_bytes >= _ENOUGH_BYTES:
            yield self._flush(topic)
        elif sum(each.size_bytes for each in self._buffers.values()) >= _MAX_HELD_BYTES:
            yield from self.rest()

    def rest(self) -> Iterator[Versioned]:
        """Yield all buffered pieces."""
        for topic in list(self._buffers):
            yield self._flush(topic)

    def _flush(self, topic: str) -> Versioned:
        return _join_pieces(self._buffers.pop(topic).pieces)


def _fits(first: ProduceRequest, other: ProduceRequest) -> bool:
    return (
        _have_alike_headers(first.headers, other.headers)
        and first.max_bytes == other.max_bytes
        and (first.records.keys is None) == (other.records.keys is None)
    )


def _have_alike_headers(first: Sequence[Header], other: Sequence[Header]) -> bool:
    """Return whether headers can be merged: the same names in order, and equal constants."""
    if len(first) != len(other):
        return False
    for mine, others in zip(first, other, strict=True):
        is_column = isinstance(mine.value, pa.Array)
        if mine.name != others.name or is_column != isinstance(others.value, pa.Array):
            return False
        if not is_column and mine.value != others.value:
            return False
    return True


def _joined_headers(pieces: Sequence[Sequence[Header]]) -> tuple[Header, ...]:
    return tuple(
        Header(name=some[0].name, value=_concatenate_arrays([each.value for each in some]))
        if isinstance(some[0].value, pa.Array)
        else some[0]
        for some in zip(*pieces, strict=True)
    )


def _join_pieces(pieces: Sequence[Versioned]) -> Versioned:
    first = pieces[0]
    if len(pieces) == 1:
        return first
    parts = [piece.request for piece in pieces]
    counts = [len(part.records) for part in parts]
    keys = [part.records.keys for part in parts]
    return Versioned(
        request=replace(
            first.request,
            records=Records(
                keys=None if keys[0] is None else _concatenate_arrays(keys),
                values=_concatenate_arrays([part.records.values for part in parts]),
            ),
            partitions=_join_values([part.partitions for part in parts], counts),
            timestamps_ms=_join_values([part.timestamps_ms for part in parts], counts),
            headers=_joined_headers([part.headers for part in parts]),
        ),
        versions=_join_values([piece.versions for piece in pieces], counts),
    )


def _join_values(
    values: Sequence[int | npt.NDArray[np.integer]], counts: Sequence[int]
) -> int | npt.NDArray[np.int64]:
    """Return a number for each record, or one for all if they are equal."""
    numbers = [value for value in values if isinstance(value, int)]
    if len(numbers) == len(values) and len(set(numbers)) == 1:
        return numbers[0]
    return np.concatenate(
        [
            np.full(count, value, dtype=np.int64)
            if isinstance(value, int)
            else value.astype(np.int64)
            for value, count in zip(values, counts, strict=True)
        ]
    )


def _concatenate_arrays(arrays: Sequence[pa.Array]) -> pa.Array:
    # Arrays of large values have 64-bit offsets.
    kinds = {array.type for array in arrays}
    kind = kinds.pop() if len(kinds) == 1 else pa.large_binary()
    return pa.concat_arrays([array.cast(kind) for array in arrays])


def _size_bytes(records: Records) -> int:
    keys = 0 if records.keys is None else records.keys.nbytes
    return int(records.values.nbytes) + int(keys)
