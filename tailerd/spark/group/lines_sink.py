"""JSON-lines files of a group's tables: each table has its folder, each row is in one file.

Executors write temporary files; only the driver gives them their names,
`group-{generation}-{batch id}-{number}.jsonl`, which sort in the order of delivery and behind the
names of a query of the table's own. A batch that is repeated gets the same names again and replaces
what an unfinished one left. The first batch of every query may be a repetition, perhaps without a
table that was in it: then the folders of all tables are looked through.
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row

from tailerd.changefeed.change_batch import CHANGE_TYPE, COMMIT_VERSION
from tailerd.errors import SinkError
from tailerd.spark.arrow_functions import map_batches
from tailerd.spark.encoded_records import VALUE
from tailerd.spark.group.deliveries import TableDelivery
from tailerd.spark.group.durable import sync_folder
from tailerd.spark.group.holds import marked
from tailerd.spark.packed_records import unpacked

_TEMPORARY = ".tailerd-group-{}.tmp"
_ANSWER = (
    "partition int, table string, files array<string>, rows map<string, bigint>,"
    " first_version bigint, last_version bigint, size_bytes bigint"
)
_ANSWER_ARROW = pa.schema(
    {
        "partition": pa.int32(),
        "table": pa.string(),
        "files": pa.list_(pa.string()),
        "rows": pa.map_(pa.string(), pa.int64()),
        "first_version": pa.int64(),
        "last_version": pa.int64(),
        "size_bytes": pa.int64(),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesFolder:
    """Where one table's lines go.

    Attributes:
        path: The folder, as executors see it too.
        generation: Which life of the table in its group this is.
        max_bytes_per_file: Beyond it, a delivery goes on in another file.
    """

    path: str
    generation: int
    max_bytes_per_file: int

    def prefix(self, batch_id: int) -> str:
        """Return what the names of a batch's files begin with."""
        return f"group-{self.generation:06}-{batch_id:010}-"


Folders = Mapping[str, LinesFolder]


class LinesSink:
    """Implements `RecordSink`."""

    def __init__(self, folders: Callable[[], Folders]) -> None:
        """Ask `folders` at every batch where the lines of each table go."""
        self._folders = folders
        self._may_repeat = True

    def recover(self) -> None:
        """Expect the next batch to be a repetition."""
        self._may_repeat = True

    def close(self) -> None:
        """Do nothing: files are open in tasks only."""

    def write(self, records: DataFrame, batch_id: int) -> Iterable[TableDelivery]:
        """Write the lines of a batch and give the files their names; they are durable then.

        Raises:
            SinkError: A folder cannot be written.
        """
        folders = dict(self._folders())
        answers = map_batches(records, _task(folders), _ANSWER).collect()
        answers.sort(key=lambda answer: answer.partition)
        names: dict[str, list[str]] = {}
        for answer in answers:
            names.setdefault(answer.table, []).extend(answer.files)
        for name, folder in folders.items():
            if name in names or self._may_repeat:
                _publish(name, folder, names.get(name, []), batch_id)
        self._may_repeat = False
        return _deliveries(answers)


def _deliveries(answers: Iterable[Row]) -> list[TableDelivery]:
    found: dict[str, TableDelivery] = {}
    for answer in answers:
        new = TableDelivery(
            table=answer.table,
            rows=answer.rows,
            first_version=answer.first_version,
            last_version=answer.last_version,
            size_bytes=answer.size_bytes,
        )
        found[new.table] = new if new.table not in found else _sum(found[new.table], new)
    return list(found.values())


def _sum(one: TableDelivery, other: TableDelivery) -> TableDelivery:
    return TableDelivery(
        table=one.table,
        rows=Counter(one.rows) + Counter(other.rows),
        first_version=min(one.first_version, other.first_version),
        last_version=max(one.last_version, other.last_version),
        size_bytes=one.size_bytes + other.size_bytes,
    )


def _publish(table: str, folder: LinesFolder, names: Iterable[str], batch_id: int) -> None:
    path, prefix = Path(folder.path), folder.prefix(batch_id)
    published = set()
    try:
        for number, name in enumerate(names):
            final = f"{prefix}{number:05}.jsonl"
            (path / name).replace(path / final)
            published.add(final)
        # An earlier try of this batch may have had more files, and killed tasks left theirs.
        for left in (*path.glob(f"{prefix}*"), *path.glob(_TEMPORARY.format("*"))):
            if left.name not in published:
                left.unlink(missing_ok=True)
        if path.is_dir():
            sync_folder(path)
    except OSError as error:
        raise marked(_unwritable(path, error), table) from error


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
                    written[name] = _TableFiles(folders[name])
                try:
                    written[name].write(piece.records)
                except OSError as error:
                    path = Path(folders[name].path)
                    raise marked(_unwritable(path, error), name) from error
            for files in written.values():
                files.close()
        except BaseException:
            for files in written.values():
                files.remove()
            raise
        answers = [{"partition": partition, "table": n, **f.answer()} for n, f in written.items()]
        yield pa.RecordBatch.from_pylist(answers, schema=_ANSWER_ARROW)

    return write


class _TableFiles:
    """The temporary files of one table in one task."""

    def __init__(self, folder: LinesFolder) -> None:
        self._folder = Path(folder.path)
        self._max_bytes = folder.max_bytes_per_file
        self._file: BinaryIO | None = None
        self._written = 0
        self._names: list[str] = []
        self._rows: Counter[str] = Counter()
        self._versions: list[int] = []
        self._size = 0

    def write(self, records: pa.RecordBatch) -> None:
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._names.append(_TEMPORARY.format(uuid.uuid4().hex))
            self._file = (self._folder / self._names[-1]).open("wb")
            self._written = 0
        lines = pc.binary_join_element_wise(records.column(VALUE), b"", b"\n")
        self._written += self._file.write(_joined(lines))
        self._count(records, lines)
        if self._written >= self._max_bytes:
            self.close()

    def close(self) -> None:
        """Make what was written durable."""
        file, self._file = self._file, None
        if file is not None:
            with file:
                file.flush()
                os.fsync(file.fileno())

    def remove(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()
        for name in self._names:
            (self._folder / name).unlink(missing_ok=True)

    def answer(self) -> dict[str, object]:
        return {
            "files": self._names,
            "rows": list(self._rows.items()),
            "first_version": min(self._versions),
            "last_version": max(self._versions),
            "size_bytes": self._size,
        }

    def _count(self, records: pa.RecordBatch, lines: pa.Array) -> None:
        for pair in pc.value_counts(records.column(CHANGE_TYPE)).to_pylist():
            self._rows[pair["values"]] += pair["counts"]
        bounds = pc.min_max(records.column(COMMIT_VERSION)).as_py()
        self._versions += [bounds["min"], bounds["max"]]
        self._size += pc.sum(pc.binary_length(lines)).as_py()


def _joined(lines: pa.Array) -> memoryview:
    """Return the bytes of all values, one behind the other, without copying."""
    _, offsets, data = lines.buffers()
    width = np.int64 if pa.types.is_large_binary(lines.type) else np.int32
    ends = np.frombuffer(offsets, dtype=width)[lines.offset : lines.offset + len(lines) + 1]
    return memoryview(data)[int(ends[0]) : int(ends[-1])]


def _unwritable(folder: Path, error: OSError) -> SinkError:
    return SinkError(
        f"The folder {folder} cannot be written: {error.strerror or error}.",
        hint="Look at its permissions and the free space; executors must see the same folder.",
    )
