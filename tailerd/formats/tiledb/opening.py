"""Opens a TileDB array for its changes."""

from __future__ import annotations

from tailerd.changefeed.change_task import ChangeMode
from tailerd.clock import SystemClock
from tailerd.errors import ConfigError, UnsupportedFeatureError
from tailerd.formats.base import OpenRequest
from tailerd.formats.ledger import open_ledger
from tailerd.formats.source import source_place
from tailerd.formats.tiledb.array_log import ArrayLog
from tailerd.formats.tiledb.known_commits import KnownCommits
from tailerd.formats.tiledb.reader import TileDBTaskReader
from tailerd.formats.tiledb.source import TileDBSource
from tailerd.formats.tiledb.task_plan import TaskPlan

_ON_LATE = ("apply", "stop")


async def open_source(place: str, request: OpenRequest, reader: TileDBTaskReader) -> TileDBSource:
    """Open an array at its newest version.

    Raises:
        NotATableError: There is no array.
        UnsupportedFeatureError: It is a group, or has an unsupported feature; or change files, raw
            files or net changes are requested.
        TableError: It cannot be read.
        ConfigError: No store serves this place, or the option is wrong.
        MissingExtraError: TileDB's library is not installed.
    """
    stops_at_late = _stops_at_late(place, request)
    at = source_place(place, request)
    clock = request.clock or SystemClock()
    log = ArrayLog(at.store, at.root, place)
    timeline = await log.look(clock.now_ms())
    table_id = log.schemas[0].identity
    plan = TaskPlan(
        at.url,
        log,
        timeline,
        stores=request.stores,
        table_id=table_id,
        places=at.links,
    )
    await plan.shape(max(timeline.head, 0))
    known = None
    if request.ledger is not None:
        known = KnownCommits(open_ledger(request.ledger, request.stores), table_id)
    return TileDBSource(
        place,
        log,
        plan,
        reader,
        request,
        known=known,
        clock=clock,
        stops_at_late=stops_at_late,
    )


def _stops_at_late(place: str, request: OpenRequest) -> bool:
    """Return whether the option `on_late` is to stop, after checking the request.

    Raises:
        UnsupportedFeatureError: Other changes than `auto` are requested.
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
