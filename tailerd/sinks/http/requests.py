"""Cut the records of a delivery into requests, lane by lane. Pure.

A lane has the events of some keys in order; it sends one request at a time. Requests
depend only on the records of a commit and on the delivery's start, not on the batches in which
records arrive. So a delivery that is repeated after a crash has the same requests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.offset import Version
from tailerd.records.base import Records
from tailerd.records.event_ids import ID_HEADER
from tailerd.rows.hashing import RowHasher

_KEY = pa.schema([pa.field("key", pa.large_binary())])
_HASHER_SEED = 0
"""Constant, so that a key is in the same lane after a restart; lanes need no secret."""

LaneRequest = tuple[int, "Events"]
"""The number of a lane, and the events of its next request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """The events of a request, in order.

    Attributes:
        values: Each event as JSON, `large_binary`.
        ids: Their ids, `large_binary`.
    """

    values: pa.Array
    ids: pa.Array

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, start: int, count: int | None = None) -> Self:
        """Return `count` events from `start` on, by default all, without copying."""
        return type(self)(values=self.values.slice(start, count), ids=self.ids.slice(start, count))

    def halve(self) -> tuple[Self, Self]:
        """Return the first and the second half of two events or more."""
        middle = len(self) // 2
        return self.slice(0, middle), self.slice(middle)

    def join(self, later: Self) -> Self:
        """Return these events and later ones."""
        return type(self)(
            values=pa.concat_arrays([self.values, later.values]),
            ids=pa.concat_arrays([self.ids, later.ids]),
        )

    def to_array(self) -> bytes:
        """Return a JSON array of the events."""
        return b"[" + _join(self.values, b",") + b"]"

    def idempotency_key(self, pipeline: str) -> str:
        """Return the id of a request with these events: a hash of the pipeline and the ids."""
        return hashlib.sha256(pipeline.encode() + b"\n" + _join(self.ids, b"\n")).hexdigest()


@dataclass(slots=True, kw_only=True)
class RequestCutter:
    """Assigns the events of one delivery to lanes, and cuts lanes into requests.

    Attributes:
        lanes: Number of lanes.
        max_events, max_bytes: Limits of a request; a larger event is a request by itself.
    """

    lanes: int
    max_events: int
    max_bytes: int
    _version: Version | None = None
    _rest: dict[int, Events] = field(default_factory=dict)
    _hasher: RowHasher = field(default_factory=lambda: RowHasher(_KEY, _HASHER_SEED))

    def add(self, batch: ChangeBatch, records: Records) -> list[LaneRequest]:
        """Return the requests that are complete, in turn for each lane.

        Args:
            batch: Rows of the delivery's next commit, or further rows of the same one.
            records: The records of these rows, with their ids in a header.
        """
        ready = self.finish() if batch.version != self._version else []
        self._version = batch.version
        if not len(records):
            return ready
        whole = Events(values=records.values.cast(pa.large_binary()), ids=_find_ids(records))
        numbers = self._number_lanes(records)
        requests = [
            list(self._cut(lane, whole if numbers is None else _select(whole, numbers == lane)))
            for lane in range(self.lanes)
        ]
        return ready + _take_turns(requests)

    def finish(self) -> list[LaneRequest]:
        """Return the requests of all remaining events."""
        rest, self._rest = self._rest, {}
        return sorted(rest.items(), key=lambda item: item[0])

    def _number_lanes(self, records: Records) -> npt.NDArray[np.uint64] | None:
        """Return the lane of each record; None if there is only one."""
        if self.lanes == 1 or records.keys is None:
            return None
        keys = pa.record_batch([records.keys.cast(pa.large_binary())], schema=_KEY)
        # The lower bits of this hash hardly depend on the upper bits of what is hashed.
        return (self._hasher.hash(keys).first >> np.uint64(32)) % np.uint64(self.lanes)

    def _cut(self, lane: int, events: Events) -> Iterator[Events]:
        """Yield the next requests of a lane; the last events stay until more arrive."""
        if (rest := self._rest.pop(lane, None)) is not None:
            events = rest.join(events)
        ends = np.cumsum(pc.binary_length(events.values).to_numpy(zero_copy_only=False) + 1)
        start, count = 0, len(events)
        while start < count:
            sent_bytes = int(ends[start - 1]) if start else 0
            fitting = int(np.searchsorted(ends, sent_bytes + self.max_bytes, "right"))
            end = min(max(fitting, start + 1), start + self.max_events, count)
            if end == count and end - start < self.max_events:
                self._rest[lane] = events.slice(start)
                return
            yield events.slice(start, end - start)
            start = end


def _select(events: Events, are_selected: npt.NDArray[np.bool_]) -> Events:
    rows = pa.array(np.flatnonzero(are_selected))
    return Events(values=events.values.take(rows), ids=events.ids.take(rows))


def _take_turns(requests: Sequence[Sequence[Events]]) -> list[LaneRequest]:
    """Return the first request of each lane, then the second ones, and so on.

    Lanes have short queues: with all requests of one lane first, the others would have no work.
    """
    rounds = zip_longest(*requests)
    return [(lane, each) for turn in rounds for lane, each in enumerate(turn) if each is not None]


def _find_ids(records: Records) -> pa.Array:
    [ids] = [header.value for header in records.headers if header.name == ID_HEADER]
    assert isinstance(ids, pa.Array)
    return ids.cast(pa.large_binary())


def _join(texts: pa.Array, separator: bytes) -> bytes:
    whole = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    joined: bytes = pc.binary_join(whole, pa.scalar(separator, texts.type))[0].as_py()
    return joined
