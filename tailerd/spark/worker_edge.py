"""Wraps Python code that Spark calls, so that its errors carry themselves as data.

All code that Spark runs is wrapped: methods of data sources, readers and writers (in separate
processes on the driver and on executors), functions of tasks, and callbacks of `foreachBatch`. The
errors are decoded by `query_errors.parse_error`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import isfunction
from typing import ParamSpec, TypeVar, cast

from tailerd.errors import TailerdError
from tailerd.remedies import SPARK
from tailerd.spark.query_errors import AS_DATA, format_trailer, is_trailer
from tailerd.storage.stores import Stores, StoreSettings

_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")


@contextmanager
def worker_edge() -> Iterator[None]:
    """Add its trailer to a `TailerdError` raised inside, so that every traceback includes it.

    The trailer is a note of the exception: tracebacks show it after the unchanged message. Other
    exceptions pass unchanged, and so do all in a session that no daemon started.
    """
    try:
        yield
    except TailerdError as error:
        error.address(SPARK)
        if os.environ.get(AS_DATA):
            # An error that is wrapped twice, or raised again for a repeated batch, has one trailer.
            notes = [note for note in getattr(error, "__notes__", ()) if not is_trailer(note)]
            # The trailer keeps the open parts, which a daemon fills in for its pipeline.
            error.__notes__ = [*notes, format_trailer(error)]
        raise


def errors_travel(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return the function with `worker_edge` around its call, and around each item it yields."""

    @wraps(function)
    def at_edge(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with worker_edge():
            made = function(*args, **kwargs)
        return cast(_R, _guard_items(made)) if isinstance(made, Iterator) else made

    return at_edge


def all_errors_travel(kind: type[_T]) -> type[_T]:
    """Return a class with `worker_edge` around each public method that it defines itself."""
    for name, member in list(vars(kind).items()):
        if isfunction(member) and not name.startswith("_"):
            setattr(kind, name, errors_travel(member))
    return kind


def _guard_items(items: Iterator[_T]) -> Iterator[_T]:
    with worker_edge():
        yield from items


# Spark keeps worker processes but unpickles the closure for each task, so that no object of one
# task reaches the next: connections can only be kept by the process.


@functools.lru_cache(maxsize=4)
def worker_stores(settings: StoreSettings) -> Stores:
    """Return this process's stores with these settings; the same for equal ones."""
    return Stores(settings)
