"""Parses version checksums, and compares them with a replayed snapshot.

Protocol: PROTOCOL.md#version-checksum-file
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from tailerd.errors import ChecksumMismatchError, CorruptLogError
from tailerd.formats.delta.protocol.actions import CommitInfo, Metadata, Protocol
from tailerd.formats.delta.protocol.file_tally import SIZE_BOUNDARIES
from tailerd.formats.delta.protocol.snapshot import Snapshot


class VersionChecksum(Struct, rename="camel", frozen=True):
    """The fields of `N.crc` that a reader validates; absent ones are not compared."""

    table_size_bytes: int | None = None
    num_files: int | None = None
    metadata: Metadata | None = None
    protocol: Protocol | None = None


_DECODER = msgspec.json.Decoder(VersionChecksum)


def parse_version_checksum(body: bytes) -> VersionChecksum | None:
    """Parse a checksum file; None if it is unreadable: readers must continue without it."""
    try:
        return _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def validate_checksum(snapshot: Snapshot, checksum: VersionChecksum) -> None:
    """Compare a replayed snapshot with the checksum of its version.

    Raises:
        ChecksumMismatchError: The message names every field that differs, with both values.
    """
    pairs: list[tuple[str, object, object]] = [
        ("numFiles", checksum.num_files, snapshot.num_files),
        ("tableSizeBytes", checksum.table_size_bytes, snapshot.size_bytes),
    ]
    if checksum.metadata is not None:
        pairs.append(("metadata.id", checksum.metadata.id, snapshot.state.metadata.id))
    if checksum.protocol is not None:
        ours = snapshot.state.protocol
        theirs = checksum.protocol
        pairs += [
            ("minReaderVersion", theirs.min_reader_version, ours.min_reader_version),
            ("minWriterVersion", theirs.min_writer_version, ours.min_writer_version),
        ]
    wrong = [
        f"{name} is {theirs} in the checksum and {ours} by replay"
        for name, theirs, ours in pairs
        if theirs is not None and ours is not None and theirs != ours
    ]
    if wrong:
        raise ChecksumMismatchError(
            f"The log of version {snapshot.version} does not match its checksum:"
            f" {'; '.join(wrong)}. Either a log file was changed or lost, or the checksum was"
            " written wrongly.",
            remedy=(
                f"Compare with another reader; if the checksum is wrong, delete"
                f" _delta_log/{snapshot.version:020}.crc."
            ),
        )


# `allFiles` is left out: it repeats the table, and is feasible only for a table of few files.
#
# Protocol: PROTOCOL.md#version-checksum-file


def checksum_body(snapshot: Snapshot, info: CommitInfo | None) -> bytes:
    """Return the body of `N.crc`.

    Args:
        snapshot: Of version N, with its files; the cost is proportional to the commits since the
            last call.
        info: Provenance of commit N.

    Raises:
        CorruptLogError: In-commit timestamps are enabled and the commit has none.
    """
    state, files = snapshot.state, snapshot.files
    body: dict[str, Any] = {}
    if info is not None and info.txn_id:
        body["txnId"] = info.txn_id
    body |= {"tableSizeBytes": files.size_bytes, "numFiles": files.num_files}
    if "deletionVectors" in (state.protocol.reader_features or ()):
        vectors = files.vectors
        without = files.num_files - vectors.count
        body |= {
            "numDeletedRecordsOpt": vectors.deleted_rows,
            "numDeletionVectorsOpt": vectors.count,
            "deletedRecordCountsHistogramOpt": {
                "deletedRecordCounts": [without + vectors.counts[0], *vectors.counts[1:]]
            },
        }
    body |= {"numMetadata": 1, "numProtocol": 1}
    if state.has_in_commit_timestamps:
        body["inCommitTimestampOpt"] = _in_commit_time(snapshot.version, info)
    bins = files.size_bins()
    body |= {
        "setTransactions": [_present(action) for action in snapshot.transactions.values()],
        "domainMetadata": list(snapshot.domain_metadata.values()),
        "metadata": _present(state.metadata),
        "protocol": _present(state.protocol),
        "fileSizeHistogram": {
            "sortedBinBoundaries": SIZE_BOUNDARIES,
            "fileCounts": bins.files,
            "totalBytes": bins.bytes,
        },
    }
    return msgspec.json.encode(body)


def _in_commit_time(version: int, info: CommitInfo | None) -> int:
    if info is None or info.in_commit_timestamp is None:
        raise CorruptLogError(
            f"Version {version} has no inCommitTimestamp, though the table has in-commit timestamps"
            " enabled.",
            remedy="The writer is broken: restore the log entry from a backup.",
        )
    return info.in_commit_timestamp


def _present(action: Metadata | Protocol | msgspec.Struct) -> dict[str, Any]:
    """Return an action in JSON form, without absent fields."""
    fields = msgspec.to_builtins(action)
    return {name: value for name, value in fields.items() if value is not None}
