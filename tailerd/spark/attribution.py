"""Errors that are one table's alone say so: the other tables of a batch need not wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tailerd.errors import (
    BugError,
    CommitAheadError,
    ConfigError,
    SinkRefusedError,
    TableError,
    TailerdError,
)


def attribute_to_table(error: Exception, table: str) -> TailerdError:
    """Return an error that says in its field `table` whose rows could not be read or written.

    One that says so already stays as it is: where it was raised, more was known.
    """
    if not isinstance(error, TailerdError):
        return BugError(
            f"A row could not be made a record: {error!r}.",
            remedy="Please report it.",
            table=table,
        )
    # A copy: the same error may stand for several tables.
    attributed = error.restated(error.message)
    attributed.table = error.table or table
    return attributed


@contextmanager
def attributed_to(table: str) -> Iterator[None]:
    """Attribute an error inside to this table, unless it is about the brokers and so about all.

    Raises:
        TailerdError: What was raised, with the table.
    """
    try:
        yield
    except (CommitAheadError, ConfigError, SinkRefusedError, TableError) as error:
        raise attribute_to_table(error, table) from error
