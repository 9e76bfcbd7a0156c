"""Tables of a configuration, opened for their changes, their statistics or a look."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.limits import DEFAULT_MEMORY_BYTES
from tailerd.config import Config, TableConfig
from tailerd.errors import (
    ChecksumMismatchError,
    ConfigError,
    TailerdError,
    UnsupportedFeatureError,
    ZoneAssumedError,
)
from tailerd.formats.base import ChangeSource, NetSteps, OpenRequest, ScratchPlace, TableFormat
from tailerd.formats.detect import find_format, open_table
from tailerd.formats.ledger import LedgerPlace
from tailerd.formats.parts import required
from tailerd.formats.placement import place_at
from tailerd.formats.statistics import TableStatistics
from tailerd.maintenance.settings import policies_of
from tailerd.maintenance.table_maintainer import KeptTable
from tailerd.pipeline.table_explorer import OpenedLog
from tailerd.pipeline.watched_folders import log_folder
from tailerd.registry import is_remote
from tailerd.storage.base import ObjectStore
from tailerd.storage.metered import MeteredStore
from tailerd.storage.shared_reads import hearing, telling
from tailerd.storage.stores import Stores
from tailerd.telemetry import Telemetry, events


async def open_source(
    config: TableConfig,
    telemetry: Telemetry,
    scratch: ScratchPlace | None = None,
    *,
    stores: Stores,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    warned: set[str] | None = None,
    ledger: LedgerPlace | None = None,
    pipeline: str = "",
) -> ChangeSource:
    """Open a table for its changes.

    Args:
        pipeline: Told what the table is, where one is named.
        stores: How its files are reached.
        ledger: Where a format without history keeps the states it observed; see `ledger_of`.
        memory_bytes: The configured `memory`, which readers of its log keep within.
        scratch: For what a snapshot that is being delivered needs after a restart.
        warned: Places whose users know that a zone is guessed; pipelines open theirs often.

    Raises:
        TableError, StorageError: It is none, cannot be read, or asks for what is not known here.
        ConfigError: Its `identity` names a column that is not there.
    """
    request = OpenRequest(
        stores=stores,
        changes=ChangeMode(config.changes),
        allowed_paths=config.allowed_paths,
        identity=config.pairing_columns,
        wrap_store=lambda store: telling(_metered(store, telemetry), stores.shared_reads),
        on_warning=_warnings_of(config.path, telemetry, set() if warned is None else warned),
        scratch=scratch,
        options=config.options_of_format(),
        ledger=ledger,
        memory_bytes=memory_bytes,
        on_format=_teller_of(pipeline, telemetry) if pipeline else None,
        net_above=None if config.net is None else config.net.above_versions,
    )
    source = await open_table(config.path, request, config.format)
    if config.reads_net and not isinstance(source, NetSteps):
        raise UnsupportedFeatureError(
            f"{config.path} is of a format whose commits cannot be given as one difference.",
            remedy="Leave `net` out of `changes`, `net` and `on_gap`.",
        )
    await _check_identity(config, source)
    return source


def _teller_of(pipeline: str, telemetry: Telemetry) -> Callable[[TableFormat], None]:
    """Return what emits of which format a pipeline's table is."""

    def tell(found: TableFormat) -> None:
        capabilities = asdict(found.capabilities)
        telemetry.emit(
            events.TableOpened(table=pipeline, format=found.name, capabilities=capabilities)
        )

    return tell


def _warnings_of(
    path: str, telemetry: Telemetry, known_guesses: set[str]
) -> Callable[[TailerdError], None]:
    """Return what emits the warnings of a table; that of a guessed zone once a place."""

    def warn(error: TailerdError) -> None:
        if isinstance(error, ZoneAssumedError):
            if path in known_guesses:
                return
            known_guesses.add(path)
            told: events.Event = events.ZoneAssumed(
                path=path, error_code=error.code, error=str(error)
            )
        else:
            is_checksum = isinstance(error, ChecksumMismatchError)
            event = events.ChecksumDiffered if is_checksum else events.CheckpointSkipped
            told = event(path=path, error_code=error.code, error=str(error))
        telemetry.emit(told)

    return warn


