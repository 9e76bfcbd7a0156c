"""Writes Lance tables with the library itself, in this process."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())])
Rows = list[dict[str, Any]]


class LanceWriter:
    """A table and its writer.

    Args:
        location: Where; there need not be a table yet.
        schema: Of the first rows.
        stable_ids: Whether rows keep their ids.
        version: Of the data files; None for the library's own choice.
        options: Of the store, for a bucket.
    """

    def __init__(
        self,
        location: Path | str,
        *,
        schema: pa.Schema = SCHEMA,
        stable_ids: bool = False,
        version: Any = None,
        options: dict[str, str] | None = None,
    ) -> None:
        self.location = location
        self.schema = schema
        self._stable_ids = stable_ids
        self._version = version
        self._options = options
        self._dataset: Any = None

    @property
    def dataset(self) -> Any:
        """The table as the library has it, at its newest version."""
        import lance

        if self._dataset is None:
            self._dataset = lance.dataset(str(self.location), storage_options=self._options)
        self._dataset.checkout_latest()
        return self._dataset

    def append(self, rows: Rows, **options: Any) -> int:
        """Append rows, to a new table where there is none; return the version."""
        return self.write(pa.Table.from_pylist(rows, self.schema), **options)

    def write(self, rows: pa.Table, mode: str = "append", **options: Any) -> int:
        """Write rows; return the version."""
        import lance

        is_new = self._dataset is None
        self._dataset = lance.write_dataset(
            rows,
            str(self.location),
            mode="create" if is_new and mode == "append" else mode,
            enable_stable_row_ids=self._stable_ids,
            data_storage_version=self._version,
            storage_options=self._options,
            **options,
        )
        return int(self._dataset.version)

    def delete(self, where: str) -> int:
        """Delete rows; return the version."""
        self.dataset.delete(where)
        return int(self._dataset.version)

    def clean_up_before(self, version: int) -> None:
        """Let the history begin at a version."""
        older = [each["version"] for each in self.dataset.versions() if each["version"] < version]
        self._dataset.cleanup_old_versions(versions=older, delete_unverified=True)

    def snapshot(self, version: int) -> Counter[str]:
        """Return the rows of a version as the library reads them."""
        table = self.dataset.checkout_version(version).to_table()
        return Counter(repr(row) for row in table.to_pylist())

    def clean_up_all(self) -> None:
        """Keep nothing but the newest version."""
        self.dataset.cleanup_old_versions(older_than=dt.timedelta(0), delete_unverified=True)
