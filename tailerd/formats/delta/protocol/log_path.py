"""Parses the names of files in `_delta_log`.

Protocol: PROTOCOL.md#delta-log-entries, #checkpoints, #log-compaction-files, #version-checksum-file
"""

from __future__ import annotations

import enum
import re
import uuid

from msgspec import Struct

LOG_FOLDER = "_delta_log"
SIDECAR_FOLDER = "_sidecars"
LAST_CHECKPOINT = "_last_checkpoint"


class LogFileKind(enum.StrEnum):
    """The kind of a file of the log."""

    COMMIT = "commit"
    CLASSIC_CHECKPOINT = "classic_checkpoint"
    MULTI_PART_CHECKPOINT = "multi_part_checkpoint"
    UUID_CHECKPOINT = "uuid_checkpoint"
    COMPACTION = "compaction"
    CHECKSUM = "checksum"
    SIDECAR = "sidecar"


CHECKPOINT_KINDS = frozenset(
    {
        LogFileKind.CLASSIC_CHECKPOINT,
        LogFileKind.MULTI_PART_CHECKPOINT,
        LogFileKind.UUID_CHECKPOINT,
    }
)


class LogFile(Struct, frozen=True, kw_only=True, gc=False):
    """One file of the log.

    Attributes:
        name: Relative to `_delta_log`.
        version: The version it belongs to; for a compaction, the first.
        end_version: The last version of a compaction; otherwise `version`.
        part, parts: Of a multi-part checkpoint, counted from 1; otherwise 0.
        identity: Distinguishes files with the same name, size and time; 0 if unknown.
    """

    name: str
    kind: LogFileKind
    version: int
    end_version: int
    part: int = 0
    parts: int = 0
    size_bytes: int = 0
    mtime_ms: int = 0
    identity: int = 0

    @property
    def is_json(self) -> bool:
        """Whether the body is lines of JSON; otherwise Parquet."""
        return self.name.endswith(".json")


_OTHER = re.compile(
    r"(?P<version>\d{20})\.(?:"
    r"(?P<checksum>crc)"
    r"|(?P<end>\d{20})\.compacted\.json"
    r"|checkpoint\.(?:"
    r"(?P<classic>parquet)"
    r"|(?P<part>\d{10})\.(?P<parts>\d{10})\.parquet"
    r"|(?P<uuid>[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})\.(?:json|parquet)"
    r"))"
)


_SIDECAR = re.compile(
    r"(?:\d{20}\.checkpoint\.\d{10}\.\d{10}\.)?"
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\.parquet",
    re.ASCII,
)


def is_sidecar_name(name: str) -> bool:
    """Return whether a file in `_sidecars` has the usual name of a sidecar, with a UUID.

    The protocol does not prescribe names; a file with another name may be anything.
    """
    return _SIDECAR.fullmatch(name) is not None


def commit_name(version: int) -> str:
    """Return the name of a commit file."""
    return f"{version:020}.json"


def commit_log_file(version: int, size_bytes: int, mtime_ms: int, identity: int = 0) -> LogFile:
    """Return a commit file of this size and time."""
    return LogFile(
        name=commit_name(version),
        kind=LogFileKind.COMMIT,
        version=version,
        end_version=version,
        size_bytes=size_bytes,
        mtime_ms=mtime_ms,
        identity=identity,
    )


def checksum_name(version: int) -> str:
    """Return the name of a version checksum file."""
    return f"{version:020}.crc"


def checkpoint_name(version: int) -> str:
    """Return the classic name of a checkpoint in one file."""
    return f"{version:020}.checkpoint.parquet"


def uuid_checkpoint_name(version: int, identity: uuid.UUID, extension: str = "json") -> str:
    """Return the name of a V2 checkpoint's manifest, `json` or `parquet`."""
    return f"{version:020}.checkpoint.{identity}.{extension}"


def compaction_name(start_version: int, end_version: int) -> str:
    """Return the name of a log compaction file."""
    return f"{start_version:020}.{end_version:020}.compacted.json"


def format_first_name(version: int) -> str:
    """Return a name that sorts before every file of `version` and after all of `version - 1`."""
    return f"{version:020}"


def parse_log_path(
    name: str, size_bytes: int = 0, mtime_ms: int = 0, identity: int = 0
) -> LogFile | None:
    """Parse the name of a file in `_delta_log`; None for files that readers ignore.

    These are temporary files, `.crc` files of Hadoop, folders of later protocols and other files of
    writers.
    """
    # Nearly every file is a commit: avoid the cost of a regular expression for these.
    if len(name) == 25 and name.endswith(".json") and name.isascii() and name[:20].isdigit():
        return commit_log_file(int(name[:20]), size_bytes, mtime_ms, identity)
    match = _OTHER.fullmatch(name)
    return None if match is None else _other_file(match, size_bytes, mtime_ms)


def _other_file(match: re.Match[str], size_bytes: int, mtime_ms: int) -> LogFile | None:
    version = end_version = int(match["version"])
    part = parts = 0
    if match["checksum"]:
        kind = LogFileKind.CHECKSUM
    elif match["end"]:
        kind = LogFileKind.COMPACTION
        end_version = int(match["end"])
        if end_version <= version:
            return None
    elif match["classic"]:
        kind = LogFileKind.CLASSIC_CHECKPOINT
    elif match["uuid"]:
        kind = LogFileKind.UUID_CHECKPOINT
    else:
        kind = LogFileKind.MULTI_PART_CHECKPOINT
        part, parts = int(match["part"]), int(match["parts"])
        if not 1 <= part <= parts:
            return None
    return LogFile(
        name=match[0],
        kind=kind,
        version=version,
        end_version=end_version,
        part=part,
        parts=parts,
        size_bytes=size_bytes,
        mtime_ms=mtime_ms,
    )
