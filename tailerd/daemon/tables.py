"""Open a configuration's tables for changes, statistics or inspection, and watch their folders."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.commit_filter import CommitFilter
from tailerd.changefeed.limits import DEFAULT_MEMORY_BYTES
from tailerd.clock import Clock
from tailerd.config import Config, TableConfig
from tailerd.errors import (
    ChecksumMismatchError,
    ConfigError,
    TailerdError,
    UnsupportedFeatureError,
    UsageError,
    ZoneAssumedError,
)
from tailerd.formats.base import ChangeSource, NetSteps, OpenRequest, TableFormat
from tailerd.formats.detect import commit_folder, find_table, open_table, presumed_format
from tailerd.formats.part_request import PartRequest
from tailerd.formats.parts import require_part
from tailerd.formats.statistics import TableStatistics
from tailerd.maintenance.programs import MaintenanceTarget
from tailerd.maintenance.settings import make_policies
from tailerd.pipeline.table_explorer import OpenedLog
from tailerd.pipeline_names import table_of
from tailerd.registry import is_remote
from tailerd.state.base import ScratchLocation
from tailerd.state.ledger import LedgerLocation
from tailerd.storage.base import ObjectStore
from tailerd.storage.finished_files import FinishedFiles
from tailerd.storage.metered import MeteredStore
from tailerd.storage.shared_reads import filling_cache, sharing_cache, using_cache
from tailerd.storage.stores import Stores
from tailerd.storage.table_location import TableLocation, locate_table
from tailerd.telemetry import Telemetry, events
from tailerd.transforms.options import MASK_KEY, make_view
from tailerd.transforms.view import View
from tailerd.watchers.base import Watcher
from tailerd.watchers.opening import WatchedFolder, open_queue, open_watchers

_ABSENT_SECONDS = 0.5


async def open_source(
    config: TableConfig,
    telemetry: Telemetry,
    scratch: ScratchLocation | None = None,
    *,
    stores: Stores,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    warned: set[str] | None = None,
    ledger: LedgerLocation | None = None,
    pipeline: str = "",
    is_shared: bool = False,
) -> ChangeSource:
    """Open a table for its changes.

    Args:
        pipeline: Name of the pipeline for which `TableOpened` is emitted; empty for none.
        stores: Access to its files.
        ledger: Where a format without history stores the states it observed; see `locate_ledger`.
        memory_bytes: The configured `memory`, the limit for readers of its log.
        is_shared: Whether other pipelines of this process read the same log.
        scratch: For what an unfinished snapshot needs after a restart.
        warned: Locations that have already had the warning about an assumed time zone, because
            pipelines reopen their tables often.

    Raises:
        TableError, StorageError: It is not a table, cannot be read, or needs an unsupported
            feature.
        ConfigError: Its `identity` names a column that does not exist.
    """
    request = OpenRequest(
        changes=ChangeMode(config.changes),
        view=table_view(config),
        is_resumed=bool(pipeline),
        skips=skipped_commits(config),
        identity=config.pairing_columns,
        wrap_store=lambda store: _share_reads(
            config, _meter_store(store, telemetry), stores, is_shared=is_shared
        ),
        on_warning=_make_warner(config.path, telemetry, set() if warned is None else warned),
        scratch=scratch,
        options=config.format_settings(),
        ledger=ledger,
        memory_bytes=memory_bytes,
        on_format=_format_reporter(pipeline, telemetry) if pipeline else None,
        net_above=None if config.net is None else config.net.above_versions,
    )
    source = await open_table(_locate(config, stores), request, config.format)
    if config.reads_net and not isinstance(source, NetSteps):
        raise UnsupportedFeatureError(
            f"{config.path} is of a format whose commits cannot be given as one difference.",
            remedy="Leave `net` out of `changes`, `net` and `on_gap`.",
        )
    await _check_identity(config, source)
    return source


def _share_reads(
    config: TableConfig, store: ObjectStore, stores: Stores, *, is_shared: bool
) -> ObjectStore:
    """Return a store whose reads of the log are shared with other readers of it."""
    if not is_shared:
        return filling_cache(store, stores.shared_reads)
    location = _locate(config, stores)
    found = presumed_format(location, config.format)
    if not found.names.folder:
        # Such a log has files that are replaced.
        return filling_cache(store, stores.shared_reads)
    # One watcher wakes all pipelines of a bucket's folder, and the first one finds out for all.
    absent_seconds = _ABSENT_SECONDS if is_remote(config.path) else 0.0
    return sharing_cache(
        store,
        found.folder(location),
        stores.shared_reads,
        lambda path: found.names.version_of(path.rpartition("/")[2]) is not None,
        absent_seconds,
    )


def table_view(config: TableConfig) -> View | None:
    """Return which columns, rows and values of a table are delivered; None: all, unchanged.

    Raises:
        UsageError: A field has no valid form.
    """
    key = None if config.mask_key is None else config.mask_key.get_secret_value()
    return make_view(
        **config.view_settings(),
        mask_key=key or os.environ.get(MASK_KEY),
        key=config.pairing_columns,
        extra=[name for names in config.sink.columns_by_field().values() for name in names],
    )


def skipped_commits(config: TableConfig) -> CommitFilter | None:
    """Return the commits of a table that are not delivered; None if all are."""
    if config.commits is None:
        return None
    skip = config.commits.skip
    return CommitFilter(
        operations=frozenset(skip.operations),
        application_ids=frozenset(skip.application_ids),
        user_metadata=skip.user_metadata,
    )


def view_digest(config: TableConfig) -> str:
    """Return a text that changes with what is delivered; empty if that is the table itself."""
    view, skips = table_view(config), skipped_commits(config)
    digest = "" if view is None else view.digest()
    return digest if skips is None else f"{digest}/{skips.digest()}"


def _format_reporter(pipeline: str, telemetry: Telemetry) -> Callable[[TableFormat], None]:
    """Return a function that emits the format of a pipeline's table."""

    def report(found: TableFormat) -> None:
        capabilities = asdict(found.capabilities)
        telemetry.emit(
            events.TableOpened(table=pipeline, format=found.name, capabilities=capabilities)
        )

    return report


