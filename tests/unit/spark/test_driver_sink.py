"""Micro-batches that the driver delivers through a sink of any kind."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from tailerd.changefeed.offset import Offset, Version
from tailerd.config import TableConfig
from tailerd.config.sections import read_sink
from tailerd.spark.driver_sink import DriverSink
from tailerd.spark.spark_offset import end_fields, fields_of, initial_fields
from tailerd.telemetry import Telemetry


class MicroBatch:
    """Rows of version 1, as a data frame gives them."""

    def _collect_as_arrow(self) -> list[pa.RecordBatch]:
        row: dict[str, Any] = {"id": 7, "_change_type": "insert", "_commit_version": 1}
        time = pa.array([datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))
        return [pa.RecordBatch.from_pylist([row]).append_column("_commit_timestamp", time)]


def test_the_console_prints_each_micro_batch(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    first, second = (Offset(table_id="t", version=Version(number)) for number in (1, 2))
    ends = [
        end_fields(initial_fields(first), second),
        fields_of(Offset(table_id="t", version=Version(3))),
    ]
    (tmp_path / "offsets").mkdir()
    for number, end in enumerate(ends):
        (tmp_path / f"offsets/{number}").write_text(f"v1\n{{}}\n{json.dumps(end)}")
    section = {"path": "/lake/t", "sink": read_sink("sink", {"kind": "console"})}
    sink = DriverSink("t", TableConfig.model_validate(section), tmp_path, Telemetry(), "tailerd")
    for number in (0, 1):
        sink.write(cast("DataFrame", MicroBatch()), number)
    sink.close()
    sink.close()
    lines = capfdbinary.readouterr().out.splitlines()
    assert [json.loads(line)["id"] for line in lines] == [7, 7]
