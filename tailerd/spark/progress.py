"""Spark's reports about a query, turned into the project's events."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from tailerd.changefeed.change_task import ChangeType
from tailerd.changefeed.offset import Offset
from tailerd.errors import OffsetError
from tailerd.telemetry import Telemetry
from tailerd.telemetry.events import (
    BacklogMeasured,
    DeliveryAcknowledged,
    Event,
    OffsetChosen,
    OffsetSaved,
)

ENGINE = "spark"
HEAD_VERSION = "head_version"
LAG_VERSIONS = "undelivered_versions"
DELIVERED_VERSION = "delivered_version"
OLDEST_MS = "oldest_undelivered_timestamp_ms"
"""Fields that the source adds to the offset it reports as its head: the newest version, the number
of unplanned versions, the newest version that is planned completely, and the commit time of the
oldest unplanned commit. Only a source can count its versions."""

OBSERVED = "tailerd"
FIRST_VERSION, LAST_VERSION = "first_version", "last_version"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """One micro-batch, or an idle trigger, as Spark reports it.

    Attributes:
        start, end, head: Offsets as the source returned them, as JSON text; empty if unknown.
        observed: The query's counters: rows by change type, first and last version.
        duration_seconds: Of the whole micro-batch.
    """

    start: str
    end: str
    head: str
    observed: Mapping[str, int | None]
    duration_seconds: float


def list_events(report: BatchReport, table: str, sink: str) -> list[Event]:
    """Return the events of a report: rows delivered, an offset saved, the backlog."""
    end = _fields(report.end)
    if end is None:
        return []
    version = int(end["version"])
    events: list[Event] = []
    if rows := _rows(report):
        events.append(
            DeliveryAcknowledged(
                table=table,
                sink=sink,
                engine=ENGINE,
                start_version=report.observed.get(FIRST_VERSION) or 0,
                end_version=report.observed.get(LAST_VERSION) or 0,
                rows=rows,
                bytes=0,
                duration_seconds=report.duration_seconds,
            )
        )
    if report.start != report.end:
        offset = Offset.from_json(report.end)
        events.append(
            OffsetSaved(
                table=table,
                engine=ENGINE,
                version=version,
                offset=offset.to_json(),
                duration_seconds=report.duration_seconds,
            )
        )
    if (head := _fields(report.head)) is not None:
        events.append(_backlog(table, version, head))
    return events


def emit_start(telemetry: Telemetry, name: str, resume_offset: Callable[[], Offset | None]) -> None:
    """Emit where a table resumes, if that is known; blocking as `resume_offset` is.

    Args:
        resume_offset: Reads where it resumes. Its `OffsetError` is ignored here: the query raises
            it if it cannot resume from there either.
    """
    with suppress(OffsetError):
        if (offset := resume_offset()) is not None:
            telemetry.emit(_begins_at(name, offset))


def _begins_at(table: str, offset: Offset) -> OffsetChosen:
    """Return the event of a resumed query; a query with nothing to do reports none itself."""
    return OffsetChosen(
        table=table,
        engine=ENGINE,
        version=offset.version,
        is_resumed=True,
        offset=offset.to_json(),
    )


def _rows(report: BatchReport) -> dict[str, int]:
    counts = ((kind.value, report.observed.get(kind.value) or 0) for kind in ChangeType)
    return {kind: count for kind, count in counts if count}


def _backlog(table: str, version: int, head: Mapping[str, str | int]) -> BacklogMeasured:
    lag_versions, oldest = int(head[LAG_VERSIONS]), head.get(OLDEST_MS)
    delivered = head.get(DELIVERED_VERSION)
    return BacklogMeasured(
        table=table,
        engine=ENGINE,
        version=version,
        head_version=int(head[HEAD_VERSION]),
        versions=lag_versions,
        oldest_timestamp_ms=int(oldest) if oldest is not None and lag_versions else None,
        delivered_version=None if delivered is None else int(delivered),
    )


def _fields(text: str) -> dict[str, str | int] | None:
    if text in ("", "null", "None"):
        return None
    fields: dict[str, str | int] | None = json.loads(text)
    return fields
