"""Opens a Lance table for its changes."""

from __future__ import annotations

from tailerd.changefeed.change_task import ChangeMode
from tailerd.errors import UnsupportedFeatureError
from tailerd.formats.base import OpenRequest
from tailerd.formats.lance.origin import TableOrigin
from tailerd.formats.lance.planner import Comparison, LancePlanner
from tailerd.formats.lance.protocol.columns import columns_schema
from tailerd.formats.lance.reader import LanceTaskReader
from tailerd.formats.lance.source import LanceSource
from tailerd.formats.lance.table_files import TableFiles
from tailerd.formats.lance.version_log import VersionLog, staged_warning
from tailerd.formats.ledger import open_ledger
from tailerd.formats.source import source_place


async def open_source(place: str, request: OpenRequest, reader: LanceTaskReader) -> LanceSource:
    """Open a table at its newest version.

    Raises:
        NotATableError, TableError: It cannot be read.
        UnsupportedFeatureError: Change files are requested, or the place is a branch.
        ConfigError: No store serves this place.
    """
    _check_changes(place, request)
    at = source_place(place, request)
    log = VersionLog(at.store, at.root, place, clock=request.clock)
    await _look(log, at.root, place)
    if log.staged is not None and request.on_warning is not None:
        request.on_warning(staged_warning(log, place))
    head = await log.manifest(log.head, lambda: "which was the newest")
    columns_schema(log.columns(head), request.columns)
    return LanceSource(
        place,
        log,
        await TableOrigin.open(log, open_ledger(request.ledger, request.stores)),
        LancePlanner(
            log,
            TableFiles(place, at.url, request.stores, at.allowed),
            at.url,
            columns=request.columns,
            key=request.identity,
        ),
        reader,
        request,
        comparison=_comparison(request),
        places=at.links,
    )


def _check_changes(place: str, request: OpenRequest) -> None:
    """Make sure that the requested changes are supported.

    Raises:
        UnsupportedFeatureError: Change files are requested.
    """
    if request.changes is ChangeMode.CDF:
        raise UnsupportedFeatureError(
            f"{place} is a Lance table, which has no change data feed.",
            remedy="Leave `changes` out.",
        )


def _comparison(request: OpenRequest) -> Comparison:
    if request.changes is ChangeMode.FILES:
        return Comparison.NONE
    return Comparison.KEY if request.identity else Comparison.ROW_IDS


async def _look(log: VersionLog, root: str, place: str) -> None:
    """Poll a table for the first time.

    Raises:
        NotATableError: There is no table.
        UnsupportedFeatureError: It is a branch of a table.
    """
    if "/tree/" in root:
        table, _, branch = root.rpartition("/tree/")
        raise UnsupportedFeatureError(
            f"{place} is the branch {branch!r} of the table {table}, and branches are not read in"
            " this release.",
            remedy="Name the table's own folder; or clone the branch to a table of its own.",
        )
    await log.look()
