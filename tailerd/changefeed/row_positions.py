"""Positions of rows in their commit, from which row ids are derived; the same in every run.

Batches are cut by memory, deliveries by limits, and engines read in different orders. The number of
a row's file among those of its commit, and its position in that file, depend on none of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.changefeed.change_task import ChangeSourceKind, ChangeTask

Rows = npt.NDArray[np.int64]


def number_positions(task: ChangeTask, files: int | Rows, rows: int | Rows) -> RowPositions:
    """Return the positions of a task's rows; `files` and `rows` as in `RowPositions`."""
    prefix = "snapshot." if task.change_source is ChangeSourceKind.SNAPSHOT else ""
    return RowPositions(table_id=task.table_id, files=files, rows=rows, prefix=prefix)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPositions:
    """The positions of the rows of a batch.

    Attributes:
        table_id: Identity of the table in their version.
        files: Number of each row's file, or of the file of all rows; unique among the files read
            for the same version.
        rows: Position of each row in its file, or that of the first if they are consecutive.
        prefix: Distinguishes the positions from those of the same version found in another way,
            such as its snapshot; empty for the commit's own.
    """

    table_id: str
    files: int | Rows
    rows: int | Rows
    prefix: str = ""

    def take(self, numbers: Rows) -> RowPositions:
        """Return the positions of the rows with these numbers in the batch, in that order."""
        return replace(
            self,
            files=self.files if isinstance(self.files, int) else self.files[numbers],
            rows=self.rows + numbers if isinstance(self.rows, int) else self.rows[numbers],
        )

    def slice(self, start: int, count: int) -> RowPositions:
        """Return the positions of `count` rows from `start` on."""
        end = start + count
        return replace(
            self,
            files=self.files if isinstance(self.files, int) else self.files[start:end],
            rows=self.rows + start if isinstance(self.rows, int) else self.rows[start:end],
        )

    def ids(self, version: int, count: int) -> pa.Array:
        """Return `string`: the ids of `count` rows of a version.

        An id is table id, version and position: `TABLE/VERSION/FILE.ROW`.
        """
        start = f"{self.table_id}/{version}/{self.prefix}"
        positions = (
            np.arange(self.rows, self.rows + count) if isinstance(self.rows, int) else self.rows
        )
        numbers = pa.array(positions).cast(pa.string())
        if isinstance(self.files, int):
            return pc.binary_join_element_wise(f"{start}{self.files}.", numbers, "")
        files = pa.array(self.files).cast(pa.string())
        return pc.binary_join_element_wise(start, files, ".", numbers, "")
