"""Finds the folders that a daemon watches, from its configuration."""

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


def watched_folders(config: Config) -> list[WatchedFolder]:
    """Return the log folders that have to be watched; Spark's streams watch theirs themselves."""
    return [
        WatchedFolder(
            folder=log_folder(table),
            version_of=presumed_format(table.path, table.format).names.version_of,
            is_remote=is_remote(table.path),
            poll_interval=table.poll_interval,
        )
        for table in config.tables.values()
        if table.maintenance is not None or (table.has_sink and not table.is_stream)
    ]


def watchers_of(
    config: Config, *, finished: FinishedFiles, telemetry: Telemetry, clock: Clock
) -> list[Watcher]:
    """Return the watchers of those folders; they note complete files in `finished`."""
    return open_watchers(
        watched_folders(config),
        config.notifications,
        account=S3Settings.of_config(config.storage).default,
        finished=finished,
        telemetry=telemetry,
        clock=clock,
    )
