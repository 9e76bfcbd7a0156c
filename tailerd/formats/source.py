"""Common parts of the formats' sources: where their files are, and how tasks are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeTask
from tailerd.changefeed.limits import BatchLimit
from tailerd.formats.base import OpenRequest, TaskReader
from tailerd.formats.placement import allowed_places
from tailerd.storage.base import ObjectStore, OpensAhead
from tailerd.storage.links import RealPlaces
from tailerd.storage.stores import within_table

_REMOTE_RUN_BYTES = 8 * 1024 * 1024
"""What a bucket sends in some tenths of a second: enough to hide the latency of a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlace:
    """Where a source's table is.

    Attributes:
        store, root: The store, confined to the table if it is local, and the table's folder.
        url: Where other processes find the table.
        allowed: Places outside the table that it may reference.
        links: Real paths that its files may resolve to; None in a bucket.
    """

    store: ObjectStore
    root: str
    url: str
    allowed: tuple[str, ...]
    links: RealPlaces | None


def source_place(place: str, request: OpenRequest, folder: str | None = None) -> SourcePlace:
    """Return the place of a table whose changes are to be read.

    Args:
        place: A path or URL, as the user gave it.
        folder: The folder of all its files; None: the place itself.

    Raises:
        ConfigError: No store serves this place, or an allowed one.
    """
    located, root = request.stores.locate(place)
    allowed = allowed_places(request.allowed_paths)
    store = within_table(located, folder or root, allowed)
    return SourcePlace(
        store=store if request.wrap_store is None else request.wrap_store(store),
        root=root,
        url=store.url_of(root),
        allowed=allowed,
        links=RealPlaces(folder or root, allowed) if located.is_local_folder else None,
    )


class ReadsTasks:
    """The part of `ChangeSource` that delegates to the format's reader; sources inherit it.

    Args:
        name: The table's place, as the user gave it.
        request: Which columns are read, and how files are accessed.
    """

    def __init__(self, name: str, reader: TaskReader, request: OpenRequest) -> None:
        self._name = name
        self._task_reader = reader
        self._stores = request.stores
        self._columns = None if request.columns is None else tuple(request.columns)

    @property
    def name(self) -> str:
        """The table's place, as the user gave it."""
        return self._name

    def read(self, task: ChangeTask, limit: BatchLimit) -> Iterator[ChangeBatch]:
        """Read one task's rows; blocking, for worker threads and executors."""
        return self._task_reader.read(task, limit, self._columns, stores=self._stores)

    @property
    def run_bytes(self) -> int:
        """Return 0: reading small files together makes no difference."""
        return 0

    def read_run(self, tasks: Sequence[ChangeTask], limit: BatchLimit) -> Iterator[ChangeBatch]:
        """Read the rows of tasks in order; the reader may prefetch."""
        return self._task_reader.read_run(tasks, limit, self._columns, stores=self._stores)

    async def widened_floats(self) -> frozenset[str]:
        """Return nothing: columns keep their types."""
        return frozenset()


def ahead_bytes(store: ObjectStore) -> int:
    """Return the `run_bytes` of a source whose files can be opened ahead."""
    return _REMOTE_RUN_BYTES if isinstance(store, OpensAhead) else 0
