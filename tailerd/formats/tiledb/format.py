"""TileDB arrays as a table format: the one object that the registry names."""

from __future__ import annotations

from pathlib import Path

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.offset import Version
from tailerd.clock import SystemClock
from tailerd.errors import ConfigError, UnsupportedFeatureError
from tailerd.formats.allowed_places import allowed_places
from tailerd.formats.base import CommitNames, OpenRequest
from tailerd.formats.inspection import Inspector
from tailerd.formats.ledger import open_ledger
from tailerd.formats.maintenance import Maintainer
from tailerd.formats.parts import Demo, OptionalParts
from tailerd.formats.tiledb.array_log import ArrayLog, is_array, is_group
from tailerd.formats.tiledb.capabilities import CAPABILITIES
from tailerd.formats.tiledb.known_commits import KnownCommits
from tailerd.formats.tiledb.protocol.names import (
    COMMITS,
    OLD_SCHEMA,
    SCHEMA,
    CommitKind,
    commit_file,
)
from tailerd.formats.tiledb.reader import TileDBTaskReader
from tailerd.formats.tiledb.scan import FORMAT
from tailerd.formats.tiledb.source import TileDBSource
from tailerd.formats.tiledb.task_plan import TaskPlan
from tailerd.storage.base import ObjectStore
from tailerd.storage.links import RealPlaces
from tailerd.storage.stores import path_of, within_table

_COMMITS = (CommitKind.WRITE, CommitKind.OLD_WRITE, CommitKind.DELETE)
_ON_LATE = ("apply", "stop")


def commit_version(name: str) -> Version | None:
    """Return the version that a commit file's name says; None of a file that commits nothing."""
    known = commit_file(name)
    return None if known is None or known[1] not in _COMMITS else Version(known[0].last_ms)


class TileDBFormat(OptionalParts):
    """TileDB arrays; see `formats.base.TableFormat`."""

    name = FORMAT
    capabilities = CAPABILITIES
    names = CommitNames(folder=COMMITS, suffix="", version_of=commit_version)
    options = frozenset({"on_late"})
    reader = TileDBTaskReader()

    @property
    def inspector(self) -> Inspector:
        """Shows versions, fragments and commits."""
        from tailerd.formats.tiledb.inspect import TileDBInspector

        return TileDBInspector()

    @property
    def maintainer(self) -> Maintainer:
        """Merges commits and fragments, and deletes what was merged."""
        from tailerd.formats.tiledb.maintenance import TileDBMaintainer

        return TileDBMaintainer()

    @property
    def demo(self) -> Demo:
        """Makes an array of orders."""
        from tailerd.formats.tiledb.demo import TileDBDemo

        return TileDBDemo()

    async def detect(self, store: ObjectStore, root: str) -> bool:
        """Tell whether an array, or a group of them, lies at a place."""
        return await is_array(store, root) or await is_group(store, root)

    def folder(self, place: str) -> str:
        """Return the folder of an array's commits."""
        return f"{path_of(place)}/{COMMITS}"

    def is_at(self, place: str) -> bool:
        """Tell whether an array lies at a local place; blocking."""
        path = Path(path_of(place))
        return (path / SCHEMA).is_dir() or (path / OLD_SCHEMA).is_file()

    async def open(self, place: str, request: OpenRequest) -> TileDBSource:
        """Open an array as it is now.

        Raises:
            NotATableError: There is no array.
            UnsupportedFeatureError: It is a group, or has what is not read; or change files, raw
                files or net changes are asked for.
            TableError: It cannot be served.
            ConfigError: No store serves this place, or the option is wrong.
            MissingExtraError: TileDB's library is not installed.
        """
        stops_at_late = _stops_at_late(place, request)
        located, root = request.stores.locate(place)
        allowed = allowed_places(request.allowed_paths)
        store = within_table(located, root, allowed)
        if request.wrap_store is not None:
            store = request.wrap_store(store)
        clock = request.clock or SystemClock()
        log = ArrayLog(store, root, place)
        timeline = await log.look(clock.now_ms())
        table_id = log.schemas[0].identity
        plan = TaskPlan(
            located.url_of(root),
            log,
            timeline,
            stores=request.stores,
            table_id=table_id,
            places=RealPlaces(root, allowed) if located.is_local_folder else None,
        )
        await plan.shape(max(timeline.head, 0))
        known = None
        if request.ledger is not None:
            known = KnownCommits(open_ledger(request.ledger, request.stores), table_id)
        return TileDBSource(
            place,
            log,
            plan,
            self.reader,
            known=known,
            stores=request.stores,
            columns=request.columns,
            clock=clock,
            stops_at_late=stops_at_late,
        )


def _stops_at_late(place: str, request: OpenRequest) -> bool:
    """Return what the option `on_late` asks for, of a request that an array can answer.

    Raises:
        UnsupportedFeatureError: Other changes than `auto` are asked for.
        ConfigError: The option has another value.
    """
    if request.changes is not ChangeMode.AUTO:
        raise UnsupportedFeatureError(
            f"{place} is a TileDB array, whose changes are the differences of its states.",
            remedy="Leave `changes` out.",
        )
    on_late = request.options.get("on_late") or "apply"
    if on_late not in _ON_LATE:
        raise ConfigError(
            f"The option on_late of {place} is {on_late!r}.", remedy="Say apply or stop."
        )
    return on_late == "stop"
