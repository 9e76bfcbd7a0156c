"""Which folders a daemon watches, as its configuration says."""

from __future__ import annotations

from tailerd.clock import Clock
from tailerd.config import Config, TableConfig
from tailerd.formats.detect import commit_folder, presumed_format
from tailerd.registry import is_remote
from tailerd.storage.finished_files import FinishedFiles
from tailerd.storage.s3.settings import S3Settings
from tailerd.telemetry import Telemetry
from tailerd.watchers.base import Watcher
from tailerd.watchers.opening import WatchedFolder, open_watchers


def log_folder(config: TableConfig) -> str:
    """Return the folder whose files are the table's commits."""
    return commit_folder(config.path, config.format)


def relayed_folders(config: Config) -> dict[str, str]:
    """Return the log folders, by table, whose hints are passed on to Spark's processes.

    Spark watches its tables itself; what a queue tells of buckets only one process can hear.
    """
    return {
        name: log_folder(table)
        for name, table in config.tables.items()
        if config.notifications is not None
        and table.has_sink
        and config.engine_of(name) == "spark"
        and is_remote(table.path)
    }


def watched_folders(config: Config) -> list[WatchedFolder]:
    """Return the log folders that have to be watched."""
    relayed = relayed_folders(config)
    watched = []
    for name, table in config.tables.items():
        is_arrow = table.has_sink and config.engine_of(name) == "arrow"
        if table.maintenance is not None or is_arrow:
            watched.append(_watched(table))
        elif name in relayed:
            # An interval that somebody chose is Spark's own to keep.
            watched.append(_watched(table, is_polled=table.poll_interval is None))
    return watched


def watchers_of(
    config: Config, *, finished: FinishedFiles, telemetry: Telemetry, clock: Clock
) -> list[Watcher]:
    """Return what reports commits in those folders, and notes in `finished` which are whole."""
    return open_watchers(
        watched_folders(config),
        config.notifications,
        account=S3Settings.of_config(config.storage).default,
        finished=finished,
        telemetry=telemetry,
        clock=clock,
    )


def _watched(table: TableConfig, *, is_polled: bool = True) -> WatchedFolder:
    return WatchedFolder(
        folder=log_folder(table),
        version_of=presumed_format(table.path, table.format).names.version_of,
        is_remote=is_remote(table.path),
        poll_interval=table.poll_interval,
        is_polled=is_polled,
    )
