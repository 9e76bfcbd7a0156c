"""One table's streaming query: options from the configuration, counters, sink, checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery

from tailerd.changefeed.change_batch import CHANGE_TYPE, COMMIT_VERSION
from tailerd.changefeed.change_task import ChangeType
from tailerd.config import TableConfig
from tailerd.errors import BugError
from tailerd.registry import AUTO
from tailerd.sinks.stream.config import StreamSinkConfig
from tailerd.spark.progress import FIRST_VERSION, LAST_VERSION, OBSERVED
from tailerd.spark.query_checkpoint import check_checkpoint, make_private
from tailerd.spark.query_errors import error_of


def start_query(
    spark: SparkSession,
    name: str,
    table: TableConfig,
    checkpoint: Path,
    *,
    once: bool,
    schema_version: int | None = None,
) -> StreamingQuery:
    """Start the query of a table; blocks for seconds.

    Args:
        schema_version: The version whose schema it has; None for the newest.

    Raises:
        TailerdError: As raised by the query's Python process.
    """
    sink = table.sink
    if not isinstance(sink, StreamSinkConfig):
        raise BugError(f"A sink of kind {sink.kind} is not one of Spark's own.")
    check_checkpoint(checkpoint)
    try:
        options = read_options(table)
        if schema_version is not None:
            options["schemaVersion"] = str(schema_version)
        changes = spark.readStream.format("tailerd").options(**options).load()
        writer = _counted(changes).writeStream.format(sink.format).outputMode("append")
        writer = writer.options(**sink.options).queryName(name)
        writer = writer.option("checkpointLocation", str(checkpoint))
        make_private(checkpoint)
        return (writer.trigger(availableNow=True) if once else writer).start()
    except PySparkException as error:
        raise error_of(str(error)) from error


def read_options(table: TableConfig) -> dict[str, str]:
    """Return the options of `format("tailerd")` for a table's configuration."""
    options = {
        "path": table.path,
        "changes": table.changes,
        "maxFilesPerTrigger": str(table.max_files_per_batch),
        "maxBytesPerTrigger": str(table.max_bytes_per_batch),
        "allowedPaths": json.dumps(table.allowed_paths),
    }
    if table.poll_interval is not None:
        options["pollInterval"] = str(table.poll_interval)
    if table.format != AUTO:
        options["tableFormat"] = table.format
    if table.partition_timezone is not None:
        options["partitionTimezone"] = table.partition_timezone
    if table.pairing_columns:
        options["identity"] = ",".join(table.pairing_columns)
    if table.ledger is not None:
        options["ledger"] = table.ledger
    if table.start == "snapshot":
        return {**options, "snapshot": "true"}
    if table.start == "latest" or table.start.isdigit():
        return {**options, "startingVersion": table.start}
    return {**options, "startingTimestamp": table.start}


def _counted(changes: DataFrame) -> DataFrame:
    """Count rows by change type on the way, for progress reports."""
    kind, version = sql.col(CHANGE_TYPE), sql.col(COMMIT_VERSION)
    counters = [sql.count_if(kind == each.value).alias(each.value) for each in ChangeType]
    first, last = sql.min(version).alias(FIRST_VERSION), sql.max(version).alias(LAST_VERSION)
    return changes.observe(OBSERVED, first, last, *counters)
