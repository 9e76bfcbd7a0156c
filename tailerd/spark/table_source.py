"""The table of a read: opened as the options say, and followed by notifications of commits."""

from __future__ import annotations

import asyncio
import sys

import pyarrow as pa

from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import Offset, Version
from tailerd.clock import SystemClock
from tailerd.errors import BugError, TailerdError
from tailerd.formats.base import Backlog, ChangeSource, CommitNames, OpenRequest
from tailerd.formats.detect import open_table, presumed_format
from tailerd.spark.options import ReadOptions, naming
from tailerd.state.ledger import LedgerLocation
from tailerd.storage.local import LocalStore
from tailerd.storage.stores import Stores
from tailerd.storage.table_location import TableLocation, locate_table
from tailerd.watchers.base import Watcher
from tailerd.watchers.local import watch_folders
from tailerd.watchers.poll import CLOSE_SECONDS, PollWatcher
from tailerd.watchers.wakeups import WakeupRegistry


async def open_source(
    options: ReadOptions, stores: Stores | None = None, *, is_followed: bool = False
) -> ChangeSource:
    """Open the table.

    Args:
        stores: By default with the options' settings.
        is_followed: Whether each commit is checked: with `schemaVersion`, the newest need not fit.

    Raises:
        ConfigError: No supported store serves this location.
        TableError, StorageError: The table cannot be opened.
    """
    return await open_table(
        _locate(options, stores or Stores(options.storage)),
        OpenRequest(
            changes=options.changes,
            view=options.view,
            is_resumed=is_followed and options.schema_version is not None,
            identity=options.identity,
            on_warning=warn,
            options=options.format_options,
            ledger=LedgerLocation(options.ledger) if options.ledger else None,
        ),
        options.table_format,
    )


def warn(error: TailerdError) -> None:
    """Warn the user about a log that can be read anyway."""
    # Spark shows what its Python processes write to standard error.
    sys.stderr.write(f"warning[{error.code}]: {error}\n")


async def declared_columns(options: ReadOptions) -> tuple[pa.Schema, Version]:
    """Return the table's columns, without change columns, and the version that has them.

    That is `schemaVersion`, else the end of the range.

    Raises:
        TableError, StorageError, UsageError: There is no such version, or it cannot be read.
    """
    source = await open_source(options, is_followed=True)
    version = source.version_before((await source.initial_offset("latest")).version)
    requested = options.schema_version
    if requested is None and options.end:
        with naming("endingVersion" if options.end.isdigit() else "endingTimestamp", options.end):
            requested = Version(min(await source.end_version(options.end), version))
    if requested is None and not options.has_columns:
        return await source.arrow_schema(), version
    requested = version if requested is None else requested
    with naming("schemaVersion", requested):
        return await source.schema_at(requested), requested


class FollowedTable:
    """A table that stays open, and a wakeup that is set when its log may have grown.

    Use it from one event loop; `aclose` frees the watchers.

    Attributes:
        is_idle: Whether the last poll found nothing new and there was no wakeup since.
    """

    def __init__(self, source: ChangeSource, options: ReadOptions, stores: Stores) -> None:
        self.source = source
        location = _locate(options, stores)
        found = presumed_format(location, options.table_format)
        folder = found.folder(location)
        board = WakeupRegistry()
        self._wakeup = board.subscribe(folder)
        running = board.run(_watchers(folder, found.names, location, options))
        self._listening = asyncio.get_running_loop().create_task(running)
        self.is_idle = False

    @classmethod
    async def open(cls, options: ReadOptions) -> FollowedTable:
        """Open the table and start to listen.

        Raises:
            ConfigError, TableError, StorageError: The table cannot be opened.
        """
        stores = Stores(options.storage)
        return cls(await open_source(options, stores, is_followed=True), options, stores)

    async def latest(self, start: Offset, limit: ReadLimit, wait_seconds: float) -> Offset:
        """Return the furthest offset one step may reach; wait for a wakeup when nothing is new.

        An idle table is polled again only after a wakeup, so that idling costs neither CPU nor
        requests. With `wait_seconds` 0 it is polled in any case.

        Raises:
            TailerdError: As the source raises it, or what ended the watchers of an idle table.
        """
        if not (self.is_idle and wait_seconds > 0):
            found = await self._poll(start, limit)
            if found != start or wait_seconds <= 0:
                return found
        try:
            async with asyncio.timeout(wait_seconds):
                await self._wakeup.wait()
        except TimeoutError:
            check_listening(self._listening)
            self.is_idle = True
            return start
        found = await self._poll(start, limit)
        self.is_idle = found == start
        return found

    async def _poll(self, start: Offset, limit: ReadLimit) -> Offset:
        poll = self._wakeup.begin_poll()
        if poll.is_woken or poll.version is not None:
            self.source.notify(poll.version)
        found = await self.source.latest_offset(start, limit)
        self._wakeup.end_poll(poll, is_news=found != start)
        return found

    async def backlog(self, start: Offset) -> Backlog:
        """Return the backlog between `start` and the head."""
        return await self.source.backlog(start)

    async def aclose(self) -> None:
        """Stop listening."""
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)


def check_listening(listening: asyncio.Task[None]) -> None:
    """Check that the watchers have not failed: commits would go unnoticed.

    Raises:
        TailerdError: They have; the error that was raised, or `BugError`.
    """
    error = None if listening.cancelled() or not listening.done() else listening.exception()
    if error is None:
        return
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TailerdError):
        raise error
    raise BugError(
        f"The watchers of a table's log ended with {error!r}.", remedy="Please report it."
    ) from error


def _locate(options: ReadOptions, stores: Stores) -> TableLocation:
    return locate_table(options.path, options.allowed_paths, stores=stores)


def _watchers(
    folder: str, commits: CommitNames, location: TableLocation, options: ReadOptions
) -> list[Watcher]:
    interval = options.poll_seconds or CLOSE_SECONDS
    poller = PollWatcher([folder], interval_seconds=interval, clock=SystemClock())
    if not isinstance(location.store, LocalStore):
        return [poller]
    names = {folder: commits.version_of}
    return [poller, watch_folders([folder], names=names, finished=location.store.finished)]
