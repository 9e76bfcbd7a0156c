"""Records without rows: BEGIN and END of commits, gaps, heartbeats, and saved offsets."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeSourceKind
from tailerd.changefeed.gap import Gap
from tailerd.changefeed.offset import Offset, Phase, Version
from tailerd.pipeline_names import table_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRecord:
    """One record that does not contain a row.

    Attributes:
        topic, partition: Its destination.
        key, value: None if absent.
        timestamp_ms: Milliseconds since the epoch.
    """

    topic: str
    partition: int = 0
    key: str | None
    value: str | None
    timestamp_ms: int


@dataclass(slots=True)
class CommitMarkers:
    """BEGIN and END around each commit with rows, in the format of Debezium's transaction topic.

    Snapshots have none. For a commit in several deliveries, the first sends BEGIN and the last
    sends END; END has the number of records only if one delivery had all of them.
    """

    topic: str
    table: str
    _open: tuple[Version, int] | None = None
    _records: int = 0
    _is_whole: bool = True
    _id: str = field(default="")

    def rows(self, start: Offset, batch: ChangeBatch, num_records: int) -> list[ControlRecord]:
        """Count rows that are sent; return the markers to send before them."""
        if batch.change_source is ChangeSourceKind.SNAPSHOT or not batch.num_rows:
            return []
        markers: list[ControlRecord] = []
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

    def end(self, end: Offset) -> list[ControlRecord]:
        """End the delivery; return the last commit's END, if the commit ends with the delivery."""
        is_cut = (
            self._open is not None and end.phase is Phase.FOLLOW and end.version == self._open[0]
        )
        if is_cut:
            self._open = None
            return []
        return self._end()

    def _end(self) -> list[ControlRecord]:
        if self._open is None:
            return []
        marker = self._marker("END", self._records if self._is_whole else None)
        self._open = None
        return [marker]

    def _marker(self, status: str, count: int | None) -> ControlRecord:
        assert self._open is not None
        counts = None
        if count is not None:
            counts = [{"data_collection": table_of(self.table), "event_count": count}]
        value = {
            "status": status,
            "id": self._id,
            "event_count": count,
            "data_collections": counts,
            "ts_ms": self._open[1],
        }
        return ControlRecord(
            topic=self.topic,
            key=json.dumps({"id": self._id}),
            value=json.dumps(value),
            timestamp_ms=self._open[1],
        )


def gap_record(gap: Gap, *, topic: str, now_ms: int) -> ControlRecord:
    """Return the record that informs readers of the transaction topic about missing commits."""
    identity = f"{gap.start.table_id}:gap:{gap.start.version}"
    value = {
        "status": "GAP",
        "id": identity,
        "data_collection": table_of(gap.table),
        "reason": gap.reason,
        "from": json.loads(gap.start.to_json()),
        "to": json.loads(gap.end.to_json()),
        "ts_ms": now_ms,
    }
    return ControlRecord(
        topic=topic,
        key=json.dumps({"id": identity}),
        value=json.dumps(value),
        timestamp_ms=now_ms,
    )


def heartbeat(*, topic: str, table: str, version: int, now_ms: int) -> ControlRecord:
    """Return a pipeline's heartbeat record; `version` is the next one it waits for."""
    return ControlRecord(
        topic=topic,
        key=json.dumps({"table": table}),
        value=json.dumps({"table": table, "next_version": version, "ts_ms": now_ms}),
        timestamp_ms=now_ms,
    )
