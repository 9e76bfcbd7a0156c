"""Rows of a delivery as the target needs them: checked values, and what each change does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.changefeed.change_batch import ChangeBatch, value_rows
from tailerd.errors import SinkRefusedError, ValueNotRepresentableError
from tailerd.records.update_pairs import NO_ROW, pair_rows
from tailerd.sinks.postgres.columns import Column, choose_type
from tailerd.sinks.postgres.copy_encoding import find_unrepresentable
from tailerd.sinks.postgres.table import Values

CHUNK_BYTES = 2 << 20
"""Arrow bytes that are encoded together."""
SHOWN_KEYS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRules:
    """What rows have to satisfy.

    Attributes:
        table: Configured name of the table, for errors.
        key: Columns that may not be null.
        nulls_unrepresentable: Whether a value that PostgreSQL cannot store becomes null.
    """

    table: str
    key: Sequence[str]
    nulls_unrepresentable: bool


def check_rows(
    batch: ChangeBatch, target: Mapping[str, Column], rules: RowRules
) -> dict[str, Values]:
    """Return the values of a batch by column, with the types of the target's columns.

    Raises:
        ValueNotRepresentableError: PostgreSQL cannot store one.
        SinkRefusedError: A column of the key has nulls.
    """
    rows = value_rows(batch.rows)
    found: dict[str, Values] = {}
    for field, array in zip(rows.schema, rows.columns, strict=True):
        # In the type of the values: the target's may be wider.
        bad = find_unrepresentable(array, field, choose_type(field))
        if bad is not None:
            if not rules.nulls_unrepresentable:
                raise ValueNotRepresentableError(
                    f"{len(bad.rows)} row(s) of version {batch.version} of {rules.table} have a"
                    f" {bad.reason} in the column {field.name!r}, which PostgreSQL cannot store.",
                    remedy="Correct the rows, set `on_unrepresentable: null`, or leave the column"
                    " out of `columns`.",
                    table=rules.table,
                    version=batch.version,
                )
            mask = np.zeros(rows.num_rows, dtype=bool)
            mask[bad.rows] = True
            array = pc.if_else(pa.array(mask), pa.scalar(None, array.type), array)
        found[field.name] = array, field, target[field.name].kind
    _check_key(batch, found, rules)
    return found


def _check_key(batch: ChangeBatch, columns: Mapping[str, Values], rules: RowRules) -> None:
    arrays = [columns[name][0] for name in rules.key if name in columns]
    if len(arrays) < len(rules.key):
        missing = next(name for name in rules.key if name not in columns)
        raise SinkRefusedError(
            f"{rules.table} has no column {missing!r}, which `key` names.", remedy="Correct `key`."
        )
    if not any(array.null_count for array in arrays):
        return
    is_null = np.zeros(batch.num_rows, dtype=bool)
    for array in arrays:
        is_null |= array.is_null().to_numpy(zero_copy_only=False)
    numbers = pa.array(np.flatnonzero(is_null)[:SHOWN_KEYS])
    keys = zip(*(array.take(numbers).to_pylist() for array in arrays), strict=True)
    raise SinkRefusedError(
        f"{int(is_null.sum())} row(s) of version {batch.version} of {rules.table} have null in"
        f" the key ({', '.join(rules.key)}): {show_keys(keys)}.",
        remedy="Choose columns for `key` that are never null, or leave the rows out with `where`.",
    )


def show_keys(keys: Iterator[tuple[object, ...]] | Sequence[tuple[object, ...]]) -> str:
    """Return keys as text for a message."""
    return ", ".join(f"({', '.join(map(str, key))})" for key in keys)


def order_changes(
    batch: ChangeBatch, key: Sequence[str]
) -> tuple[ChangeBatch, npt.NDArray[np.bool_]]:
    """Return the changes of keys in their order, and whether each removes its key's row.

    An update is its newer row, and removes the key of its older row if that is another one.

    Raises:
        UnsupportedFeatureError: A change type is not in the protocol.
    """
    changes = pair_rows(batch, key)
    is_removal = changes.after == NO_ROW
    numbers = np.where(is_removal, changes.before, changes.after)
    if len(numbers) == batch.num_rows and bool((numbers[1:] > numbers[:-1]).all()):
        return batch, is_removal
    return batch.take(numbers), is_removal


def split_rows(
    columns: Mapping[str, Values], count: int
) -> Iterator[tuple[dict[str, Values], int]]:
    """Yield parts of bounded size, in order, each with its number of rows.

    A column of one value for all rows keeps it in each part.
    """
    size = sum(array.nbytes for array, _, _ in columns.values())
    step = max(1, min(count, count * CHUNK_BYTES // max(size, 1)))
    for start in range(0, count, step):
        length = min(step, count - start)
        yield (
            {
                name: (array.slice(start, length) if len(array) == count else array, field, kind)
                for name, (array, field, kind) in columns.items()
            },
            length,
        )
