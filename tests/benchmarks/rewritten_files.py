"""Files of rows, and the files that an UPDATE of one row each rewrote them to.

They stay in $TAILERD_BENCHMARKS, or in a folder of the system's temporary folder, as tables do.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

RECIPE = 2
"""Raised when files are made differently, so that old copies are not used."""

ID_COLUMN, VERSION_COLUMN = "_row-id-col", "_row-commit-version-col"


def rewritten_files(files: int, rows: int) -> Path:
    """Return a folder with `before`, `after` (one row of each file differs), and two as `after`.

    In `shuffled` are its rows, in any order and in other files; in `tracked` as there, with columns
    `ID_COLUMN` and `VERSION_COLUMN` as Delta's row tracking has them.
    """
    location = os.environ.get("TAILERD_BENCHMARKS")
    home = Path(location) if location else Path(tempfile.gettempdir()) / "tailerd-benchmarks"
    folder = home / f"rewritten-{files}-{rows}-{RECIPE}"
    if folder.exists():
        return folder
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    for name in ("before", "after", "shuffled", "tracked"):
        (unfinished / name).mkdir(parents=True)
    random = np.random.default_rng(20_26)
    after = []
    for number in range(files):
        table = _orders(random, number * rows, rows)
        pq.write_table(table, unfinished / "before" / f"{number:03}.parquet")
        after.append(_with_one_row_updated(table, rows // 2))
        pq.write_table(after[-1], unfinished / "after" / f"{number:03}.parquet")
    whole = pa.concat_tables(after).combine_chunks()
    order = random.permutation(len(whole))
    for number in range(files):
        part = whole.take(pa.array(order[number * rows : (number + 1) * rows]))
        pq.write_table(part, unfinished / "shuffled" / f"{number:03}.parquet")
        versions = pc.cast(pc.equal(part["amount"], -1.0), pa.int64())
        tracked = part.append_column(ID_COLUMN, part["id"]).append_column(VERSION_COLUMN, versions)
        pq.write_table(tracked, unfinished / "tracked" / f"{number:03}.parquet")
    unfinished.rename(folder)
    return folder


def _orders(random: np.random.Generator, first: int, rows: int) -> pa.Table:
    """Return rows of seven columns: an order each."""
    ids = np.arange(first, first + rows)
    statuses = pa.DictionaryArray.from_arrays(
        pa.array(random.integers(0, 4, rows), pa.int32()),
        pa.array(["new", "paid", "shipped", "returned"]),
    )
    return pa.table(
        {
            "id": ids,
            "customer": pa.array([f"customer-{n}" for n in random.integers(0, 100_000, rows)]),
            "product": pa.array([f"p{n}" for n in random.integers(0, 5000, rows)]),
            "status": statuses.cast(pa.string()),
            "quantity": pa.array(random.integers(1, 100, rows), pa.int32()),
            "amount": np.round(random.random(rows) * 1000, 2),
            "updated": pa.array(1_760_000_000_000_000 + ids * 1_000_003, pa.timestamp("us", "UTC")),
        }
    )


def _with_one_row_updated(table: pa.Table, row: int) -> pa.Table:
    amounts = table["amount"].to_numpy().copy()
    amounts[row] = -1.0
    return table.set_column(table.schema.get_field_index("amount"), "amount", pa.array(amounts))
