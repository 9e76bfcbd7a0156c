"""Builds the version checksum: every field of the protocol except the file list.

`allFiles` is left out: it repeats the table, and is feasible only for a table of few files.

Protocol: PROTOCOL.md#version-checksum-file
"""

from __future__ import annotations

from typing import Any

import msgspec

from tailerd.errors import CorruptLogError
from tailerd.formats.delta.protocol.actions import CommitInfo, Metadata, Protocol
from tailerd.formats.delta.protocol.file_tally import SIZE_BOUNDARIES
from tailerd.formats.delta.protocol.snapshot import Snapshot


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
