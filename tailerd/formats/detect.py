"""Looks up table formats by name, and detects the format of a table."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import cast

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeTask
from tailerd.changefeed.limits import BatchLimit
from tailerd.errors import ConfigError, UnsupportedFeatureError
from tailerd.formats.base import ChangeSource, OpenRequest, TableFormat, TaskReader
from tailerd.formats.not_a_table import explain_not_a_table
from tailerd.formats.parts import Demo, require_part
from tailerd.formats.versioned_source import VersionedSource
from tailerd.formats.view_reader import view_reader
from tailerd.registry import AUTO, format_class, format_names, suggest_name
from tailerd.storage.stores import Stores
from tailerd.storage.table_location import TableLocation


@functools.cache
def table_format(name: str) -> TableFormat:
    """Return the format of a name.

    Raises:
        ConfigError: The format is unknown, or the distribution that provides it does not load.
    """
    return cast("TableFormat", format_class(name)())


def table_formats() -> list[TableFormat]:
    """Return every format, built-in ones first."""
    return [table_format(name) for name in format_names()]


def formats_named(name: str = AUTO) -> list[TableFormat]:
    """Return the format of a name; all of them for `auto`.

    Raises:
        ConfigError: The format is unknown, or the distribution that provides it does not load.
    """
    return table_formats() if name == AUTO else [table_format(name)]


def find_reader(task: ChangeTask) -> TaskReader:
    """Return the reader of a task."""
    return view_reader(table_format(task.format).reader, task)


def read_tasks(
    tasks: Iterable[ChangeTask],
    limit: BatchLimit,
    columns: Sequence[str] | None = None,
    *,
    stores: Stores,
) -> Iterator[ChangeBatch]:
    """Yield the rows of tasks of any formats, in order; blocking.

    Args:
        columns: Names to read, as far as a task's version has them; None for all.
    """
    for _, found in groupby(tasks, lambda task: (task.format, task.view)):
        run = list(found)
        yield from find_reader(run[0]).read_run(run, limit, columns, stores=stores)


async def find_format(location: TableLocation, name: str = AUTO) -> TableFormat:
    """Return the format of the table at a location.

    Args:
        name: The format the user named; `auto` to detect it.

    Raises:
        ConfigError: The format is unknown, or several formats match.
        NotATableError: No format recognises a table there, or nothing is there.
        StorageError: The location cannot be read.
    """
    if name != AUTO:
        named = table_format(name)
        if location.is_local and not await asyncio.to_thread(_is_there, location, named):
            raise await explain_not_a_table(location, [named])
        return named
    formats = table_formats()
    if len(formats) == 1:
        # Opening the table reports a more precise error.
        return formats[0]
    answers = await asyncio.gather(
        *(each.detect(location) for each in formats), return_exceptions=True
    )
    found = [each for each, answer in zip(formats, answers, strict=True) if answer is True]
    if len(found) > 1:
        raise ConfigError(
            f"{location.name} is a table of several formats:"
            f" {', '.join(each.name for each in found)}.",
            remedy="Name the right one (--table-format, or `format` in the configuration).",
        )
    if found:
        return found[0]
    for answer in answers:
        # A format may look next to the table's folder, where the user may lack permissions.
        if isinstance(answer, BaseException):
            raise answer
    raise await explain_not_a_table(location, formats)


def _is_there(location: TableLocation, found: TableFormat) -> bool:
    """Return whether a local location exists; a table may have no folder of its own yet."""
    return Path(location.root or "/").exists() or found.is_at(location)


async def find_table(
    location: TableLocation, name: str = AUTO, options: Mapping[str, object] | None = None
) -> tuple[TableFormat, TableLocation]:
    """Return the format of the table at a location, and the location with its commits.

    Args:
        name: As for `find_format`.
        options: The format's own options, by name; None: not set.

    Raises:
        ConfigError: The format has no such option.
        TailerdError: As `find_format`.
    """
    found = await find_format(location, name)
    for option, value in (options or {}).items():
        if value is not None and option not in found.options:
            raise ConfigError(
                f"{location.name} is a table of the format {found.name}, which has no option"
                f" {option!r}.",
                remedy="Remove it, or correct its name."
                f" {suggest_name(option, found.options)}".rstrip(),
            )
    return found, location.with_commits(found.folder(location))


def presumed_format(location: TableLocation, name: str = AUTO) -> TableFormat:
    """Return the format a table most likely has, for watchers; blocking, without remote requests.

    Returns the first format if it is to be detected and no table exists yet, or the location is in
    a bucket: polling finds commits in any case.

    Raises:
        ConfigError: The format is unknown.
    """
    if name != AUTO:
        return table_format(name)
    formats = table_formats()
    if len(formats) > 1 and location.is_local:
        return next((each for each in formats if each.is_at(location)), formats[0])
    return formats[0]


def commit_folder(location: TableLocation, name: str = AUTO) -> str:
    """Return the folder whose files are a table's commits, according to `presumed_format`.

    Raises:
        ConfigError: The format is unknown.
    """
    return presumed_format(location, name).folder(location)


async def open_table(
    location: TableLocation, request: OpenRequest, name: str = AUTO
) -> ChangeSource:
    """Open a table for its changes.

    Args:
        name: Its format; `auto` to detect it.

    Raises:
        TableError: It is not a table, or requires a feature that its reader does not support.
        ConfigError: The format or an option is unknown.
        UsageError: The view does not fit the table.
        StorageError: The location cannot be read.
    """
    found, at = await find_table(location, name, request.options)
    view = request.view
    if view is not None:
        request = replace(request, identity=view.source_names(request.identity))
    source = await found.open(at.wrap(request.wrap_store), request)
    if view is not None or request.skips is not None:
        if not isinstance(source, VersionedSource):
            raise UnsupportedFeatureError(
                f"{location.name} is of the format {found.name}, whose rows cannot be selected.",
                remedy="Leave out columns, where, mask and commits.",
            )
        await source.check_request()
    if request.on_format is not None:
        request.on_format(found)
    return source


def find_demo(name: str = AUTO) -> Demo:
    """Return the demo of a format.

    Args:
        name: Of a format; `auto` for the first one that has a demo.

    Raises:
        UnsupportedFeatureError: The format has no demo.
    """
    formats = formats_named(name)
    demo = next((each.demo for each in formats if each.demo is not None), None)
    return require_part(demo, ", ".join(each.name for each in formats), "demo")