async def _check_identity(config: TableConfig, source: ChangeSource) -> None:
    """Refuse an identity of columns that the table does not have."""
    names = (await source.arrow_schema()).names if config.identity else []
    if unknown := [name for name in config.identity if name not in names]:
        raise ConfigError(
            f"`identity` names {unknown[0]!r}, and {config.path} has no such column: it has"
            f" {', '.join(names)}.",
            remedy="Check the spelling; names are case-sensitive.",
        )


def _metered(store: ObjectStore, telemetry: Telemetry) -> ObjectStore:
    return MeteredStore(store, lambda verb: telemetry.emit(events.StorageRequested(operation=verb)))


def ledger_of(config: Config, name: str, *, is_read_only: bool = False) -> LedgerPlace:
    """Return where a pipeline keeps what it observed of a table without history.

    One that a pattern found has its own below the state.
    """
    # Spark's processes may work in another folder.
    state = config.state if is_remote(config.state) else str(Path(config.state).absolute())
    table = config.tables.get(name)
    named = None if table is None else table.ledger
    place = named or f"{state.rstrip('/')}/ledger/{name}"
    return LedgerPlace(place, is_read_only)


def ledgers_of(config: Config) -> tuple[str, ...]:
    """Return where all pipelines keep what they observed."""
    return tuple(ledger_of(config, name).place for name in config.tables)


async def open_statistics(
    place: str,
    *,
    stores: Stores,
    telemetry: Telemetry,
    allowed: Sequence[str] = (),
    ledger: LedgerPlace | None = None,
) -> TableStatistics | None:
    """Return what measures the table at a place; None where its format has no statistics.

    Checksums that differ are reported by the pipeline's own reader.

    Args:
        stores: How its files are reached.
        allowed: Places that symbolic links in the log may lead to.
        ledger: What was observed of a table without history; only read.

    Raises:
        NotATableError: There is no table.
        ConfigError: No store serves this place.
        StorageError: It cannot be looked at.
    """
    found = await find_format(place, allowed=allowed, stores=stores)
    if found.statistics is None:
        return None
    folder = found.folder(place)
    return found.statistics(
        place_at(
            place,
            stores=stores,
            allowed=allowed,
            commits=folder,
            ledger=ledger,
            wrap_store=lambda store: hearing(
                _metered(store, telemetry), folder, stores.shared_reads
            ),
        )
    )


async def open_log(
    table: TableConfig, *, stores: Stores, telemetry: Telemetry, ledger: LedgerPlace
) -> OpenedLog:
    """Open a table's log for a look at its commits; what is unexpected in it becomes notes.

    Raises:
        UnsupportedFeatureError: Its format has no inspection.
        NotATableError: There is no table.
        StorageError: It cannot be looked at.
    """
    found = await find_format(table.path, table.format, table.allowed_paths, stores=stores)
    notes: list[str] = []
    place = place_at(
        table.path,
        stores=stores,
        allowed=table.allowed_paths,
        commits=found.folder(table.path),
        ledger=ledger,
        wrap_store=lambda store: _metered(store, telemetry),
        warn=lambda error: notes.append(str(error)),
    )
    inspector = required(found.inspector, found.name, "inspection")
    return OpenedLog(inspection=inspector(place), notes=notes)


def kept_tables(config: Config) -> dict[str, KeptTable]:
    """Return the tables whose logs are maintained."""
    return {
        name: KeptTable(
            place=table.path,
            folder=log_folder(table),
            policies=policies_of(table.maintenance, config.spark),
            allowed=tuple(table.allowed_paths),
            format=table.format,
            ledgers=ledgers_of(config),
            is_alone=not table.has_sink,
            # Those with a sink are measured beside their pipelines; Spark's are too large for one.
            is_measured=(
                config.table_metrics and not table.has_sink and table.maintenance.runs_on != "spark"
            ),
        )
        for name, table in config.tables.items()
        if table.maintenance is not None
    }


def delivered_folders(config: Config) -> dict[str, str]:
    """Return the log folder of every table that a pipeline delivers."""
    return {name: log_folder(table) for name, table in config.tables.items() if table.has_sink}


def lacks_demo_table(config: TableConfig) -> bool:
    """Return whether the table says `create: demo` and is not there yet."""
    return config.create == "demo" and not Path(log_folder(config)).exists()
