"""Reads tasks through the view that they carry: in the daemon's threads and on executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch, select_by_name
from tailerd.changefeed.change_task import ChangeTask
from tailerd.changefeed.column_filter import ColumnFilter
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT, BatchLimit
from tailerd.errors import TailerdError
from tailerd.formats.base import SupportsColumnNames, TaskReader
from tailerd.formats.plain_schema import select_columns
from tailerd.storage.stores import Stores
from tailerd.transforms.view import BoundView, View


class ViewReader:
    """A `TaskReader` that gives the rows of a view.

    Args:
        reader: Of the tasks' format.
        view: Carried by all tasks that it reads.
    """

    def __init__(self, reader: TaskReader, view: View) -> None:
        self._reader = reader
        self._view = view
        self._bound: tuple[object, BoundView] | None = None

    def schema(self, task: ChangeTask, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the schema of a task's rows, without change columns."""
        found = self._view.schema(self._reader.schema(task, self._columns([task])))
        return found if columns is None else select_columns(found, columns)

    def read(
        self,
        task: ChangeTask,
        limit: BatchLimit = DEFAULT_BATCH_LIMIT,
        columns: Sequence[str] | None = None,
        *,
        stores: Stores | None = None,
    ) -> Iterator[ChangeBatch]:
        """Yield a task's rows."""
        rows = self._reader.read(task, limit, self._columns([task]), stores=stores)
        return self._show(rows, columns, limit)

    def read_run(
        self,
        tasks: Sequence[ChangeTask],
        limit: BatchLimit = DEFAULT_BATCH_LIMIT,
        columns: Sequence[str] | None = None,
        *,
        stores: Stores | None = None,
    ) -> Iterator[ChangeBatch]:
        """Yield the rows of tasks in order."""
        rows = self._reader.read_run(tasks, limit, self._columns(tasks), stores=stores)
        return self._show(rows, columns, limit)

    def split(self, task: ChangeTask, target_bytes: int) -> Sequence[ChangeTask]:
        """Split a task into parts that have each row once."""
        return self._reader.split(task, target_bytes)

    def excludes(self, task: ChangeTask, filters: Sequence[ColumnFilter]) -> bool:
        """Return whether it is certain that no row of a task passes; filters name the feed's."""
        # Tasks of one kind in a version have one schema; a snapshot may have a million of them.
        kind = task.version, task.change_type
        if self._bound is None or self._bound[0] != kind:
            schema = self._reader.schema(task, self._columns([task]))
            self._bound = kind, self._view.bind(schema)
        bound = self._bound[1]
        known = [each for each in map(bound.source_filter, filters) if each is not None]
        return self._reader.excludes(task, [*known, *bound.filters])

    def _columns(self, tasks: Sequence[ChangeTask]) -> Sequence[str] | None:
        """Return the columns that are read for tasks, as far as their versions have them."""
        reader, names = self._reader, dict[str, None]()
        if self._view.exclude and isinstance(reader, SupportsColumnNames):
            for task in {(task.version, task.change_type): task for task in tasks}.values():
                names |= dict.fromkeys(reader.column_names(task))
        return self._view.source_columns(names) or None

    def _show(
        self, batches: Iterator[ChangeBatch], columns: Sequence[str] | None, limit: BatchLimit
    ) -> Iterator[ChangeBatch]:
        last: tuple[pa.Schema, BoundView] | None = None
        with hiding_values(self._view):
            for batch in batches:
                schema = batch.rows.schema
                if last is None or not schema.equals(last[0], check_metadata=True):
                    last = schema, self._view.bind(schema)
                shown = last[1].apply(batch, limit.on_unchanged)
                if shown is not None and columns is not None:
                    names = [name for name in shown.rows.schema.names if name in columns]
                    shown = replace(shown, rows=select_by_name(shown.rows, names))
                if shown is not None:
                    yield shown


@contextmanager
def hiding_values(view: View | None) -> Iterator[None]:
    """Hide values of a view's masked partition columns in errors."""
    try:
        yield
    except TailerdError as error:
        if view is None or not view.masks:
            raise
        message, remedy = map(view.hide_values, (error.message, error.raw_remedy))
        # Without its cause, which names the file too. Nobody is shown `path`.
        raise error.restate(message, remedy=remedy) from None


def view_filters(view: object, schema: pa.Schema) -> tuple[ColumnFilter, ...]:
    """Return conditions that all rows meet that are delivered of a task with a view.

    Args:
        schema: Of the rows as they are read.
    """
    if not isinstance(view, View) or view.where is None:
        return ()
    return view.bind(schema).filters


def view_reader(reader: TaskReader, task: ChangeTask) -> TaskReader:
    """Return the reader of a task that may carry a view."""
    return ViewReader(reader, task.view) if isinstance(task.view, View) else reader
