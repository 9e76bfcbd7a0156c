"""Parses version checksums, and compares them with a replayed snapshot.

Protocol: PROTOCOL.md#version-checksum-file
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from tailerd.errors import ChecksumMismatchError
from tailerd.formats.delta.protocol.actions import Metadata, Protocol
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
