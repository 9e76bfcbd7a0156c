"""Records that are no rows: offsets, dead letters, BEGIN and END of commits, gaps, heartbeats."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeSourceKind
from tailerd.changefeed.gap import Gap
from tailerd.changefeed.offset import Offset, Phase, Version
from tailerd.records.base import Records
from tailerd.sinks.kafka.outgoing import Outgoing
from tailerd.sinks.kafka.record_batches.record_batch import HEADER_BYTES, OversizeRecord
from tailerd.sinks.kafka.record_batches.record_layout import Header

TOO_LARGE = "record_too_large"
_ROOM_BYTES = HEADER_BYTES + 1024
"""What stands around key and value of a dead letter, headers included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideRecord:
    """One record of its own.

    Attributes:
        topic, partition: Where it goes.
        key, value: None for none.
        timestamp_ms: Milliseconds since the epoch.
    """

    topic: str
    partition: int = 0
    key: str | None
    value: str | None
    timestamp_ms: int


def outgoing(record: SideRecord, *, max_bytes: int) -> Outgoing:
    """Return a record of its own as what producers send."""
    key, value = ([None if t is None else t.encode()] for t in (record.key, record.value))
    return Outgoing(
        topic=record.topic,
        records=Records(keys=pa.array(key, pa.binary()), values=pa.array(value, pa.binary())),
        partitions=record.partition,
        timestamps_ms=record.timestamp_ms,
        max_bytes=max_bytes,
    )


def dead_letters(
    sent: Outgoing,
    oversize: tuple[OversizeRecord, ...],
    *,
    table: str,
    versions: Sequence[int],
    topic: str,
    max_bytes: int,
) -> Outgoing:
    """Return what is written instead of records that are too large for their topic.

    The key, and the value where the topic of dead letters takes it; else no value. Headers say
    why, and where the row is found.
    """
    rows = np.array([each.row for each in oversize], dtype=np.int64)
    records = sent.records.take(rows)
    times = sent.timestamps_ms
    keys, values = [], []
    for number, each in enumerate(oversize):
        key = None if records.keys is None else records.keys[number].as_py()
        fits = each.size_bytes + _ROOM_BYTES <= max_bytes
        # A key that alone is too large cannot be written anywhere.
        keys.append(key if key is None or len(key) + _ROOM_BYTES <= max_bytes else None)
        values.append(records.values[number].as_py() if fits else None)
    return Outgoing(
        topic=topic,
        records=Records(keys=pa.array(keys, pa.binary()), values=pa.array(values, pa.binary())),
        partitions=0,
        timestamps_ms=times if isinstance(times, int) else times[rows],
        headers=_reasons(sent, oversize, table, versions),
        max_bytes=max_bytes,
    )


def _reasons(
    sent: Outgoing, oversize: Sequence[OversizeRecord], table: str, versions: Sequence[int]
) -> tuple[Header, ...]:
    constants = {
        "tailerd.reason": TOO_LARGE,
        "tailerd.table": table,
        "tailerd.topic": sent.topic,
        "tailerd.limit_bytes": str(sent.max_bytes),
    }
    numbers = {
        "tailerd.commit_version": versions,
        "tailerd.size_bytes": [each.size_bytes for each in oversize],
    }
    headers = [Header(name=name, value=text.encode()) for name, text in constants.items()]
    for name, found in numbers.items():
        texts = [str(number).encode() for number in found]
        headers.append(Header(name=name, value=pa.array(texts, pa.binary())))
    return tuple(headers)


@dataclass(slots=True)
class CommitMarkers:
    """BEGIN and END around each commit with rows, in the shape of Debezium's transaction topic.

    Snapshots have none. Of a commit that comes in several deliveries, the first begins it and the
    last ends it; END says how many records it had only where one delivery had them all.
    """

    topic: str
    table: str
    _open: tuple[Version, int] | None = None
    _records: int = 0
    _is_whole: bool = True
    _id: str = field(default="")

    def rows(self, start: Offset, batch: ChangeBatch, num_records: int) -> list[SideRecord]:
        """Hear of rows that go out; return the markers that go before them."""
        if batch.change_source is ChangeSourceKind.SNAPSHOT or not batch.num_rows:
            return []
        markers: list[SideRecord] = []
        if self._open is None or self._open[0] != batch.version:
            markers += self._end()
            is_rest = start.version == batch.version and start.position > 0
            self._open = (batch.version, batch.timestamp_us // 1000)
            self._records, self._is_whole = 0, not is_rest
            self._id = f"{start.table_id}:{batch.version}"
            if not is_rest:
                markers.append(self._marker("BEGIN", None))
        self._records += num_records
        return markers

    def end(self, end: Offset) -> list[SideRecord]:
        """Hear that the delivery ends; return what ends the last commit, if it ends with it."""
        is_cut = (
            self._open is not None and end.phase is Phase.FOLLOW and end.version == self._open[0]
        )
        if is_cut:
            self._open = None
            return []
        return self._end()

    def _end(self) -> list[SideRecord]:
        if self._open is None:
            return []
        marker = self._marker("END", self._records if self._is_whole else None)
        self._open = None
        return [marker]

    def _marker(self, status: str, count: int | None) -> SideRecord:
        assert self._open is not None
        counts = None
        if count is not None:
            counts = [{"data_collection": self.table, "event_count": count}]
        value = {
            "status": status,
            "id": self._id,
            "event_count": count,
            "data_collections": counts,
            "ts_ms": self._open[1],
        }
        return SideRecord(
            topic=self.topic,
            key=json.dumps({"id": self._id}),
            value=json.dumps(value),
            timestamp_ms=self._open[1],
        )


def gap_record(gap: Gap, *, topic: str, now_ms: int) -> SideRecord:
    """Return what tells readers of the transaction topic that commits are missing."""
    identity = f"{gap.start.table_id}:gap:{gap.start.version}"
    value = {
        "status": "GAP",
        "id": identity,
        "data_collection": gap.table,
        "reason": gap.reason,
        "from": json.loads(gap.start.to_json()),
        "to": json.loads(gap.end.to_json()),
        "ts_ms": now_ms,
    }
    return SideRecord(
        topic=topic,
        key=json.dumps({"id": identity}),
        value=json.dumps(value),
        timestamp_ms=now_ms,
    )


def heartbeat(*, topic: str, table: str, version: int, now_ms: int) -> SideRecord:
    """Return what says that a pipeline lives; `version` is the next one it waits for."""
    return SideRecord(
        topic=topic,
        key=json.dumps({"table": table}),
        value=json.dumps({"table": table, "next_version": version, "ts_ms": now_ms}),
        timestamp_ms=now_ms,
    )