def _make_warner(
    path: str, telemetry: Telemetry, known_guesses: set[str]
) -> Callable[[TailerdError], None]:
    """Return a function that emits a table's warnings; an assumed zone only once per location."""

    def warn(error: TailerdError) -> None:
        if isinstance(error, ZoneAssumedError):
            if path in known_guesses:
                return
            known_guesses.add(path)
            warning: events.Event = events.ZoneAssumed(
                path=path, error_code=error.code, error=str(error)
            )
        else:
            is_checksum = isinstance(error, ChecksumMismatchError)
            event = events.ChecksumDiffered if is_checksum else events.CheckpointSkipped
            warning = event(path=path, error_code=error.code, error=str(error))
        telemetry.emit(warning)

    return warn


async def _check_identity(config: TableConfig, source: ChangeSource) -> None:
    """Refuse an identity with columns that the table does not have."""
    if not config.identity:
        return
    try:
        await source.schema_at(None, config.identity)
    except UsageError as error:
        raise ConfigError(
            f"`identity` of {config.path}: {error.message}", remedy=error.remedy
        ) from None


def _meter_store(store: ObjectStore, telemetry: Telemetry) -> ObjectStore:
    return MeteredStore(store, lambda verb: telemetry.emit(events.StorageRequested(operation=verb)))


def locate_ledger(config: Config, name: str, *, is_read_only: bool = False) -> LedgerLocation:
    """Return where a pipeline stores the observed states of a table without history.

    A table found by a pattern has its own folder below the state.
    """
    # Spark's processes may have another working directory.
    state = config.state if is_remote(config.state) else str(Path(config.state).absolute())
    table = config.tables.get(name)
    named = None if table is None else table.ledger
    # The sinks of a table share one: those that observe it save the same.
    location = named or f"{state.rstrip('/')}/ledger/{table_of(name)}"
    return LedgerLocation(location, is_read_only)


def sinks_of(config: Config, name: str) -> list[str]:
    """Return the pipelines of the same table that a daemon itself runs, this one included."""
    return [
        each
        for each, table in config.tables.items()
        if table.has_sink and not table.is_stream and table_of(each) == table_of(name)
    ]


def list_ledgers(config: Config) -> tuple[str, ...]:
    """Return the ledger locations of all pipelines."""
    return tuple(dict.fromkeys(locate_ledger(config, name).location for name in config.tables))


