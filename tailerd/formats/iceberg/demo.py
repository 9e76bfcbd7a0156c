"""A small table written with pyiceberg, and a writer that keeps changing it: for `demo` only.

The table has no catalog: metadata files are numbered, as in a folder that is one. Each change
rewrites its only data file.
"""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa

from tailerd.errors import MissingExtraError
from tailerd.formats.demo_orders import DemoOrders, publish_file
from tailerd.formats.iceberg.metadata import METADATA_FOLDER, SUFFIX
from tailerd.formats.parts import Demo

SCHEMA = pa.schema(
    [
        pa.field(name, kind, metadata={b"PARQUET:field_id": str(number).encode()})
        for number, (name, kind) in enumerate(
            [
                ("order_id", pa.int64()),
                ("customer", pa.string()),
                ("status", pa.string()),
                ("amount", pa.float64()),
                ("updated_at", pa.timestamp("us", "UTC")),
            ],
            1,
        )
    ]
)


class DemoIceberg(DemoOrders):
    """The table and its writer."""

    def create(self) -> None:
        """Write the first orders."""
        self._table = _create_table(self.folder)
        self._file: Any = None
        self.make_first_orders()
        self._commit()

    def change(self) -> str:
        """Commit one more version: place, update or delete an order; return which."""
        kind = self.change_order().kind
        self._commit()
        return kind

    def _commit(self) -> None:
        """Replace the data file by one with the current orders."""
        from pyiceberg.io.pyarrow import write_file
        from pyiceberg.table import WriteTask

        rows = pa.Table.from_pylist(list(self.orders.values()), SCHEMA).to_batches()
        table = self._table
        task = WriteTask(uuid.uuid4(), 0, table.schema(), rows)
        [file] = write_file(table.io, table.metadata, iter([task]))
        file.spec_id = table.spec().spec_id
        with table.transaction() as transaction:
            snapshot = transaction.update_snapshot()
            with snapshot.fast_append() if self._file is None else snapshot.overwrite() as update:
                update.append_data_file(file)
                if self._file is not None:
                    update.delete_data_file(self._file)
        self._file = file


def _create_table(folder: Any) -> Any:
    """Return a new table in a folder, without rows.

    Raises:
        MissingExtraError: pyiceberg is not installed.
    """
    try:
        from pyiceberg.catalog.noop import NoopCatalog
        from pyiceberg.io.pyarrow import PyArrowFileIO, pyarrow_to_schema
        from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
        from pyiceberg.table import CommitTableResponse, Table
        from pyiceberg.table.metadata import new_table_metadata
        from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
        from pyiceberg.table.update import update_table_metadata
    except ImportError as error:
        raise MissingExtraError(
            f"The demo's Iceberg table is written with pyiceberg, which cannot be loaded: {error}.",
            remedy="Install it: pip install 'tailerd[iceberg]'.",
        ) from error

    def publish(metadata: Any, number: int) -> str:
        path = folder / METADATA_FOLDER / f"v{number}{SUFFIX}"
        publish_file(path, metadata.model_dump_json(exclude_none=True).encode())
        return str(path)

    class Folder(NoopCatalog):
        """Commits by writing the next metadata file."""

        number = 1

        def commit_table(self, table: Any, requirements: Any, updates: Any) -> CommitTableResponse:
            """Write the next metadata file."""
            self.number += 1
            metadata = update_table_metadata(table.metadata, updates)
            path = publish(metadata, self.number)
            return CommitTableResponse(metadata=metadata, metadata_location=path)

    first = new_table_metadata(
        pyarrow_to_schema(SCHEMA),
        UNPARTITIONED_PARTITION_SPEC,
        UNSORTED_SORT_ORDER,
        str(folder.resolve()),
    )
    path = publish(first, 1)
    return Table(("demo", folder.name), first, path, PyArrowFileIO(), Folder("demo"))


DEMO = Demo(table=DemoIceberg)
