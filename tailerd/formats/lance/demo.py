"""A small table written with pylance, and a writer that keeps changing it: for `demo` only.

Orders keep their row ids, so that updates are emitted as pairs.
"""

from __future__ import annotations

import pyarrow as pa

from tailerd.formats.demo_orders import DemoOrders
from tailerd.formats.lance.library import load_lance
from tailerd.formats.parts import Demo

SCHEMA = pa.schema(
    [
        pa.field("order_id", pa.int64()),
        pa.field("customer", pa.string()),
        pa.field("status", pa.string()),
        pa.field("amount", pa.float64()),
        pa.field("updated_at", pa.timestamp("us", "UTC")),
    ]
)


class DemoLance(DemoOrders):
    """The table and its writer: rows keep their ids, so an update is emitted as one."""

    def create(self) -> None:
        """Write the first orders."""
        rows = pa.Table.from_pylist(self.make_first_orders(), SCHEMA)
        self._table = load_lance().write_dataset(rows, str(self.folder), enable_stable_row_ids=True)

    def change(self) -> str:
        """Commit one more version: location, update or delete an order; return which."""
        change = self.change_order()
        this = f"order_id = {change.order_id}"
        if change.after is None:
            self._table.delete(this)
        elif change.before is None:
            self._table.insert(pa.Table.from_pylist([change.after], SCHEMA))
        else:
            self._table.update({"status": f"'{change.after['status']}'"}, where=this)
        return change.kind


DEMO = Demo(table=DemoLance)
