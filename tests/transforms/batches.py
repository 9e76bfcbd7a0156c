"""Batches of change rows, seen through a view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeSourceKind, ChangeType
from tailerd.changefeed.offset import Version
from tailerd.transforms.options import make_view
from tailerd.transforms.view import View


def change_batch(
    rows: pa.RecordBatch | Mapping[str, Any], kinds: ChangeType | Sequence[str] = ChangeType.INSERT
) -> ChangeBatch:
    return ChangeBatch(
        rows=rows if isinstance(rows, pa.RecordBatch) else pa.RecordBatch.from_pydict(dict(rows)),
        change_type=kinds if isinstance(kinds, ChangeType) else pa.array(kinds, pa.string()),
        version=Version(1),
        timestamp_us=0,
        change_source=ChangeSourceKind.CDC,
    )


def view_of(**options: Any) -> View:
    view = make_view(**options)
    assert view is not None
    return view


def seen(rows: pa.RecordBatch | Mapping[str, Any], **options: Any) -> dict[str, list[Any]]:
    """Return the columns of rows that are all inserted, as a checked view delivers them."""
    batch = change_batch(rows)
    view = view_of(**options)
    view.check(batch.rows.schema)
    found = view.bind(batch.rows.schema).apply(batch)
    assert found is not None
    assert found.rows.schema.equals(view.schema(batch.rows.schema), check_metadata=True)
    result: dict[str, list[Any]] = found.rows.to_pydict()
    return result
