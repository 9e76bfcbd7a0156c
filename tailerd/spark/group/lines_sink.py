"""JSON-lines files of a group's tables: each table has its folder, each row is in one file.

Executors write temporary files; only the driver gives them their names,
`group-{generation}-{batch id}-{number}.jsonl`, which sort in the order of delivery and behind the
names of a query of the table's own. A batch that is repeated gets the same names again and replaces
what an unfinished one left. The first batch of every query may be a repetition, perhaps without a
table that was in it: then the folders of all tables are looked through. A batch whose files all
have their names is noted in the group's folder (`delivered_batch`), and its repetition does
nothing: its rows may be gone by then, and what has been told is not taken back.
"""

from __future__ import annotations

import os
import pickle
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame

from tailerd.errors import SinkError, SinkFencedError
from tailerd.sinks.file.owner import FolderOwner
from tailerd.sinks.file.parts import close_durably, open_temporary
from tailerd.spark.arrow_functions import map_batches
from tailerd.spark.attribution import attribute_to_table
from tailerd.spark.checkpoints import CHECKPOINT_FOLDER
from tailerd.spark.deliveries import TableDelivery, Tally, summed
from tailerd.spark.encoded_records import VALUE, RecordPiece
from tailerd.spark.group.published import end_digest, published_batch, write_published
from tailerd.spark.packed_records import unpacked
from tailerd.storage.posix_files import sync_folder

_TEMPORARY = ".tailerd-group-{}.tmp"
_ANSWER = "answer binary"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What a task did: of each table its temporary files, in order, and what is in them."""

    partition: int
    files: Mapping[str, list[str]]
    tables: Mapping[str, Tally]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesFolder:
    """Where one table's lines go.

    Attributes:
        path: The folder, as executors see it too.
        generation: Which life of the table in its group this is.
        max_bytes_per_file: Beyond it, a delivery goes on in another file.
        file_mode: Permissions of the files; None for what the umask of the executors leaves.
    """

    path: str
    generation: int
    max_bytes_per_file: int
    file_mode: int | None = None

    def prefix(self, batch_id: int) -> str:
        """Return what the names of a batch's files begin with."""
        return f"group-{self.generation:06}-{batch_id:010}-"


Folders = Mapping[str, LinesFolder]


class LinesSink:
    """Implements `RecordSink`."""

    def __init__(self, folders: Callable[[], Folders], group: Path) -> None:
        """Ask `folders` at every batch where the lines of each table go; `group` is its folder."""
        self._folders = folders
        self._group = group
        self._may_repeat = True
        # Where a folder really is: a look at each of them at every batch would be slow on NFS.
        self._real: dict[str, str] = {}
        self._owners: dict[str, FolderOwner] = {}

    def recover(self) -> None:
        """Expect the next batch to be a repetition; claim the folders that are there."""
        self._may_repeat = True
        for tables in self._by_place(self._folders()):
            # What is wrong with a folder is told, of its table, when a batch has rows for it.
            with suppress(OSError):
                owner = self._owner(tables)
                if not owner.epoch and Path(next(iter(tables.values())).path).is_dir():
                    owner.claim()

    def close(self) -> None:
        """Do nothing: files are open in tasks only."""

    def write(self, records: DataFrame, batch_id: int) -> Iterable[TableDelivery]:
        """Write the lines of a batch and give the files their names; they are durable then.

        Returns:
            What was delivered of each table; nothing where all of it was delivered before.

        Raises:
            SinkError: A folder cannot be written.
            SinkFencedError: Another daemon claimed a folder since.
            OffsetError: The checkpoint was put back from a copy, or is damaged.
            StorageError: The group's own folder cannot be read or written.
        """
        end = end_digest(self._group, batch_id)
        if self._may_repeat:
            last = published_batch(self._group)
            if last is not None and last.covers(batch_id, end, self._group / CHECKPOINT_FOLDER):
                self._may_repeat = False
                return []
        folders = dict(self._folders())
        rows = map_batches(records, _task(folders), _ANSWER).collect()
        answers: list[_Answer] = [pickle.loads(row["answer"]) for row in rows]
        answers.sort(key=lambda answer: answer.partition)
        names: dict[str, list[str]] = {}
        for answer in answers:
            for name, files in answer.files.items():
                names.setdefault(name, []).extend(files)
        for tables in self._by_place(folders):
            if self._may_repeat or not names.keys().isdisjoint(tables):
                for name in tables.keys() & names.keys():
                    with _attributed(name, tables[name]):
                        self._owner(tables).hold()
                _publish(tables, names, batch_id)
        write_published(self._group, batch_id, end)
        self._may_repeat = False
        tallies = summed(answer.tables for answer in answers)
        return [tally.delivery(name) for name, tally in tallies.items()]

    def _owner(self, tables: Folders) -> FolderOwner:
        """Return this process's claim on the folder of tables; it may be none yet."""
        name, folder = next(iter(tables.items()))
        return self._owners.setdefault(
            self._real[folder.path], FolderOwner(Path(folder.path), table=name)
        )

    def _by_place(self, folders: Folders) -> list[Folders]:
        """Return the tables of each folder; one that was renamed has it twice until it has left."""
        places: dict[str, dict[str, LinesFolder]] = {}
        for name, folder in folders.items():
            path = folder.path
            if path not in self._real:
                self._real[path] = os.path.realpath(path)
            places.setdefault(self._real[path], {})[name] = folder
        return list(places.values())


