"""Finds the tables that a configuration's patterns match, each pattern at its own interval."""

from __future__ import annotations

import asyncio
import glob
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

from tailerd.clock import Clock, SystemClock
from tailerd.config import Config, DiscoverConfig, Discovery
from tailerd.config.discovery import with_tables_found
from tailerd.errors import ConfigError, StorageError, TailerdError
from tailerd.formats.base import CommitNames, TableFormat
from tailerd.formats.detect import formats_named
from tailerd.pipeline_names import table_of
from tailerd.registry import is_remote
from tailerd.storage.base import ListsFolders, ObjectStore
from tailerd.storage.folder_pattern import FolderPattern, has_wildcard
from tailerd.storage.stores import Stores
from tailerd.storage.table_location import locate_table
from tailerd.telemetry import Telemetry, events

MAX_SEARCH_SECONDS = 60.0
"""Bounded because a daemon's start, and a configuration reload, wait for a search."""

_RETRY_SECONDS = 30.0
_SEARCHES_BETWEEN_PROOFS = 10
"""Searches between two checks of the log of a known table that a bucket's listing still shows."""

_Known = tuple[Config, dict[str, list[str]], dict[str, str], Discovery]
"""A configuration, the folders of each pattern, the names before, and the tables found."""


@dataclass(slots=True, kw_only=True)
class _Group:
    """The state of one pattern.

    Attributes:
        config: The pattern; if it changes, the search starts over.
        folders: Result of the last successful search.
        due: When to search again, in monotonic seconds.
        searches: Number of successful searches; with none, `folders` is not known.
        failures: Failed searches since the last success.
        named: Name of a table it found, casefolded -> its folder, which is still among `folders`.
    """

    config: DiscoverConfig
    folders: list[str]
    due: float
    searches: int = 0
    failures: int = 0
    named: dict[str, str] = field(default_factory=dict)


def discover_tables(config: Config, stores: Stores | None = None) -> Discovery:
    """Search for the tables of every pattern once; blocking, not for a thread with an event loop.

    Args:
        stores: How they are accessed; by default as configured.

    Raises:
        TailerdError: A search failed.
    """
    if not config.discover:
        return with_tables_found(config, {})
    return asyncio.run(TableSearch(stores).search(config, is_strict=True))


