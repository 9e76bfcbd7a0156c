"""Sinks over a receiver, and deliveries for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeMode, ChangeSourceKind, ChangeType
from tailerd.changefeed.offset import Offset, Version
from tailerd.changefeed.row_positions import RowPositions
from tailerd.changefeed.saved_offset import SavedOffset
from tailerd.records.json import JsonEncoder
from tailerd.sinks.base import Delivery
from tailerd.sinks.http.config import HttpSinkConfig
from tailerd.sinks.http.sink import HttpSink
from tailerd.sinks.resources import SinkResources
from tailerd.telemetry import Telemetry
from tailerd.telemetry.events import Event


def make_config(url: str, **fields: Any) -> HttpSinkConfig:
    return HttpSinkConfig.model_validate({"kind": "http", "url": url, "retry_for": "5s", **fields})


def make_sink(
    url: str, state: str | Path, reported: list[Event] | None = None, **fields: Any
) -> HttpSink:
    heard: list[Event] = [] if reported is None else reported
    resources = SinkResources(
        table="orders",
        encode=JsonEncoder().encode_lines,
        telemetry=Telemetry([heard.append]),
        state=str(state),
    )
    return HttpSink(make_config(url, **fields), resources)


def offset(version: int, position: int = 0) -> Offset:
    return Offset(table_id="table-1", version=Version(version), position=position)


def batch(version: int, ids: Sequence[int], first_row: int = 0) -> ChangeBatch:
    """Inserts of rows `id`, `name`; `first_row` is the position of the first one in its commit."""
    return ChangeBatch(
        rows=pa.record_batch(
            {
                "id": pa.array(ids, pa.int64()),
                "name": pa.array([f"n{number}" for number in ids], pa.string()),
            }
        ),
        change_type=ChangeType.INSERT,
        version=Version(version),
        timestamp_us=1_700_000_000_000_000,
        change_source=ChangeSourceKind.FILES,
        positions=RowPositions(table_id="table-1", files=0, rows=first_row),
    )


def delivery(version: int, *batches: ChangeBatch) -> Delivery:
    async def give() -> AsyncIterator[ChangeBatch]:
        for each in batches:
            yield each

    end = offset(batches[-1].version + 1)
    return Delivery(
        table="orders",
        start=offset(version),
        end=end,
        saved=SavedOffset(offset=end, changes=ChangeMode.AUTO),
        batches=give(),
    )
