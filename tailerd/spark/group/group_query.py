"""The streaming query of a group: the source, and the sink its tables have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from time import monotonic

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tailerd.sinks.file_config import FileSinkConfig
from tailerd.spark.group.assignments import CHECKPOINT_FOLDER
from tailerd.spark.group.deliveries import TableDelivery
from tailerd.spark.group.lines_sink import LinesFolder, LinesSink
from tailerd.spark.group.members import GroupTable
from tailerd.spark.group.records_source import FOLDER_OPTION, RECORDS_FORMAT, RecordsDataSource
from tailerd.spark.query_errors import error_of
from tailerd.telemetry import Telemetry

_WriteBatch = Callable[[DataFrame, int], None]


def start_group_query(
    spark: SparkSession,
    name: str,
    folder: Path,
    tables: Callable[[], Mapping[str, GroupTable]],
    *,
    telemetry: Telemetry,
    once: bool,
) -> StreamingQuery:
    """Start the query of a group; blocking, seconds.

    Args:
        name: Of the group.
        folder: Of the group.
        tables: All tables that a batch may have rows of, asked at every batch.
        telemetry: Hears of deliveries.
        once: Whether it ends at the tables' present heads.

    Raises:
        TailerdError: What was wrong.
    """
    spark.dataSource.register(RecordsDataSource)
    try:
        records = spark.readStream.format(RECORDS_FORMAT).option(FOLDER_OPTION, str(folder)).load()
        writer = records.writeStream.foreachBatch(_to_files(tables, telemetry)).queryName(name)
        writer = writer.option("checkpointLocation", str(folder / CHECKPOINT_FOLDER))
        return (writer.trigger(availableNow=True) if once else writer).start()
    except PySparkException as error:
        raise error_of(str(error)) from error


def _to_files(tables: Callable[[], Mapping[str, GroupTable]], telemetry: Telemetry) -> _WriteBatch:
    sink = LinesSink(lambda: _folders(tables()))

    def write(records: DataFrame, batch_id: int) -> None:
        started = monotonic()
        delivered: Iterable[TableDelivery] = sink.write(records, batch_id)
        for delivery in delivered:
            telemetry.emit(delivery.event("file", monotonic() - started))

    return write


def _folders(tables: Mapping[str, GroupTable]) -> dict[str, LinesFolder]:
    return {
        name: LinesFolder(
            path=str(Path(table.config.sink.path).absolute()),
            generation=table.generation,
            max_bytes_per_file=table.config.sink.max_bytes_per_file,
        )
        for name, table in tables.items()
        if isinstance(table.config.sink, FileSinkConfig)
    }
