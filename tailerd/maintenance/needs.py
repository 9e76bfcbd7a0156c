"""Computes which versions of a log pipelines still need: a cleanup deletes none of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tailerd.changefeed.offset import Offset
from tailerd.errors import OffsetError
from tailerd.formats.maintenance import RetentionFloor
from tailerd.storage.folder_identity import FolderIdentity
from tailerd.telemetry import events


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A pipeline that reads a log.

    Attributes:
        folder: Its log, as configured.
        version: The first version it has not delivered; None if it has not reported it.
        table_id: Of the table it delivers; empty if it has not reported it.
    """

    name: str
    folder: str
    version: int | None = None
    table_id: str = ""


def find_floor(readers: Iterable[Reader], folder: str, table_id: str) -> RetentionFloor:
    """Return which versions of one log pipelines need, by any path. Blocking.

    Args:
        folder: The log, as it is configured for its maintenance.
        table_id: Of its table, which decides if folders cannot be compared; empty if it is not
            known yet: then only pipelines count that certainly read this log.
    """
    log = FolderIdentity.read(folder)
    versions = []
    for reader in readers:
        is_same = reader.folder == folder or log.is_same(FolderIdentity.read(reader.folder))
        if is_same is None and (not table_id or reader.table_id not in ("", table_id)):
            continue
        if is_same is False:
            continue
        if is_same is None and not reader.table_id:
            return RetentionFloor(
                obstacle=f"{reader.name} has not reported yet which table it delivers, and it may"
                f" be this one: {reader.folder} cannot be compared with this log's folder."
            )
        if reader.version is None:
            return RetentionFloor(obstacle=f"{reader.name} has not delivered anything yet.")
        versions.append(reader.version)
    return RetentionFloor(from_version=min(versions, default=None))


class _Position(NamedTuple):
    """The last reported position of a pipeline; the offset as text may be empty."""

    version: int | None
    offset: str


class PipelinePositions:
    """The positions of a daemon's pipelines, from their events. Thread-safe.

    Args:
        on_news: Called when a pipeline reports its first position, which a cleanup may wait for.
    """

    def __init__(self, on_news: Callable[[], None] = lambda: None) -> None:
        self._on_news = on_news
        self._lock = threading.Lock()
        self._readers: dict[str, str] = {}
        self._folder_of: dict[str, str] = {}
        self._offsets: dict[str, _Position] = {}

    def handle(self, event: events.Event) -> None:
        """Handle an event, from any thread."""
        match event:
            case events.OffsetChosen() | events.OffsetSaved():
                self._note_position(event.table, event.version, event.offset)
            case events.GapMet():
                # The table may have been replaced by another.
                self._note_position(event.table, event.end_version, "")
            case events.PipelineStarted():
                # The position of the last run may have been reset, or be of another table.
                with self._lock:
                    self._offsets.pop(event.table, None)
            case events.TableAltered():
                with self._lock:
                    self._offsets.pop(event.table, None)
                    # Later events belong to the folder that `set_pipelines` names next.
                    self._folder_of.pop(event.table, None)
            case _:
                return

    def _note_position(self, name: str, version: int, offset: str) -> None:
        with self._lock:
            before = self._offsets.get(name)
            self._offsets[name] = _Position(version, offset)
        if before is None or not before.offset:
            self._on_news()

    def set_pipelines(self, folders: Mapping[str, str]) -> None:
        """Set the log folder of every table that is delivered, by name."""
        with self._lock:
            self._readers = dict(folders)
            known, self._folder_of = self._folder_of, dict(folders)
            self._offsets = {
                name: position
                for name, position in self._offsets.items()
                # An offset of another table does not apply to the table that has its name now.
                if name in folders and known.get(name, folders[name]) == folders[name]
            }

    def floor(self, folder: str, table_id: str) -> RetentionFloor:
        """Return which versions of a log pipelines still need. Blocking: it reads folders."""
        with self._lock:
            offsets, folders = dict(self._offsets), dict(self._readers)
        nothing = _Position(None, "")
        readers = (
            Reader(
                name=name,
                folder=location,
                version=offsets.get(name, nothing).version,
                table_id=_table_id(offsets.get(name, nothing).offset),
            )
            for name, location in folders.items()
        )
        return find_floor(readers, folder, table_id)


def _table_id(offset: str) -> str:
    try:
        return Offset.from_json(offset).table_id
    except OffsetError:
        return ""
