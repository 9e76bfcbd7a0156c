"""Changes as files in a bucket: each row exactly once, by names that a repeated delivery repeats.

    epoch=1/region=eu/<start>-<end>-00000.parquet

Before the first file of a delivery an intent fixes its end and its layout. A delivery that failed,
or that another process goes on with, writes the same rows under the same names, and files are put
if absent; so readers that list files see each row once when no delivery is in progress. The
manifest's entry (`manifest.py`) is put last; it has the offset too, which this sink stores itself.
Files are never replaced or deleted: rows that come again, after a reset, in a new snapshot or of a
recreated table, go to the next folder `epoch=N`.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Self

import pyarrow as pa
from msgspec import Raw

from tailerd.changefeed.gap import Gap
from tailerd.changefeed.offset import Offset
from tailerd.changefeed.saved_offset import SavedOffset
from tailerd.errors import (
    ConditionalPutUnsupportedError,
    SinkError,
    SinkRefusedError,
    StorageError,
)
from tailerd.remedies import reset_command
from tailerd.sinks.base import Delivery
from tailerd.sinks.bucket.delivery_files import DataFile, DeliveryFiles, Layout, Target
from tailerd.sinks.bucket.manifest import (
    FOLDER,
    Intent,
    Manifest,
    Step,
    continues,
    is_same,
    offset_name,
)
from tailerd.sinks.bucket.partitions import EPOCH
from tailerd.sinks.bucket.read_back import read_rows
from tailerd.sinks.file.config import FileSinkConfig
from tailerd.sinks.resources import SinkResources
from tailerd.storage.rights import missing_rights
from tailerd.storage.stores import Stores


class BucketSink:
    """Writes deliveries of one table to one folder of a bucket."""

    def __init__(self, config: FileSinkConfig, resources: SinkResources) -> None:
        """Initialize; sends no request.

        Raises:
            ConfigError: The path is no URL of a bucket.
        """
        store, root = (resources.stores or Stores()).locate(config.path)
        self._target = Target(store=store, root=root, is_conditional=config.is_exactly_once)
        self._layout = _choose_layout(config)
        self._encode = resources.encode
        self._table = resources.table
        self._manifest = Manifest(self._target)
        self._may_be_begun = True

    @classmethod
    def from_config(cls, config: FileSinkConfig, resources: SinkResources) -> Self:
        """Build the sink of a table."""
        return cls(config, resources)

    @property
    def max_in_flight(self) -> int:
        """One: the manifest has deliveries in order."""
        return 1

    @property
    def offsets(self) -> BucketOffsets:
        """The manifest."""
        return BucketOffsets(self)

    async def healthcheck(self) -> None:
        """Put and delete an empty file.

        Raises:
            SinkError: A right is missing, or the bucket cannot be reached.
        """
        root = self._target.root
        with self._raising_sink_errors():
            missing = await missing_rights(
                self._target.store, root, f"{root}/{FOLDER}", is_written=True
            )
            needed = ["get", "put", *(["conditional put"] if self._target.is_conditional else [])]
            for right in needed:
                if right in missing:
                    raise missing[right]

    async def resume(self, offset: Offset) -> None:
        """Take over the folder: other processes cannot finish a delivery from now on.

        Raises:
            SinkError: The bucket cannot be written.
        """
        self._may_be_begun = True
        with self._raising_sink_errors():
            newest = await self._manifest.newest()
            if not self._manifest.is_ours:
                epoch = newest.epoch if newest else 1
                at = newest.offset if newest else None
                await self._manifest.add(Step(kind="start", end=at, epoch=epoch))

    async def pinned_end(self, start: Offset) -> Offset | None:
        """Return where the delivery that was begun at `start` ends; None if none was."""
        if not self._may_be_begun:
            return None
        with self._raising_sink_errors():
            intent = await self._manifest.load_intent(await self._choose_epoch(start), start)
        return None if intent is None else intent.offset

    async def write(self, delivery: Delivery) -> int:
        """Write all rows durably; return their number.

        Raises:
            SinkFencedError: Another process has taken over the folder.
            SinkRefusedError: The rows cannot be written as configured.
            SinkError: The bucket cannot be written.
        """
        self._may_be_begun = True
        with self._raising_sink_errors():
            epoch = await self._choose_epoch(delivery.start)
        files, rows = await self._write_files(delivery, epoch)
        changes = [change.to_json() for change in delivery.schema_changes]
        delivery.schema_changes.clear()
        step = Step(
            kind="delivery",
            start=delivery.start,
            end=delivery.end,
            epoch=epoch,
            rows=rows,
            files=files,
            is_net=delivery.is_net,
            schema_changes=changes,
            saved=delivery.saved,
        )
        with self._raising_sink_errors():
            await self._manifest.add(step)
        self._may_be_begun = False
        return rows

    async def _write_files(self, delivery: Delivery, epoch: int) -> tuple[list[DataFile], int]:
        """Write the files of a delivery; return them, and the number of rows."""
        files: DeliveryFiles | None = None
        rows = 0
        try:
            async for batch in delivery.batches:
                if batch.num_rows:
                    with self._raising_sink_errors():
                        files = files or await self._begin(delivery, epoch)
                        await files.add(batch)
                    rows += batch.num_rows
            with self._raising_sink_errors():
                return (await files.finish() if files else []), rows
        except BaseException:
            if files is not None:
                await files.discard()
            raise

    async def note_gap(self, gap: Gap) -> None:
        """Add an entry about the gap.

        Raises:
            SinkError: The bucket cannot be written.
        """
        with self._raising_sink_errors():
            newest = await self._manifest.newest()
            await self._manifest.add(
                Step(
                    kind="gap",
                    start=gap.start,
                    end=newest.offset if newest else None,
                    epoch=newest.epoch if newest else 1,
                    reason=gap.reason,
                )
            )

    async def load_offset(self, pipeline: str) -> SavedOffset | None:
        """Return the offset of the newest entry; None if there is none yet.

        Raises:
            OffsetError: It is damaged.
            SinkError: The bucket cannot be read.
        """
        with self._raising_sink_errors():
            newest = await self._manifest.refresh()
        if newest is None or newest.offset is None:
            return None
        url = self._target.store.format_url(f"{self._target.root}/{FOLDER}")
        return SavedOffset.from_json(
            bytes(newest.saved),
            location=f"The offset of entry {newest.number} in {url}",
            fix=f"{reset_command(pipeline)}.",
        )

    async def save_offset(self, saved: SavedOffset) -> None:
        """Add an entry with an offset.

        Raises:
            SinkFencedError: Another process has taken over the folder.
            SinkError: The bucket cannot be written.
        """
        with self._raising_sink_errors():
            epoch = await self._choose_epoch(saved.offset)
            step = Step(kind="offset", end=saved.offset, epoch=epoch, saved=saved)
            await self._manifest.add(step)

    @property
    def value_format(self) -> str:
        """`json`: rows are read back as that format has them."""
        return "json"

    @property
    def has_decimal_numbers(self) -> bool:
        """False: decimals are strings."""
        return False

    @property
    def empty_is_null(self) -> bool:
        """False: both formats distinguish them."""
        return False

    async def read_back(self) -> AsyncGenerator[Sequence[bytes]]:
        """Yield the rows of all deliveries since the last snapshot or reset, as JSON lines.

        Raises:
            OffsetError: An entry of the manifest is damaged.
            SinkError: The bucket cannot be read.
        """
        with self._raising_sink_errors():
            async with aclosing(read_rows(self._target, self._manifest, self._encode)) as groups:
                async for lines in groups:
                    yield lines

    async def aclose(self) -> None:
        """Do nothing: connections belong to the process."""

    async def _begin(self, delivery: Delivery, epoch: int) -> DeliveryFiles:
        """Put the intent of a delivery, or continue as an earlier one says."""
        saved = delivery.saved
        intent = Intent(
            end=Raw(delivery.end.to_json().encode()),
            layout=self._layout,
            rows=_digest(saved),
            epoch=saved.epoch,
        )
        found = await self._manifest.put_intent(epoch, delivery.start, intent)
        if not is_same(found.offset, delivery.end):
            # Put by another process since, or by an attempt whose answer was lost.
            await self._manifest.require_ownership()
            raise SinkError(
                f"The delivery of {self._table} from version {delivery.start.version} was begun to"
                f" version {found.offset.version}, not to {delivery.end.version}.",
                remedy=f"It is repeated. If this lasts, run `tailerd offsets reset {self._table}"
                " --to VERSION`: rows go to a new folder then.",
            )
        if found.rows != intent.rows:
            raise SinkRefusedError(
                f"A delivery of {self._table} was begun with other transforms or another way to"
                " find changes, and some of its files are there.",
                remedy="Set `changes`, `columns`, `rename`, `where`, `mask` and `unchanged` back"
                f" until it has ended, or run `tailerd offsets reset {self._table} --to VERSION`:"
                " rows go to a new folder then.",
            )
        names = f"{offset_name(delivery.start)}-{offset_name(delivery.end)}"
        return DeliveryFiles(
            self._target, found.layout, self._encode, folder=f"{EPOCH}={epoch}", name=names
        )

    async def _choose_epoch(self, start: Offset) -> int:
        """Return the number of the folder for rows from `start` on."""
        newest = await self._manifest.newest()
        if newest is None or newest.offset is None:
            return newest.epoch if newest else 1
        before = newest.offset
        if is_same(before, start):
            return newest.epoch
        # Files of a delivery that was begun and is never finished may have the same rows.
        is_begun = await self._manifest.load_intent(newest.epoch, before) is not None
        return newest.epoch + (is_begun or not continues(before, start))

    @contextmanager
    def _raising_sink_errors(self) -> Iterator[None]:
        url = self._target.store.format_url(self._target.root)
        try:
            yield
        except ConditionalPutUnsupportedError as error:
            raise SinkRefusedError(
                f"Files in {url} cannot be delivered exactly once: {error.message}",
                remedy="Use a server with If-None-Match, or set `delivery: at-least-once`.",
            ) from error
        except StorageError as error:
            kind = SinkError if error.retryable else SinkRefusedError
            raise kind(
                f"The sink's folder {url} failed: {error.message}", remedy=error.remedy
            ) from error
        except pa.ArrowException as error:
            raise SinkRefusedError(
                f"Rows of {self._table} cannot be written as {self._layout.format}: {error}.",
                remedy="Leave the column out with `columns`, or choose another `format`.",
            ) from error


class BucketOffsets:
    """The offset in the manifest."""

    def __init__(self, sink: BucketSink) -> None:
        self._sink = sink

    async def load(self, pipeline: str) -> SavedOffset | None:
        """Return the offset of the newest entry; None if there is none yet."""
        return await self._sink.load_offset(pipeline)

    async def save(self, pipeline: str, saved: SavedOffset) -> None:
        """Add an entry with an offset."""
        await self._sink.save_offset(saved)


def _choose_layout(config: FileSinkConfig) -> Layout:
    return Layout(
        format=config.format,
        compression=config.compression or ("zstd" if config.format == "parquet" else "gzip"),
        max_bytes=config.max_bytes_per_file,
        partition_by=tuple(config.partition_by),
    )


def _digest(saved: SavedOffset) -> str:
    """Return a digest of what decides about the rows between two offsets."""
    text = f"{saved.view}\n{saved.changes.value}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]