class TableSearch:
    """Keeps the tables that the patterns found, and assigns each name to the first folder with it.

    A name is free again once a search did not find its folder: a table may be moved, and the table
    id in a saved offset guards against a different table. A failed search keeps the previous result
    and the names.
    """

    def __init__(
        self,
        stores: Stores | None = None,
        *,
        telemetry: Telemetry | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Start without a search.

        Args:
            stores: How tables are accessed; by default as configured at each search.
        """
        self._stores = stores
        self._telemetry = telemetry or Telemetry()
        self._clock = clock or SystemClock()
        self._groups: dict[str, _Group] = {}
        self._rejected: set[tuple[str, str]] = set()
        self._known: _Known | None = None

    def wait_seconds(self) -> float | None:
        """Return the seconds until the next search is due; None without patterns."""
        due = min((group.due for group in self._groups.values()), default=None)
        return None if due is None else max(0.0, due - self._clock.monotonic())

    async def search(
        self, config: Config, *, is_requested: bool = False, is_strict: bool = False
    ) -> Discovery:
        """Search for the tables of the due patterns, and return all known tables.

        Args:
            config: Has the patterns; may differ at each call.
            is_requested: Search for all patterns now.
            is_strict: Raise on a failure instead of reporting it and retrying soon.

        Raises:
            TailerdError: A search failed, if `is_strict`.
        """
        stores = self._stores or Stores.from_config(config.storage)
        before, self._groups = self._groups, {}
        for name, section in config.discover.items():
            group = before.get(name)
            if group is None or group.config.path != section.path:
                group = _Group(config=section, folders=[], due=self._clock.monotonic())
            elif group.config != section:
                group.config, group.due = section, self._clock.monotonic()
            self._groups[name] = group
        self._forget(before)
        for name, group in self._groups.items():
            if is_requested or group.due <= self._clock.monotonic():
                await self._search_group(name, group, is_strict, stores)
        folders = {name: group.folders for name, group in self._groups.items()}
        named = {name: at for group in self._groups.values() for name, at in group.named.items()}
        known = self._known
        if known is not None and known[0] is config and known[1:3] == (folders, named):
            # Checking the fields of a thousand tables again would take a tenth of a second.
            return known[3]
        discovery = await asyncio.to_thread(with_tables_found, config, folders, named)
        self._known = config, folders, named, discovery
        for name, origin in discovery.found.items():
            at = discovery.config.tables[name].path
            self._groups[origin].named.setdefault(table_of(name).casefold(), at)
        for path, reason in discovery.rejected:
            if (path, reason) not in self._rejected:
                self._telemetry.emit(events.TableRejected(path=path, reason=reason))
        self._rejected = set(discovery.rejected)
        return discovery

    def _forget(self, before: dict[str, _Group]) -> None:
        paths = {group.config.path for group in self._groups.values()}
        for group in before.values():
            if group.failures and group.config.path not in paths:
                self._telemetry.emit(events.ProblemEnded(part="discovery", path=group.config.path))

    async def _search_group(
        self, name: str, group: _Group, is_strict: bool, stores: Stores
    ) -> None:
        wait = group.config.interval_seconds
        try:
            folders = await self._folders(group, stores)
        except TailerdError as error:
            if is_strict:
                raise
            group.failures += 1
            wait = min(wait, _RETRY_SECONDS)
            self._telemetry.emit(
                events.DiscoveryFailed(
                    pattern=name,
                    path=group.config.path,
                    error_code=error.code,
                    attempt=group.failures,
                    error=str(error),
                    is_known=group.searches > 0,
                )
            )
        else:
            if group.failures:
                self._telemetry.emit(events.DiscoveryResumed(pattern=name, path=group.config.path))
            group.folders, group.failures = folders, 0
            there = set(folders)
            group.named = {name: at for name, at in group.named.items() if at in there}
            group.searches += 1
        group.due = self._clock.monotonic() + wait

    async def _folders(self, group: _Group, stores: Stores) -> list[str]:
        formats = formats_named(group.config.template.format)
        pattern = await _find_group_pattern(group.config.path, formats, stores)
        if not is_remote(pattern):
            return await asyncio.to_thread(_local_folders, pattern, formats)
        store, path = stores.locate(pattern)
        if not isinstance(store, ListsFolders):
            raise ConfigError(f"{pattern} is in a store that cannot list folders.")
        known = group.folders if group.searches % _SEARCHES_BETWEEN_PROOFS else []
        search = FolderPattern(store, path, self._count)
        try:
            async with asyncio.timeout(MAX_SEARCH_SECONDS):
                before = [stores.locate(folder)[1] for folder in known]
                found = await _found([each.names for each in formats], store, search, before)
        except TimeoutError as error:
            raise StorageError(
                f"Looking for {pattern} took longer than {MAX_SEARCH_SECONDS:.0f} s, because the"
                " server is slow or there are too many files.",
                remedy="Name more of the path in the pattern, or name the tables.",
            ) from error
        return [store.format_url(folder) for folder in found]

    def _count(self) -> None:
        self._telemetry.emit(events.StorageRequested(operation="list"))


async def _find_group_pattern(pattern: str, formats: Sequence[TableFormat], stores: Stores) -> str:
    """Return the pattern of a group's tables if the pattern names a group, else the pattern."""
    if has_wildcard(pattern):
        return pattern
    location = locate_table(pattern, stores=stores)
    is_group = any([await each.is_group(location) for each in formats])
    return f"{pattern.rstrip('/')}/*" if is_group else pattern


async def _found(
    formats: Sequence[CommitNames],
    store: ObjectStore,
    search: FolderPattern,
    known: Sequence[str],
) -> list[str]:
    """Return the folders of a bucket that commits of the formats show to be tables, sorted."""
    # A format that keeps commits directly in the table's folder cannot be detected by a name.
    parts = {each.folder for each in formats if each.folder}
    found = set(await search.holding(parts, known)) if parts else set()
    for each in formats:
        if each.table_of is not None:
            found.update(await search.shown_by_siblings(store, each.table_of))
    return sorted(found)


def _local_folders(pattern: str, formats: Sequence[TableFormat]) -> list[str]:
    """Return folders that match and are a table of one of the formats, sorted."""
    path = unquote(pattern.removeprefix("file://")) if pattern.startswith("file:") else pattern
    # `Path.glob` takes no absolute pattern.
    folders = sorted(glob.glob(path))  # noqa: PTH207
    return [folder.rstrip("/") for folder in folders if _is_table(folder, formats)]


def _is_table(folder: str, formats: Sequence[TableFormat]) -> bool:
    location = locate_table(folder)
    return any(each.is_at(location) for each in formats)
