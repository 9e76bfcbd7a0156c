"""Table formats by name, and which of them a table has."""

from __future__ import annotations

import asyncio
import difflib
import functools
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import cast

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeTask
from tailerd.changefeed.limits import BatchLimit
from tailerd.errors import ConfigError, NotATableError
from tailerd.formats.base import ChangeSource, OpenRequest, TableFormat, TaskReader
from tailerd.formats.parts import Demo, required
from tailerd.formats.placement import allowed_places
from tailerd.registry import AUTO, format_class, format_names, known
from tailerd.storage.stores import Stores


@functools.cache
def table_format(name: str) -> TableFormat:
    """Return the format of a name.

    Raises:
        ConfigError: The format is unknown, or the distribution that brings it does not load.
    """
    return cast("TableFormat", format_class(name)())


def table_formats() -> list[TableFormat]:
    """Return every format, built-in ones first."""
    return [table_format(name) for name in format_names()]


def formats_named(name: str = AUTO) -> list[TableFormat]:
    """Return the format of a name; all of them for `auto`.

    Raises:
        ConfigError: The format is unknown, or the distribution that brings it does not load.
    """
    return table_formats() if name == AUTO else [table_format(name)]


def reader_of(task: ChangeTask) -> TaskReader:
    """Return what reads a task."""
    return table_format(task.format).reader


def read_tasks(
    tasks: Iterable[ChangeTask],
    limit: BatchLimit,
    columns: Sequence[str] | None = None,
    *,
    stores: Stores,
) -> Iterator[ChangeBatch]:
    """Yield the rows of tasks in order, however their formats read them; blocking.

    Args:
        columns: Names to read, as far as a task's version has them; None for all.
    """
    for _, found in groupby(tasks, lambda task: task.format):
        run = list(found)
        yield from reader_of(run[0]).read_run(run, limit, columns, stores=stores)


async def find_format(
    place: str,
    name: str = AUTO,
    allowed: Iterable[str] = (),
    *,
    stores: Stores,
) -> TableFormat:
    """Return the format of the table at a place.

    Args:
        name: What the user says it is; `auto` to look.
        allowed: Places outside the table that links may lead to.
        stores: How its files are reached.

    Raises:
        ConfigError: The format is unknown, several are there, or no store serves this place.
        NotATableError: No table that a format recognises lies there.
        StorageError: The place cannot be read.
    """
    if name != AUTO:
        return table_format(name)
    formats = table_formats()
    if len(formats) == 1:
        # Opening says better what is wrong.
        return formats[0]
    store, root = stores.locate_table(place, allowed_places(allowed))
    answers = await asyncio.gather(
        *(each.detect(store, root) for each in formats), return_exceptions=True
    )
    found = [each for each, answer in zip(formats, answers, strict=True) if answer is True]
    if len(found) > 1:
        raise ConfigError(
            f"{place} is a table of several formats: {', '.join(each.name for each in found)}.",
            remedy="Name the one that is meant (--table-format, or `format` in the configuration).",
        )
    if found:
        return found[0]
    for answer in answers:
        # Rights may end at the table's folder, where another format's files would lie beside it.
        if isinstance(answer, BaseException):
            raise answer
    names = ", ".join(each.name for each in formats)
    raise NotATableError(
        f"There is no table at {place} that is of a format known here ({names}).",
        remedy="Check the path. Tables in folders below it: `tailerd init PLACE` finds them.",
    )


async def require_folder(place: str, stores: Stores) -> None:
    """Make sure that a place is not obviously wrong, before its log is said to be empty.

    Of a bucket nothing is asked.

    Raises:
        NotATableError: There is no such folder, or it is a table's log.
        ConfigError: No store serves this place.
    """
    store, root = stores.locate(place)
    parent, _, name = root.rstrip("/").rpartition("/")
    if name and name in {each.names.folder for each in table_formats()}:
        raise NotATableError(
            f"{place} is the log of a table, not the table.", remedy=f"Did you mean {parent}?"
        )
    if not store.is_local_folder or await asyncio.to_thread(_exists, root):
        return
    # A table may have no folder yet.
    if any(await asyncio.gather(*(asyncio.to_thread(f.is_at, place) for f in table_formats()))):
        return
    remedy = "Check the path for a spelling mistake."
    near = await asyncio.to_thread(_sibling_like, parent or "/", name)
    raise NotATableError(
        f"There is no table at {place}: the folder does not exist.",
        remedy=f"Did you mean {near}?" if near else remedy,
    )


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:
        # Opening says better what is wrong.
        return True


def _sibling_like(parent: str, name: str) -> str:
    """Return the folder whose name is nearest to one that does not exist; empty for none."""
    try:
        names = [entry.name for entry in Path(parent).iterdir() if entry.is_dir()]
    except OSError:
        return ""
    near = difflib.get_close_matches(name, names, n=1)
    return f"{parent.rstrip('/')}/{near[0]}" if near else ""


def presumed_format(place: str, name: str = AUTO) -> TableFormat:
    """Return the format a table most likely has, for watchers; blocking, asks no remote store.

    Where the format is to be recognised and nothing can be seen yet, or the place is in a bucket,
    it is the first: polling finds commits all the same.

    Raises:
        ConfigError: The format is unknown, or no store serves this place.
    """
    if name != AUTO:
        return table_format(name)
    formats = table_formats()
    if len(formats) > 1 and Stores().locate(place)[0].is_local_folder:
        return next((each for each in formats if each.is_at(place)), formats[0])
    return formats[0]


def commit_folder(place: str, name: str = AUTO) -> str:
    """Return the folder whose files are a table's commits, as `presumed_format` has it.

    Raises:
        ConfigError: The format is unknown, or no store serves this place.
    """
    return presumed_format(place, name).folder(place)


async def open_table(place: str, request: OpenRequest, name: str = AUTO) -> ChangeSource:
    """Open a table for its changes.

    Args:
        name: Its format; `auto` to look.

    Raises:
        TableError: It is none, or asks for what its reader does not know.
        ConfigError: The format or an option is unknown, or no store serves this place.
        StorageError: The place cannot be read.
    """
    found = await find_format(place, name, request.allowed_paths, stores=request.stores)
    for option, value in request.options.items():
        if value is not None and option not in found.options:
            raise ConfigError(
                f"{place} is a table of the format {found.name}, which has no option {option!r}.",
                remedy=f"Remove it, or correct its name. {known(option, found.options)}".strip(),
            )
    source = await found.open(place, request)
    if request.on_format is not None:
        request.on_format(found)
    return source


def find_demo(name: str = AUTO) -> Demo:
    """Return what makes a demo table.

    Args:
        name: Of a format; `auto` for the first one that makes any.

    Raises:
        UnsupportedFeatureError: The format makes none.
    """
    formats = formats_named(name)
    demo = next((each.demo for each in formats if each.demo is not None), None)
    return required(demo, ", ".join(each.name for each in formats), "demo")
