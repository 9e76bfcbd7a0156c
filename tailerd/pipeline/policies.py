"""What a pipeline does if a table cannot be delivered completely."""

from __future__ import annotations

import enum

from tailerd.errors import (
    InvalidDeletionVectorError,
    MissingDataFileError,
    MissingVersionError,
    TableRecreatedError,
    UnreadableDataFileError,
)


class OnGap(enum.StrEnum):
    """Where to continue when the next version or its files are gone, or the table was replaced.

    Two of the values are words of `ChangeSource.initial_offset`. With `net` the offset stays, and
    the versions up to the head are delivered as one net change.
    """

    STOP = "stop"
    SNAPSHOT = "snapshot"
    LATEST = "latest"
    NET = "net"


class OnCorruptCommit(enum.StrEnum):
    """What to do with a commit whose rows cannot be read."""

    STOP = "stop"
    SKIP_AND_RECORD = "skip-and-record"


GAP_ERRORS = (MissingVersionError, TableRecreatedError)
"""Errors that mean a gap. So does `MissingDataFileError`, if the table no longer has the file."""

CORRUPT_COMMIT_ERRORS = (MissingDataFileError, UnreadableDataFileError, InvalidDeletionVectorError)
"""Errors that mean a commit whose rows cannot be read."""
