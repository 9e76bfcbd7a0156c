"""Format `tailerd_records`: a group's tables as one stream of encoded records, packed.

The daemon's own: its options are the group's folder, with `members.json` in it, and the folder in
which the daemon leaves hints of tables in buckets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tailerd.arrow_start import start_without_pandas
from tailerd.spark.group.follower import GroupFollower
from tailerd.spark.group.group_offset import GroupFields, GroupOffset
from tailerd.spark.group.record_partitions import pack_tables, read_records
from tailerd.spark.packed_records import PACKED_SCHEMA, packed
from tailerd.spark.source_loop import SourceLoop, end_quietly
from tailerd.spark.worker_edge import all_errors_travel
from tailerd.spark.worker_stores import worker_stores
from tailerd.storage.stores import Stores, StoreSettings

RECORDS_FORMAT = "tailerd_records"
FOLDER_OPTION = "folder"
HINTS_OPTION = "hints"


@all_errors_travel
class RecordsDataSource(DataSource):
    """What Spark knows as format `tailerd_records`."""

    storage: ClassVar[StoreSettings] = StoreSettings()
    """How tables are reached; `configured` sets it."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return RECORDS_FORMAT

    def schema(self) -> StructType:
        """Return the schema of packed records."""
        return PACKED_SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader."""
        hints = self.options.get(HINTS_OPTION)
        folder = Path(self.options[FOLDER_OPTION])
        return RecordsReader(folder, None if hints is None else Path(hints), self.storage)


@all_errors_travel
class RecordsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives on the driver; executors get a pickled copy."""

    def __init__(self, folder: Path, hints: Path | None, storage: StoreSettings) -> None:
        self._folder = folder
        self._hints = hints
        self._storage = storage
        self._driver: _Driver | None = None

    def __getstate__(self) -> dict[str, object]:
        # Executors read partitions; the loop and the tables stay on the driver.
        return {**self.__dict__, "_driver": None}

    def initialOffset(self) -> GroupFields:  # noqa: N802 - Spark's name
        """Return the offset of a group of which nothing is read yet."""
        return GroupOffset().fields()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Leave the limits to the tables' own."""
        return ReadAllAvailable()

    def latestOffset(self, start: GroupFields, limit: ReadLimit) -> GroupFields:  # noqa: N802
        """Return the end of the next batch; wait a moment when nothing is new."""
        driver = self._on_driver()
        before = GroupOffset.of(start)
        end = driver.loop.call(driver.follower.latest(before))
        # Spark compares offsets as text.
        return start if end is before else end.fields()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Let every table end at the head it has when it is first looked at."""
        self._on_driver().follower.is_once = True

    def partitions(
        self, start: Mapping[str, object], end: Mapping[str, object]
    ) -> Sequence[InputPartition]:
        """Return the partitions of one batch."""
        driver = self._on_driver()
        rows = driver.follower.rows(GroupOffset.of(start), GroupOffset.of(end))
        return pack_tables(driver.loop.call(rows))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the partition's records, packed; on an executor."""
        start_without_pandas()
        return packed(read_records(partition, worker_stores(self._storage)))

    def commit(self, end: Mapping[str, object]) -> None:
        """Hear that everything before `end` is delivered."""
        driver = self._on_driver()
        driver.loop.call(driver.follower.commit(GroupOffset.of(end)))

    def stop(self) -> None:
        """Free the tables and the thread."""
        end_quietly()
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def _on_driver(self) -> _Driver:
        if self._driver is None:
            start_without_pandas()
            self._driver = _Driver(self._folder, self._hints, Stores(self._storage))
        return self._driver


class _Driver:
    """The driver's side: tables that stay open between batches."""

    def __init__(self, folder: Path, hints: Path | None, stores: Stores) -> None:
        self.loop = SourceLoop()
        self.follower = self.loop.call(_open(folder, hints, stores))

    def close(self) -> None:
        self.loop.call(self.follower.aclose())
        self.loop.close()


async def _open(folder: Path, hints: Path | None, stores: Stores) -> GroupFollower:
    return GroupFollower(folder, hints, stores)
