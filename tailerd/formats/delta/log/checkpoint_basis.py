"""Determines the files from which a checkpoint is written, and whether it may be written."""

from __future__ import annotations

from dataclasses import dataclass

from tailerd.errors import LogChangedError, UnsupportedFeatureError
from tailerd.formats.delta.log.log_folder import LogFolder
from tailerd.formats.delta.log.parquet_rows import CheckpointFile
from tailerd.formats.delta.protocol import table_properties as properties
from tailerd.formats.delta.protocol.log_path import LogFile
from tailerd.formats.delta.protocol.log_segment import LogListing, commits_between
from tailerd.formats.delta.protocol.snapshot import Snapshot, TableState
from tailerd.formats.delta.protocol.writer_features import (
    check_maintainable,
    supports_v2_checkpoints,
)

KEEP_ALL = -(2**63)
"""Before the time of every remove, including one without a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointBasis:
    """The files of the log from which a checkpoint is written.

    Attributes:
        existing: Files of an existing checkpoint of this version; empty for none.
        published: The file that publishes the version: its commit, or a compaction that ends there;
            None if a checkpoint exists already.
        commits: Files of the commits since the previous checkpoint, ascending; a compaction may
            replace its range.
        removed_after_ms: Removes of files deleted at or before this time expired; `KEEP_ALL`
            if the table's retention is not a valid interval.
        transactions_after_ms: Transactions last updated at or before this time expired; None keeps
            all.
        has_checksum: Whether the version has a checksum.
    """

    existing: tuple[LogFile, ...] = ()
    published: LogFile | None = None
    commits: tuple[LogFile, ...] = ()
    removed_after_ms: int = 0
    transactions_after_ms: int | None = None
    has_checksum: bool = False


async def choose_basis(log: LogFolder, snapshot: Snapshot, now_ms: int) -> CheckpointBasis:
    """Return the basis for a checkpoint of a snapshot's version.

    Raises:
        UnsupportedFeatureError: The table requires an unsupported writer feature.
        MissingVersionError: Commits of the snapshot are missing from the log.
        LogChangedError: The version is not in the log.
        CorruptLogError: A data file is live with two deletion vectors.
        StorageError: The log cannot be listed.
    """
    check_maintainable(snapshot.state)
    if snapshot.num_files is not None:
        snapshot.check_paths()
    version = snapshot.version
    base = -1 if snapshot.checkpoint_version is None else snapshot.checkpoint_version
    listing = await log.list_log(max(0, base))
    if version in listing.checkpoints:
        return CheckpointBasis(existing=listing.checkpoints[version][0])
    return CheckpointBasis(
        published=_find_published(listing, version, log.url),
        commits=commits_between(listing, base, version, snapshot.compactions),
        removed_after_ms=_removed_after_ms(snapshot.state, now_ms),
        transactions_after_ms=_transactions_after_ms(snapshot.state, now_ms),
        has_checksum=version in listing.checksum_versions,
    )


def check_has_sidecars(state: TableState) -> None:
    """Reject a table whose checkpoints are one file, which cannot be written by several tasks.

    Raises:
        UnsupportedFeatureError: It lacks V2 checkpoints, or prefers classic ones.
    """
    if not supports_v2_checkpoints(state):
        raise UnsupportedFeatureError(
            "Spark writes checkpoints with sidecars only, and those of this table are one file: it"
            " lacks the feature v2Checkpoint, or sets delta.checkpointPolicy = classic.",
            remedy="Set delta.checkpointPolicy = v2 on the table, if all its readers support V2"
            " checkpoints, or leave `engine: spark` out of its maintenance.",
        )


def check_readable_checkpoint(log: LogFolder, files: tuple[LogFile, ...]) -> None:
    """Check the Parquet files of a checkpoint that another writer wrote; blocking.

    Raises:
        CorruptLogError: One is not a valid checkpoint file.
    """
    for file in files:
        if not file.is_json:
            CheckpointFile.open(log, file).close()


def _find_published(listing: LogListing, version: int, url: str) -> LogFile:
    ending = [file for file in listing.compactions if file.end_version == version]
    found = listing.commits.get(version) or next(iter(ending), None)
    if found is None or (version not in listing.commits and listing.head_version != version):
        raise LogChangedError(
            f"Version {version} is not in the log of {url}, so no checkpoint of it may be written.",
            remedy="Run the command again: the log changed meanwhile.",
        )
    return found


def _removed_after_ms(state: TableState, now_ms: int) -> int:
    configuration, name = state.metadata.configuration, properties.DELETED_FILE_RETENTION
    seconds = properties.duration_seconds(configuration, name)
    return KEEP_ALL if seconds is None else now_ms - round(seconds * 1000)


def _transactions_after_ms(state: TableState, now_ms: int) -> int | None:
    text = state.metadata.configuration.get(properties.SET_TRANSACTION_RETENTION, "")
    seconds = properties.parse_interval(text)
    return None if seconds is None else now_ms - round(seconds * 1000)
