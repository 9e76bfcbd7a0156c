"""A table's newest rows and how it grew, in pandas: `python report.py TABLE`."""

from __future__ import annotations

import sys

import pandas as pd

import tailerd


def report(location: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows of the newest version, and the bytes after each commit."""
    table = tailerd.table(location)
    growth = table.growth(limit=100).to_pandas()
    growth["total_bytes"] = growth["bytes"].cumsum()
    return table.snapshot().to_pandas(), growth


if __name__ == "__main__":
    rows, growth = report(sys.argv[1])
    print(rows.head())
    print(growth.tail())
