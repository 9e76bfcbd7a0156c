"""The files of one delivery while they are written, by the daemon or by a process of an engine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.offset import Offset, Phase
from tailerd.errors import SinkError
from tailerd.sinks.file.config import FileSinkConfig
from tailerd.sinks.file.owner import FolderOwner
from tailerd.sinks.file.parts import JsonLinesPart, ParquetPart, Part
from tailerd.sinks.resources import EncodeBatch

NAME = re.compile(
    r"_?(\d{20})-([01])-(\d{20})-(\d{5,})(\.net)?\.(jsonl|parquet|gap\.json|schema\.json)"
)

NET = ".net."
"""In the names of files whose rows are one difference over several commits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """The folder for the files of one table. Picklable.

    Attributes:
        path: The folder's path, valid in every process.
        owner: The owner of the folder.
        config: The sink's section.
        encode: Encodes a batch as JSON lines.
        is_net: The delivery is one difference over several commits; the file names show it, because
            such a file cannot be cut at a version.
        attempt: Id of an attempt in another process. That process may continue writing after the
            attempt was abandoned, so its files must not collide with those of the next attempt.
    """

    path: Path
    owner: FolderOwner
    config: FileSinkConfig
    encode: EncodeBatch
    is_net: bool = False
    attempt: str = ""

    def open_part(self, start: Offset, number: int) -> Part:
        """Open a file of the delivery that starts at `start`; may raise `OSError`."""
        kind = NET if self.is_net else "."
        path = self.path / f"{prefix(start)}-{number:05d}{kind}{self.config.format}"
        temporary, mode = self.owner.temporary(path, self.attempt), self.config.file_mode()
        limit = self.config.max_bytes_per_file
        if self.config.format == "parquet":
            return ParquetPart(path, temporary, max_bytes=limit, mode=mode)
        return JsonLinesPart(path, temporary, encode=self.encode, max_bytes=limit, mode=mode)

    def unwritable(self, error: Exception) -> SinkError:
        """Return the sink error for an error of the operating system or of Arrow."""
        # Arrow reports failing writes with errno, but as its own text.
        reason = getattr(error, "strerror", None) or str(error)
        return SinkError(
            f"The sink folder {self.path} cannot be written: {reason}.",
            remedy="Free space, or give this user the right to write there; executors of Spark"
            " must see the same folder.",
        )


class DeliveryFiles:
    """The temporary files of one delivery. Blocking; may raise `OSError` and Arrow's errors."""

    def __init__(self, folder: Folder, start: Offset) -> None:
        self._folder, self._start = folder, start
        self._parts: list[Part] = []
        self.rows = 0

    @property
    def paths(self) -> list[Path]:
        """The final paths of the files, in order."""
        return [part.path for part in self._parts]

    def add(self, batch: ChangeBatch) -> None:
        """Append rows; an empty batch creates no file."""
        if batch.num_rows == 0:
            return
        if not self._parts or not self._parts[-1].fits(batch):
            self.finish()
            self._parts.append(self._folder.open_part(self._start, len(self._parts)))
        self._parts[-1].add(batch)
        self.rows += batch.num_rows

    def finish(self) -> None:
        """Make the last file durable."""
        if self._parts:
            self._parts[-1].finish()

    def discard(self) -> None:
        """Remove the temporary files; published files stay."""
        for part in self._parts:
            part.discard()


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesWriter:
    """Writes a delivery's files where its rows are read; the daemon publishes them."""

    folder: Folder
    start: Offset

    def __call__(self, batches: Iterator[ChangeBatch]) -> list[Path]:
        """Write all rows; return the final paths of the files.

        Raises:
            SinkError: The folder cannot be written.
        """
        files = DeliveryFiles(self.folder, self.start)
        try:
            for batch in batches:
                files.add(batch)
            files.finish()
        except BaseException as error:
            files.discard()
            if isinstance(error, OSError | pa.ArrowException):
                raise self.folder.unwritable(error) from error
            raise
        return files.paths


def prefix(offset: Offset) -> str:
    """Return the prefix of the names of a delivery's files."""
    rank = 0 if offset.phase is Phase.SNAPSHOT else 1
    return f"{offset.version:020d}-{rank}-{offset.position:020d}"
