"""Looks around where a table was expected: names the content and the next command."""

from __future__ import annotations

import asyncio
import difflib
import os
import shlex
from collections.abc import AsyncIterator, Sequence
from itertools import islice
from pathlib import Path

from tailerd.errors import NotATableError, TailerdError
from tailerd.formats.base import TableFormat
from tailerd.storage.base import ListsFolders
from tailerd.storage.table_location import TableLocation, locate_table

MAX_ENTRIES = 1_000
"""Files and folders that are looked at in one folder."""
MAX_FOLDERS = 100
"""Folders that are looked into for tables."""
MAX_REMOTE_FOLDERS = 20
MAX_PARENTS = 4
_SHOWN = 3


async def explain_not_a_table(
    location: TableLocation, formats: Sequence[TableFormat]
) -> NotATableError:
    """Return the error for a location without a table of these formats.

    It names the content instead: a part of a table, tables below it, a table of another kind,
    Parquet files, one file or nothing.
    """
    try:
        reason, remedy = await _look_around(location, formats)
    except (TailerdError, OSError):
        reason, remedy = "nothing there can be read", "Check the path, and your rights there."
    return NotATableError(f"There is no table at {location.name}: {reason}.", remedy=remedy)


async def _look_around(location: TableLocation, formats: Sequence[TableFormat]) -> tuple[str, str]:
    """Return the content of the location, and the remedy."""
    name = location.name.rstrip("/") or "/"
    parent = _at(location, location.root.rpartition("/")[0] or location.root).name
    search = f"`tailerd init {shlex.quote(parent)}` finds the tables near it."
    async for above in _parents(location):
        if await _is_table(above, formats):
            return f"it is inside the table {above.name}", _meant(above.name)
    if location.is_local and not await asyncio.to_thread(Path(location.root or "/").exists):
        near = await asyncio.to_thread(_find_similar, location.root)
        return "the folder does not exist", _meant(near) if near else f"Check the path: {search}"
    if location.is_local and not await asyncio.to_thread(Path(location.root or "/").is_dir):
        return "it is a file, and a table is a folder", search
    files, folders = await _list_entries(location)
    log = next((f.names.folder for f in formats if f.names.folder in folders), None)
    if log is not None:
        return f"its log, the folder {log}, is empty", search
    if ".hoodie" in folders:
        known = ", ".join(each.name for each in formats)
        reason = f"it is a Hudi table, and this release reads {known}"
        return reason, "`tailerd help formats` lists the tables that can be read."
    if tables := [each async for each in _tables_below(location, folders, formats)]:
        shown = ", ".join(tables[:_SHOWN]) + (", ..." if len(tables) > _SHOWN else "")
        count = f"{len(tables)} table{'' if len(tables) == 1 else 's'}"
        first, every = _tail(f"{name.rstrip('/')}/{tables[0]}"), shlex.quote(name)
        remedy = f"Type: {first}. To deliver all of them: `tailerd init {every}`."
        return f"it is a folder with {count}: {shown}", remedy
    if await _has_parquet(location, files, folders):
        command = f"CONVERT TO DELTA parquet.`{name}`"
        remedy = f"Make it a Delta table, in Spark with Delta: {command}. Then: {_tail(name)}."
        return "it has Parquet files, but no log", remedy
    if files or folders:
        return "the folder has neither a log nor Parquet files", search
    what = "the folder is empty" if location.is_local else "there are no files"
    return what, f"Check the path: {search}"


def _meant(name: str) -> str:
    return f"Did you mean {name}? Type: {_tail(name)}."


def _tail(name: str) -> str:
    return f"`tailerd tail {shlex.quote(name)}`"


async def _is_table(location: TableLocation, formats: Sequence[TableFormat]) -> bool:
    found = await asyncio.gather(
        *(each.detect(location) for each in formats), return_exceptions=True
    )
    here = [each for each, answer in zip(formats, found, strict=True) if answer is True]
    return any([not await each.is_group(location) for each in here])


async def _parents(location: TableLocation) -> AsyncIterator[TableLocation]:
    """Yield the folders above a location, the nearest first; not the root of a store."""
    root = location.root
    for _ in range(MAX_PARENTS):
        root = root.rpartition("/")[0]
        if "/" not in root.strip("/"):
            return
        yield _at(location, root)


def _at(location: TableLocation, root: str) -> TableLocation:
    """Return another location in the same store."""
    name = root if location.is_local else location.store.format_url(root)
    return locate_table(name or "/", stores=location.stores)


def _below(location: TableLocation, folder: str) -> TableLocation:
    return _at(location, f"{location.root}/{folder}")


def _find_similar(path: str) -> str:
    """Return the folder whose name is nearest to one that does not exist; empty for none."""
    parent, _, name = path.rpartition("/")
    try:
        names = [entry.name for entry in Path(parent or "/").iterdir() if entry.is_dir()]
    except OSError:
        return ""
    near = difflib.get_close_matches(name, names, n=1)
    return f"{parent}/{near[0]}" if near else ""


async def _list_entries(location: TableLocation) -> tuple[list[str], list[str]]:
    """Return the names of files and of folders in a folder, at most `MAX_ENTRIES` of them."""
    if location.is_local:
        return await asyncio.to_thread(_list_local, location.root)
    store, folders, files = location.store, [], []
    if isinstance(store, ListsFolders):
        async for folder in store.list_folders(location.root):
            folders.append(folder)
            if len(folders) == MAX_ENTRIES:
                break
    async for file in store.list_from(location.root):
        files.append(file.name)
        if len(files) == MAX_ENTRIES:
            break
    return files, folders


def _list_local(path: str) -> tuple[list[str], list[str]]:
    files: list[str] = []
    folders: list[str] = []
    with os.scandir(path) as entries:
        for entry in islice(entries, MAX_ENTRIES):
            (folders if entry.is_dir() else files).append(entry.name)
    return sorted(files), sorted(folders)


async def _tables_below(
    location: TableLocation, folders: Sequence[str], formats: Sequence[TableFormat]
) -> AsyncIterator[str]:
    """Yield the tables in a folder, and of a local one also those a level deeper."""
    left = MAX_FOLDERS if location.is_local else MAX_REMOTE_FOLDERS
    pending = [folder for folder in folders if not folder.startswith((".", "_"))]
    while pending and left:
        folder, left = pending.pop(0), left - 1
        below = _below(location, folder)
        if await _is_table(below, formats):
            yield folder
        elif location.is_local and "/" not in folder:
            pending += [f"{folder}/{each}" for each in (await _list_entries(below))[1]]


async def _has_parquet(
    location: TableLocation, files: Sequence[str], folders: Sequence[str]
) -> bool:
    """Return whether there are Parquet files, maybe in folders of partitions."""
    while True:
        if any(file.endswith(".parquet") for file in files):
            return True
        partition = next((folder for folder in folders if "=" in folder), None)
        if partition is None:
            return False
        location = _below(location, partition)
        files, folders = await _list_entries(location)
