"""A view of a table: the columns, rows and values that a feed delivers, for every schema of it.

The feed of a view is the change feed of `SELECT columns FROM table WHERE condition`. So an update
whose row enters the view is an insert there, and one whose row leaves it is a delete.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.changefeed.change_batch import HIDDEN, ChangeBatch, join_columns
from tailerd.changefeed.change_task import ChangeType
from tailerd.changefeed.column_filter import ColumnFilter
from tailerd.errors import UsageError
from tailerd.records.update_pairs import RowChanges, pair_rows
from tailerd.rows.equality import RowComparer
from tailerd.rows.hash_kernels import Bools
from tailerd.transforms.columns import Output, Path, Selection, check_path, naming_option
from tailerd.transforms.mask import REDACTED, Hasher, Mask, MaskKind

if TYPE_CHECKING:
    from tailerd.transforms.where import Predicate

_SCHEMAS = 64
_FINGERPRINT_BYTES = 8
_SEED = 0
"""Of the hashes that compare two images of a row; nobody gains by making them collide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The part of a table that a feed has. Picklable; two equal views give equal rows.

    Attributes:
        include: Paths of the columns and fields that are delivered, in this order; None: all.
        exclude: Paths that are not.
        rename: Pairs of a path and its new name.
        where: The condition that rows meet; None: all rows.
        masks: Pairs of a path in the table and its mask.
        mask_key: For hashes. Not shown.
        drops_unchanged: Whether updates that change nothing that is delivered are left out.
        key: Names in the feed of the columns that identify a row, by which images are paired.
        extra: Names in the feed of columns from which keys, topics and partitions are made; those
            that are not delivered come as hidden columns.
    """

    include: tuple[Path, ...] | None = None
    exclude: tuple[Path, ...] = ()
    rename: tuple[tuple[Path, str], ...] = ()
    where: Predicate | None = None
    masks: tuple[tuple[Path, Mask], ...] = ()
    mask_key: bytes = field(default=b"", repr=False)
    drops_unchanged: bool = False
    key: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()

    def check(self, schema: pa.Schema) -> None:
        """Make sure that the view fits the table's newest schema.

        Raises:
            UsageError: A column is unknown, a mask does not fit its type, or the condition cannot
                be evaluated.
        """
        for option, paths in (
            ("columns", (*(self.include or ()), *self.exclude)),
            ("rename", [path for path, _ in self.rename]),
        ):
            with naming_option(option):
                for path in paths:
                    check_path(schema, path, option)
        with naming_option("mask"):
            self._check_masks(schema)
        if self.where is not None:
            with naming_option("where"):
                self.where.check(schema)
        with naming_option("rename"):
            self.bind(schema)

    def _check_masks(self, schema: pa.Schema) -> None:
        identifying = self.source_names((*self.key, *self.extra))
        for path, mask in self.masks:
            mask.check(check_path(schema, path, "mask"))
            if path[0] in identifying and mask.kind is not MaskKind.HASH:
                raise UsageError(
                    f"The mask {mask.kind.value!r} of {path[0]!r} may give two rows one value, and"
                    " this column is part of a key or chooses a topic or partition.",
                    remedy="Mask it with hash.",
                )
            if mask.kind is MaskKind.HASH and not self.mask_key:
                raise UsageError(
                    "The mask `hash` needs a secret key.",
                    remedy="Set mask_key, or TAILERD_MASK_KEY.",
                )

    def source_columns(self, names: Iterable[str]) -> tuple[str, ...] | None:
        """Return the columns that are read of a table with these names; None: all."""
        needed = () if self.where is None else self.where.columns
        needed += self.source_names((*self.key, *self.extra))
        if self.include is not None:
            return tuple(dict.fromkeys((*(path[0] for path in self.include), *needed)))
        unread = {path[0] for path in self.exclude if len(path) == 1}.difference(needed)
        return tuple(name for name in names if name not in unread) if unread else None

    def hide_values(self, text: str) -> str:
        """Return a message in which values of masked partition columns are replaced."""
        names = "|".join(re.escape(path[0]) for path, _ in self.masks)
        if not names:
            return text
        # In the path of a file; without a slash after it, a value may have spaces.
        text = re.sub(rf"(?<!\w)({names})=[^/\n'\"]*", rf"\1={REDACTED}", text)
        return re.sub(rf"""('.*?'|".*?")(?= of column ({names})\b)""", REDACTED, text)

    @property
    def output_names(self) -> tuple[str, ...] | None:
        """The names of the feed's columns; None: those of the table, with new names."""
        if self.include is None:
            return None
        names = dict(self.rename)
        paths = dict.fromkeys(path[:1] for path in self.include)
        return tuple(names.get(path, path[0]) for path in paths)

    def source_names(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the table's names of columns of the feed; others keep theirs."""
        renamed = {name: path[0] for path, name in self.rename if len(path) == 1}
        return tuple(renamed.get(name, name) for name in names)

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the feed of rows of a schema."""
        return self.bind(schema).schema

    def bind(self, schema: pa.Schema) -> BoundView:
        """Return the view of rows of a schema."""
        # Schemas with other metadata are equal to Python.
        return _bind(self, schema, tuple(str(field.metadata) for field in schema))

    def digest(self) -> str:
        """Return a text that changes with the meaning of the view; secrets cannot be read in it."""
        fingerprint = hashlib.sha256(b"tailerd mask key\0" + self.mask_key).hexdigest()
        parts = {
            "include": self.include,
            "exclude": sorted(self.exclude),
            "rename": sorted(self.rename),
            "where": None if self.where is None else self.where.text.strip(),
            "masks": sorted((path, mask.kind.value, mask.unit) for path, mask in self.masks),
            "mask_key": fingerprint if self.mask_key else "",
            "drops_unchanged": self.drops_unchanged,
        }
        text = json.dumps(parts, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[: 2 * _FINGERPRINT_BYTES]


@functools.lru_cache(maxsize=_SCHEMAS)
def _bind(view: View, schema: pa.Schema, _metadata: tuple[str, ...]) -> BoundView:
    return BoundView(view, schema)


class BoundView:
    """The view of rows of one schema.

    Attributes:
        outputs: The delivered columns.
        schema: The columns of the feed.
    """

    def __init__(self, view: View, schema: pa.Schema) -> None:
        self._view = view
        selection = Selection(
            include=view.include,
            exclude=frozenset(view.exclude),
            names=dict(view.rename),
            masks=dict(view.masks),
        )
        self.outputs = selection.outputs(list(schema))
        self._fields = [schema.field(output.index) for output in self.outputs]
        shown = [output.field(f) for output, f in zip(self.outputs, self._fields, strict=True)]
        hidden = self._hidden_outputs(selection, schema)
        self.outputs += hidden
        for output in hidden:
            field = schema.field(output.index)
            self._fields.append(field)
            masked = output.field(field)
            shown.append(masked.with_metadata({**(masked.metadata or {}), HIDDEN: b"1"}))
        self.schema = pa.schema(shown)
        self._key = _table_names(view.key, self.outputs, schema)
        where = () if view.where is None else view.where.columns
        # They also decide whether an update changes something.
        self._condition_columns = [name for name in where if name in schema.names]
        self._schema = schema
        self._hasher = Hasher(view.mask_key)

    def _hidden_outputs(self, selection: Selection, schema: pa.Schema) -> tuple[Output, ...]:
        """Return columns that only keys, topics and partitions are made of."""
        names = {output.name for output in self.outputs}
        missing = [name for name in dict.fromkeys(self._view.extra) if name not in names]
        include = [(name,) for name in self._view.source_names(missing)]
        everything = replace(selection, include=include, exclude=frozenset())
        return everything.outputs(list(schema)) if include else ()

    @functools.cached_property
    def filters(self) -> tuple[ColumnFilter, ...]:
        """Conditions on the table's columns that all rows of the feed meet."""
        where = self._view.where
        if where is None or len(self._condition_columns) < len(where.columns):
            return ()
        return where.filters(self._schema)

    def source_filter(self, condition: ColumnFilter) -> ColumnFilter | None:
        """Return a condition on a column of the feed as one on the table's; None if it is none."""
        for output in self.outputs:
            if output.name == condition.column and output.mask is None:
                return replace(condition, column=output.path[0])
        return None

    def apply(
        self, batch: ChangeBatch, on_unchanged: Callable[[int], None] | None = None
    ) -> ChangeBatch | None:
        """Return the rows of the feed; None if there are none.

        Args:
            on_unchanged: Called with the number of updates that are left out.
        """
        view = self._view
        pairs = RowChanges(_NO_ROWS, _NO_ROWS)
        if view.where is not None or view.drops_unchanged:
            changes = pair_rows(batch, self._key)
            updates = changes.updates
            pairs = RowChanges(changes.before[updates], changes.after[updates])
        if view.where is not None:
            batch, pairs = _select_rows(batch, view.where.passes(batch.rows), pairs)
        if not batch.num_rows:
            return None
        found = replace(batch, rows=self._project(batch.rows))
        if len(pairs.before) and view.drops_unchanged:
            found = self._drop_unchanged(batch, found, pairs)
            if on_unchanged is not None and found.num_rows < batch.num_rows:
                on_unchanged((batch.num_rows - found.num_rows) // 2)
        return found if found.num_rows else None

    def _project(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [
            output.values(rows.column(output.index), field, self._hasher)
            for output, field in zip(self.outputs, self._fields, strict=True)
        ]
        return join_columns(arrays, self.schema, rows.num_rows)

    def _drop_unchanged(
        self, batch: ChangeBatch, found: ChangeBatch, pairs: RowChanges
    ) -> ChangeBatch:
        """Return the rows without the images of updates that change nothing."""
        is_equal = np.ones(len(pairs.before), np.bool_)
        for rows, names in (
            (found.rows, found.rows.schema.names),
            (batch.rows, self._condition_columns),
        ):
            some = rows.select(names)
            one, other = (some.take(pa.array(numbers)) for numbers in (pairs.before, pairs.after))
            is_equal &= RowComparer(some.schema, _SEED).equal(one, other)
        is_left = np.ones(batch.num_rows, np.bool_)
        is_left[pairs.before[is_equal]] = False
        is_left[pairs.after[is_equal]] = False
        return found if is_left.all() else found.take(np.flatnonzero(is_left))


def _table_names(
    key: Sequence[str], outputs: Sequence[Output], schema: pa.Schema
) -> tuple[str, ...]:
    """Return the table's names of the key's columns; empty if it does not have one of them."""
    by_name = {output.name: output.path[0] for output in outputs}
    names = [by_name.get(name, name) for name in key]
    return tuple(names) if all(name in schema.names for name in names) else ()


_NO_ROWS = np.empty(0, np.int64)
_KINDS = list(ChangeType)
_ALONE = {
    ChangeType.UPDATE_PREIMAGE: ChangeType.DELETE,
    ChangeType.UPDATE_POSTIMAGE: ChangeType.INSERT,
}


@functools.cache
def _words() -> pa.StringArray:
    # Not while this module is imported: Arrow imports pandas for its first array.
    return pa.array([kind.value for kind in _KINDS], pa.string())


def _select_rows(
    batch: ChangeBatch, passes: Bools, pairs: RowChanges
) -> tuple[ChangeBatch, RowChanges]:
    """Return the rows that pass a condition, and the updates that are left of `pairs`.

    An image whose other image does not pass, or is not known, is a delete or an insert.
    """
    kinds = batch.change_type
    if isinstance(kinds, ChangeType):
        kind = _ALONE.get(kinds, kinds)
        found = batch if kind is kinds else replace(batch, change_type=kind)
        return found if passes.all() else found.take(np.flatnonzero(passes)), pairs
    codes = pc.index_in(batch.change_types(), _words()).to_numpy().astype(np.int64)
    is_whole = passes[pairs.before] & passes[pairs.after]
    is_alone = np.ones(batch.num_rows, np.bool_)
    is_alone[pairs.before[is_whole]] = False
    is_alone[pairs.after[is_whole]] = False
    for image, kind in _ALONE.items():
        codes[is_alone & (codes == _KINDS.index(image))] = _KINDS.index(kind)
    renamed = pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), _words())
    found = replace(batch, change_type=renamed)
    if passes.all():
        return found, pairs
    at = np.cumsum(passes) - 1
    pairs = RowChanges(at[pairs.before[is_whole]], at[pairs.after[is_whole]])
    return found.take(np.flatnonzero(passes)), pairs