def _publish(tables: Folders, files: Mapping[str, list[str]], batch_id: int) -> None:
    """Give the files of a batch their names, in one folder of one or more tables."""
    published = set()
    numbers: defaultdict[str, Iterator[int]] = defaultdict(count)
    for table, folder in tables.items():
        path, prefix = Path(folder.path), folder.prefix(batch_id)
        with _attributed(table, folder):
            for name in files.get(table, ()):
                final = f"{prefix}{next(numbers[prefix]):05}.jsonl"
                (path / name).replace(path / final)
                published.add(final)
    for table, folder in tables.items():
        path, is_changed = Path(folder.path), table in files
        with _attributed(table, folder):
            # An earlier try of this batch may have had more files.
            for left in path.glob(f"{folder.prefix(batch_id)}*"):
                if left.name not in published:
                    left.unlink(missing_ok=True)
                    is_changed = True
            if is_changed:
                sync_folder(path)
    # What killed tasks left is in nobody's way: a folder that the batch has no rows for, and that
    # may not be written now, must not keep the other tables waiting.
    place = Path(next(iter(tables.values())).path)
    with suppress(OSError):
        for left in place.glob(_TEMPORARY.format("*")):
            if _owner(left.name) in tables:
                left.unlink(missing_ok=True)


def _owner(temporary: str) -> str:
    """Return which table's file it is."""
    before, after = _TEMPORARY.split("{}")
    return temporary.removeprefix(before).removesuffix(after).rpartition("-")[0]


def _task(folders: Folders) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what a task does with its records: files, and one answer for each table."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        written: dict[str, _TableFiles] = {}
        try:
            for piece in unpacked(batches):
                name = piece.table
                if name not in written:
                    written[name] = _TableFiles(name, folders[name])
                with _attributed(name, folders[name]):
                    written[name].write(piece)
            for name, files in written.items():
                with _attributed(name, folders[name]):
                    files.close()
        except BaseException:
            for files in written.values():
                files.remove()
            raise
        answer = _Answer(
            partition=partition,
            files={name: files.names for name, files in written.items()},
            tables={name: files.tally for name, files in written.items()},
        )
        yield pa.record_batch({"answer": pa.array([pickle.dumps(answer)], pa.binary())})

    return write


@contextmanager
def _attributed(table: str, folder: LinesFolder) -> Iterator[None]:
    """Attribute what is wrong with a table's folder to it."""
    try:
        yield
    except OSError as error:
        raise attribute_to_table(_unwritable(Path(folder.path), error), table) from error
    except SinkFencedError as error:
        raise attribute_to_table(error, table) from error


class _TableFiles:
    """The temporary files of one table in one task.

    Attributes:
        names: Of the files, in order.
        tally: What is in them.
    """

    def __init__(self, table: str, folder: LinesFolder) -> None:
        self._table = table
        self._folder = Path(folder.path)
        self._max_bytes = folder.max_bytes_per_file
        self._mode = folder.file_mode
        self._file: BinaryIO | None = None
        self._written = 0
        self.names: list[str] = []
        self.tally = Tally()

    def write(self, piece: RecordPiece) -> None:
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self.names.append(_TEMPORARY.format(f"{self._table}-{uuid.uuid4().hex}"))
            self._file = open_temporary(self._folder / self.names[-1], self._mode)
            self._written = 0
        lines = pc.binary_join_element_wise(piece.records[VALUE], b"", b"\n")
        self._written += self._file.write(_joined(lines))
        self.tally.count(piece)
        # The ends of the lines.
        self.tally.size_bytes += len(lines)
        if self._written >= self._max_bytes:
            self.close()

    def close(self) -> None:
        """Make what was written durable."""
        file, self._file = self._file, None
        if file is not None:
            with file:
                close_durably(file)

    def remove(self) -> None:
        """Take back what can be; why the task failed is told already."""
        file, self._file = self._file, None
        with suppress(OSError):
            if file is not None:
                file.close()
        for name in self.names:
            with suppress(OSError):
                (self._folder / name).unlink(missing_ok=True)


def _joined(lines: pa.Array) -> memoryview:
    """Return the bytes of all values, one behind the other, without copying."""
    _, offsets, data = lines.buffers()
    width = np.int64 if pa.types.is_large_binary(lines.type) else np.int32
    ends = np.frombuffer(offsets, dtype=width)[lines.offset : lines.offset + len(lines) + 1]
    return memoryview(data)[int(ends[0]) : int(ends[-1])]


def _unwritable(folder: Path, error: OSError) -> SinkError:
    return SinkError(
        f"The folder {folder} cannot be written: {error.strerror or error}.",
        remedy="Look at its permissions and the free space; executors must see the same folder.",
    )
