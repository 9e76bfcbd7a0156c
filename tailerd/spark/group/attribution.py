"""Errors that are one table's alone say so; the tables beside it need not wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tailerd.errors import CommitAheadError, ConfigError, SinkRefusedError, TableError
from tailerd.spark.group.holds import marked


@contextmanager
def blaming(table: str) -> Iterator[None]:
    """Mark an error inside as this table's, unless it is about the brokers and so about all.

    Raises:
        TailerdError: What was raised, with the mark.
    """
    try:
        yield
    except (CommitAheadError, ConfigError, SinkRefusedError, TableError) as error:
        raise marked(error, table) from error
