"""One table's streaming query: options from the configuration, counters, sink, checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tailerd.changefeed.change_batch import CHANGE_TYPE, COMMIT_VERSION
from tailerd.changefeed.change_task import ChangeType
from tailerd.config import SinkConfig, TableConfig
from tailerd.errors import ConfigError, SinkError
from tailerd.registry import AUTO, is_remote
from tailerd.sinks.file.config import FileSinkConfig
from tailerd.sinks.file.owner import FolderOwner
from tailerd.sinks.stream.config import StreamSinkConfig
from tailerd.spark.driver_sink import DriverSink
from tailerd.spark.progress import FIRST_VERSION, LAST_VERSION, OBSERVED
from tailerd.spark.query_checkpoint import check_checkpoint, private_checkpoint
from tailerd.spark.query_errors import error_of


def start_query(
    spark: SparkSession,
    name: str,
    table: TableConfig,
    checkpoint: Path,
    *,
    once: bool,
    schema_version: int | None = None,
    hints: Path | None = None,
    owner: FolderOwner | None = None,
    driver: DriverSink | None = None,
) -> StreamingQuery:
    """Start the query of a table; blocking, seconds.

    Args:
        hints: Where hints of tables in buckets are left, in a folder for each table's name.
        schema_version: The version whose schema it has; None for the newest.
        owner: Of a file sink's folder.
        driver: Delivers for sinks that only the driver's process can write to.

    Raises:
        TailerdError: What was wrong, as the query's Python process raised it.
    """
    check_checkpoint(checkpoint)
    try:
        options = read_options(table)
        if hints is not None and is_remote(table.path):
            options["hintsFolder"] = str(hints / name)
        if schema_version is not None:
            options["schemaVersion"] = str(schema_version)
        changes = spark.readStream.format("tailerd").options(**options).load()
        writer = _to_sink(_counted(changes).writeStream, table.sink, driver)
        if owner is not None:
            writer = writer.option("owner", _held(owner))
        writer = writer.queryName(name).option("checkpointLocation", str(checkpoint))
        is_stream = isinstance(table.sink, StreamSinkConfig)
        with private_checkpoint(spark, checkpoint, has_own_files=is_stream):
            return (writer.trigger(availableNow=True) if once else writer).start()
    except PySparkException as error:
        raise error_of(str(error)) from error


def read_options(table: TableConfig) -> dict[str, str]:
    """Return the options of `format("tailerd")` that mean what the configuration says."""
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
    """Count rows by change type on the way, so that progress reports can tell them."""
    kind, version = sql.col(CHANGE_TYPE), sql.col(COMMIT_VERSION)
    counters = [sql.count_if(kind == each.value).alias(each.value) for each in ChangeType]
    first, last = sql.min(version).alias(FIRST_VERSION), sql.max(version).alias(LAST_VERSION)
    return changes.observe(OBSERVED, first, last, *counters)


def _to_sink(
    writer: DataStreamWriter, sink: SinkConfig, driver: DriverSink | None
) -> DataStreamWriter:
    match sink:
        case FileSinkConfig(path=path, format=output, max_bytes_per_file=size, mode=mode):
            written = writer.format("tailerd").options(
                path=path, output=output, maxBytesPerFile=str(size)
            )
            return written if mode is None else written.option("fileMode", mode)
        case StreamSinkConfig(format=kind, options=options):
            return writer.format(kind).outputMode("append").options(**options)
        case _ if driver is not None and sink.implementation:
            return writer.foreachBatch(driver.write)
        case _:
            raise ConfigError(
                f"The Spark engine cannot write to a sink of kind {sink.kind!r}.",
                remedy="Use console, file or stream, or the table option `engine: arrow`.",
            )


def folder_owner(name: str, sink: SinkConfig) -> FolderOwner | None:
    """Return the owner that a file sink's folder will have; None for other sinks."""
    if not isinstance(sink, FileSinkConfig):
        return None
    return FolderOwner(Path(sink.path).absolute(), table=name)


def _held(owner: FolderOwner) -> str:
    try:
        owner.hold()
    except OSError as error:
        raise SinkError(
            f"The sink folder cannot be claimed: {error}.",
            remedy="Free space, or give this user the right to write there.",
        ) from error
    return owner.token
