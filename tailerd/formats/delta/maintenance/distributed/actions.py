"""File actions of a log as exchanged between tasks: Arrow rows that can be sorted.

Of the actions with the same key the last is valid: the one with the highest `order` (twice the
version, an `add` after the `remove` of its commit), and among these the highest `position`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.formats.delta.log.checkpoint_entries import remove_keys
from tailerd.formats.delta.log.commit_lines import CommitLines
from tailerd.formats.delta.log.log_folder import LogFolder
from tailerd.formats.delta.log.parquet_rows import CheckpointFile
from tailerd.formats.delta.maintenance.distributed.request import LogSplit
from tailerd.formats.delta.protocol.checkpoint_form import CheckpointForm
from tailerd.formats.delta.protocol.checkpoint_rows import (
    build_adds,
    build_removes,
    conformed_adds,
    conformed_removes,
)
from tailerd.formats.delta.protocol.file_key import KeyArray
from tailerd.formats.delta.protocol.full_actions import FileRow, FullLine
from tailerd.formats.delta.protocol.log_path import LogFile

BATCH_ROWS = 32_768
Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OrderedActions:
    """A batch of `add` or `remove` actions of one version.

    Attributes:
        body: In the checkpoint's form, without nulls.
        keys, positions: Parallel.
    """

    is_add: bool
    version: int
    body: pa.StructArray
    keys: KeyArray
    positions: Positions

    def batch(self) -> pa.RecordBatch:
        """Return the actions as rows of `make_schema`."""
        order = 2 * self.version + int(self.is_add)
        columns = [
            pa.array(self.keys),
            pa.repeat(pa.scalar(order, pa.int64()), len(self.keys)),
            pa.array(self.positions),
            self.body,
        ]
        return pa.RecordBatch.from_arrays(columns, names=["key", "order", "position", "body"])


def make_schema(form: CheckpointForm, *, is_add: bool) -> pa.Schema:
    """Return the columns of actions exchanged between tasks."""
    body = form.add_type if is_add else form.remove_type
    return pa.schema(
        {"key": pa.uint64(), "order": pa.int64(), "position": pa.int64(), "body": body}
    )


def read_lines(log: LogFolder, file: LogFile) -> Iterator[list[FullLine]]:
    """Yield a JSON file's lines, a slice at a time; blocking.

    Raises:
        CorruptLogError: A line does not have the shape of its action.
        FileMissingError: The file is missing.
    """
    lines = CommitLines(log).read(file)

    async def following() -> list[FullLine] | None:
        return await anext(lines, None)

    with asyncio.Runner() as runner:
        while (found := runner.run(following())) is not None:
            yield found


def read_actions(log: LogFolder, split: LogSplit, form: CheckpointForm) -> Iterator[OrderedActions]:
    """Yield the file actions of a split, about `BATCH_ROWS` at a time.

    Raises:
        CorruptLogError, FileMissingError: The log is damaged, or changes meanwhile.
    """
    if not split.is_json:
        yield from _read_parquet(log, split, form)
        return
    for file in split.files:
        yield from _from_json(log, file, form)


def _from_json(log: LogFolder, file: LogFile, form: CheckpointForm) -> Iterator[OrderedActions]:
    position = 0
    adds: list[tuple[int, FileRow]] = []
    removes: list[tuple[int, FileRow]] = []
    for lines in read_lines(log, file):
        for line in lines:
            if line.add is not None:
                adds.append((position, line.add))
            elif line.remove is not None:
                removes.append((position, line.remove))
            position += 1
            if len(adds) + len(removes) >= BATCH_ROWS:
                yield from _from_rows(log, file.end_version, adds, removes, form)
                adds, removes = [], []
    yield from _from_rows(log, file.end_version, adds, removes, form)


def _from_rows(
    log: LogFolder,
    version: int,
    adds: Sequence[tuple[int, FileRow]],
    removes: Sequence[tuple[int, FileRow]],
    form: CheckpointForm,
) -> Iterator[OrderedActions]:
    for is_add, found in ((True, adds), (False, removes)):
        if not found:
            continue
        rows = [row for _, row in found]
        body = build_adds(rows, form) if is_add else build_removes(rows, form)
        keys = np.fromiter((row.key(log.url) for row in rows), np.uint64, len(rows))
        positions = np.fromiter((position for position, _ in found), np.int64, len(rows))
        yield OrderedActions(is_add, version, body, keys, positions)


def _read_parquet(
    log: LogFolder, split: LogSplit, form: CheckpointForm
) -> Iterator[OrderedActions]:
    [file] = split.files
    with CheckpointFile.open(log, file) as rows:
        groups = list(range(rows.num_groups)) if split.groups is None else list(split.groups)
        for kind in ("add", "remove"):
            if rows.column_type(kind) is None:
                continue
            first = split.first_row
            for batch in rows.read_groups(groups, (kind,), BATCH_ROWS):
                positions = np.arange(first, first + batch.num_rows, dtype=np.int64)
                first += batch.num_rows
                column, chosen = present(batch.column(kind), positions)
                if len(column):
                    yield _from_column(log, file.version, kind == "add", column, chosen, form)


def present(column: pa.StructArray, positions: Positions) -> tuple[pa.StructArray, Positions]:
    """Return the rows that are actions, and their positions."""
    is_action = pc.is_valid(pc.struct_field(column, "path"))
    mask = is_action.to_numpy(zero_copy_only=False)
    return (column, positions) if mask.all() else (column.filter(is_action), positions[mask])


def _from_column(
    log: LogFolder,
    version: int,
    is_add: bool,
    column: pa.StructArray,
    positions: Positions,
    form: CheckpointForm,
) -> OrderedActions:
    keys = remove_keys(column, log.url)
    body = conformed_adds(column, form) if is_add else conformed_removes(column, form)
    return OrderedActions(is_add, version, body, keys, positions)
