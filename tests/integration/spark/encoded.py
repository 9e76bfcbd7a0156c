"""Encoded records as a DataFrame, made up for tests of the Kafka sink of Spark's queries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.spark.arrow_schema import declared_schema
from tailerd.spark.packed_records import PACKED_SCHEMA, packed
from tests.unit.spark.record_rows import piece_of

DAY_2026_US = 1_795_000_000_000_000
"""A commit time that topics keep."""


def config(bootstrap: str, topic: str, **more: Any) -> KafkaSinkConfig:
    section = {"kind": "kafka", "bootstrap_servers": bootstrap, "topic": topic, "key": ["id"]}
    return KafkaSinkConfig.model_validate({**section, **more})


@dataclass(slots=True)
class Rows:
    """Records of some tables, in the order of the calls."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self,
        version: int,
        keys: Iterable[int | None],
        *,
        table: str = "orders",
        topic: str,
        kind: str = "insert",
        value: str | None = "v{version}-{key}",
        partition: int | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
        reason: str = "",
    ) -> Rows:
        for key in keys:
            text = None if value is None else value.format(version=version, key=key)
            self.rows.append(
                {
                    "table": table,
                    "topic": topic,
                    "partition": partition,
                    "key": None if key is None else b"%d" % key,
                    "value": None if text is None else text.encode(),
                    "headers": headers,
                    "reason": reason,
                    "_change_type": kind,
                    "_commit_version": version,
                    "_commit_timestamp": DAY_2026_US + version,
                    "_order": len(self.rows),
                }
            )
        return self

    def frame(self, spark: SparkSession, partitions: int = 1) -> DataFrame:
        """Return them packed, each by itself; with several partitions, dealt to them in turns."""
        rows = packed(piece_of([row]) for row in self.rows)
        # Without a schema Spark takes numbers without a value for text.
        frame = spark.createDataFrame(
            pa.Table.from_batches(rows, declared_schema(PACKED_SCHEMA)), PACKED_SCHEMA
        )
        return frame.repartition(partitions) if partitions > 1 else frame.coalesce(1)
