"""The streaming query of a group: the source, and the sink its tables have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from time import monotonic

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tailerd.pipeline.pipeline_records import PipelineRecords
from tailerd.sinks.file.config import FileSinkConfig
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.spark.checkpoints import CHECKPOINT_FOLDER, COMES_AGAIN
from tailerd.spark.deliveries import RecordSink
from tailerd.spark.group.group_offset import GroupOffset
from tailerd.spark.group.lines_sink import LinesFolder, LinesSink
from tailerd.spark.group.members import GroupTable
from tailerd.spark.group.published import end_digest
from tailerd.spark.group.records_source import (
    FOLDER_OPTION,
    HINTS_OPTION,
    RECORDS_FORMAT,
)
from tailerd.spark.kafka.group_identity import writer_name
from tailerd.spark.query_checkpoint import check_checkpoint, private_checkpoint
from tailerd.spark.query_errors import error_of
from tailerd.spark.worker_edge import errors_travel
from tailerd.telemetry import Telemetry

Tables = Callable[[], Mapping[str, GroupTable]]
"""Says which tables a batch may have rows of."""


def start_group_query(
    spark: SparkSession,
    name: str,
    folder: Path,
    sink: RecordSink,
    *,
    once: bool,
    hints: Path | None = None,
) -> StreamingQuery:
    """Start the query of a group; blocking, seconds.

    Args:
        name: Of the group.
        folder: Of the group.
        sink: Where batches go.
        once: Whether it ends at the tables' present heads.
        hints: Where hints of tables in buckets are left, in a folder for each table's name.

    Raises:
        TailerdError: What was wrong.
    """

    @errors_travel
    def write(records: DataFrame, batch_id: int) -> None:
        sink.write(records, batch_id)

    checkpoint = folder / CHECKPOINT_FOLDER
    check_checkpoint(checkpoint, GroupOffset.from_json, COMES_AGAIN, may_restore=False)
    sink.recover()
    try:
        options = {FOLDER_OPTION: str(folder)}
        if hints is not None:
            options[HINTS_OPTION] = str(hints)
        records = spark.readStream.format(RECORDS_FORMAT).options(**options).load()
        writer = records.writeStream.foreachBatch(write).queryName(name)
        writer = writer.option("checkpointLocation", str(checkpoint))
        with private_checkpoint(spark, checkpoint):
            return (writer.trigger(availableNow=True) if once else writer).start()
    except PySparkException as error:
        raise error_of(str(error)) from error


def group_sink(
    name: str, folder: Path, tables: Tables, telemetry: Telemetry, records: PipelineRecords
) -> RecordSink:
    """Return the sink of a group, which tells of deliveries; there is at least one table.

    Raises:
        OffsetError, StorageError: A file of the group cannot be read or written.
    """
    kinds = {table.config.sink.kind for table in tables().values()}
    if kinds == {"file"}:
        return _Told(LinesSink(lambda: _folders(tables()), folder), "file", telemetry)
    # Loads the client, which files do without.
    from tailerd.spark.kafka.group_sink import KafkaGroupSink

    checkpoint = folder / CHECKPOINT_FOLDER
    writer = writer_name(folder, name)
    kafka = KafkaGroupSink(
        lambda: kafka_sections(tables()),
        checkpoint,
        writer,
        partial(end_digest, folder),
        telemetry,
        records,
    )
    return _Told(kafka, "kafka", telemetry)


class _Told:
    """A sink whose deliveries are told."""

    def __init__(self, sink: RecordSink, kind: str, telemetry: Telemetry) -> None:
        self._sink = sink
        self._kind = kind
        self._telemetry = telemetry

    def recover(self) -> object:
        return self._sink.recover()

    def write(self, records: DataFrame, batch_id: int) -> tuple[()]:
        started = monotonic()
        for delivery in self._sink.write(records, batch_id):
            self._telemetry.emit(delivery.event(self._kind, monotonic() - started))
        return ()

    def close(self) -> None:
        self._sink.close()


def _folders(tables: Mapping[str, GroupTable]) -> dict[str, LinesFolder]:
    return {
        name: LinesFolder(
            path=str(Path(table.config.sink.path).absolute()),
            generation=table.generation,
            max_bytes_per_file=table.config.sink.max_bytes_per_file,
            file_mode=table.config.sink.file_mode(),
        )
        for name, table in tables.items()
        if isinstance(table.config.sink, FileSinkConfig)
    }


def kafka_sections(tables: Mapping[str, GroupTable]) -> dict[str, KafkaSinkConfig]:
    """Return the sections of tables into Kafka, all with one producer: one writes for them all.

    Tables that were read from a file have none, those of this process do, also while they leave;
    what a running one says is newer.
    """
    given = {name: table.kafka for name, table in tables.items() if table.kafka is not None}
    last = sorted(given, key=lambda name: not tables[name].is_leaving)
    producers = [given[name].producer for name in last if given[name].producer]
    producer = producers[-1] if producers else {}
    return {name: sink.model_copy(update={"producer": producer}) for name, sink in given.items()}