async def open_statistics(
    location: str,
    *,
    stores: Stores,
    telemetry: Telemetry,
    allowed: Sequence[str] = (),
    ledger: LedgerLocation | None = None,
    options: Mapping[str, object] | None = None,
) -> TableStatistics | None:
    """Return the statistics of the table at a location; None if its format has none.

    Mismatched checksums are reported by the pipeline's own reader.

    Args:
        stores: Access to its files.
        allowed: Locations that symbolic links in the log may lead to.
        ledger: Observed states of a table without history; read-only.
        options: Those of the table's format.

    Raises:
        NotATableError: There is no table.
        ConfigError: No store supports this location.
        StorageError: It cannot be read.
    """
    found, at = await find_table(locate_table(location, allowed, stores=stores))
    if found.statistics is None:
        return None
    folder = found.folder(at)
    shared = at.wrap(
        lambda store: using_cache(_meter_store(store, telemetry), folder, stores.shared_reads)
    )
    request = PartRequest(location=shared, ledger=ledger, options=options or {})
    return found.statistics(request)


async def open_log(
    table: TableConfig, *, stores: Stores, telemetry: Telemetry, ledger: LedgerLocation
) -> OpenedLog:
    """Open a table's log to inspect its commits; warnings become notes.

    Raises:
        UnsupportedFeatureError: Its format has no inspection.
        NotATableError: There is no table.
        StorageError: It cannot be read.
    """
    at = _locate(table, stores)
    found, location = await find_table(at, table.format, table.format_settings())
    notes: list[str] = []
    request = PartRequest(
        location=location.wrap(lambda store: _meter_store(store, telemetry)),
        ledger=ledger,
        options=table.format_settings(),
        warn=lambda error: notes.append(str(error)),
    )
    inspector = require_part(found.inspector, found.name, "inspection")
    return OpenedLog(inspection=inspector(request), notes=notes)


def _locate(table: TableConfig, stores: Stores | None = None) -> TableLocation:
    return locate_table(table.path, table.allowed_paths, stores=stores)


def list_maintenance_targets(config: Config) -> dict[str, MaintenanceTarget]:
    """Return the tables whose logs are maintained."""
    delivered = {table_of(name) for name, table in config.tables.items() if table.has_sink}
    return {
        name: MaintenanceTarget(
            location=table.path,
            folder=log_folder(table),
            policies=make_policies(table.maintenance, config.spark),
            allowed=tuple(table.allowed_paths),
            format=table.format,
            ledgers=list_ledgers(config),
            is_alone=name not in delivered,
            # Tables with a sink are measured alongside their pipelines; those that Spark maintains
            # are too large for one process.
            is_measured=(
                config.table_metrics
                and name not in delivered
                and table.maintenance.runs_on != "spark"
            ),
        )
        for name, table in config.tables.items()
        if table.maintenance is not None
    }


def delivered_folders(config: Config) -> dict[str, str]:
    """Return the log folder of every table that a pipeline delivers."""
    return {name: log_folder(table) for name, table in config.tables.items() if table.has_sink}


def lacks_demo_table(config: TableConfig) -> bool:
    """Return whether the table has `create: demo` and does not exist yet."""
    return config.create == "demo" and not Path(log_folder(config)).exists()


def log_folder(config: TableConfig) -> str:
    """Return the folder whose files are the table's commits."""
    return commit_folder(_locate(config), config.format)


def watched_folders(config: Config) -> list[WatchedFolder]:
    """Return the log folders that have to be watched; Spark's streams watch theirs themselves."""
    return [
        _watch_table(table)
        for table in config.tables.values()
        if table.maintenance is not None or (table.has_sink and not table.is_stream)
    ]


def _watch_table(table: TableConfig) -> WatchedFolder:
    location = _locate(table)
    found = presumed_format(location, table.format)
    return WatchedFolder(
        folder=found.folder(location),
        url=location.store.format_url(found.folder(location)),
        version_of=found.names.version_of,
        is_remote=is_remote(table.path),
        poll_interval=table.poll_interval,
    )


def make_watchers(
    config: Config, *, finished: FinishedFiles, telemetry: Telemetry, clock: Clock
) -> list[Watcher]:
    """Return the watchers of those folders; they note complete files in `finished`."""
    return open_watchers(
        watched_folders(config),
        open_queue(config.notifications, config.storage),
        finished=finished,
        telemetry=telemetry,
        clock=clock,
    )
