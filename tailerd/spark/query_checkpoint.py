"""Checks the checkpoint folder of a supervised query before Spark reads it.

Spark writes `metadata` once, `offsets/N` before micro-batch N and `commits/N` after it, each
atomically. After a full disk, a power failure or an incomplete copy, Spark fails with a Java error,
or resumes as if nothing had happened.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from tailerd.changefeed.offset import Offset
from tailerd.errors import (
    MissingVersionError,
    OffsetError,
    StorageError,
    TableRecreatedError,
    TailerdError,
)
from tailerd.private_files import make_private_folder
from tailerd.spark.checkpoints import batch_numbers

_LOG_VERSION = "v1"
_ANY_VERSION = re.compile(r"v\d+")
_NONE = "-"
_AGAIN = "and empty the sink; then the table is delivered again from the configured start."
_ABOUT_OFFSETS = (OffsetError, TableRecreatedError, MissingVersionError)


def check_checkpoint(folder: Path) -> None:
    """Check that a query can resume from a checkpoint; one that does not exist yet is valid.

    Args:
        folder: The checkpoint.

    Raises:
        OffsetError: It is damaged, or of another release.
    """
    if not folder.exists():
        return
    begin_again = f"`rm -r {folder}` {_AGAIN}"
    mend = f"Restore the folder from a backup, or start over: {begin_again}"
    try:
        _check_metadata(folder, mend)
        planned, done = batch_numbers(folder / "offsets"), batch_numbers(folder / "commits")
        if done and (not planned or done[-1] > planned[-1]):
            raise _describe_damage(
                folder,
                f"commits/{done[-1]} says that a micro-batch is done whose offset is missing",
                mend,
            )
        for number in done[-2:]:
            if not _lines(folder / f"commits/{number}"):
                raise _describe_damage(folder, f"commits/{number} is cut off", mend)
        for number in planned[-2:]:
            _check_offset(folder, f"offsets/{number}", begin_again, mend)
    except OSError as error:
        raise OffsetError(
            f"Spark's checkpoint {folder} cannot be read: {error.strerror}.",
            remedy="Give this user the right to read and write there.",
            path=str(folder),
        ) from error


def make_private(checkpoint: Path) -> None:
    """Create the parent folder of a checkpoint as private; Spark's files follow the umask.

    Raises:
        StorageError: It cannot be created.
    """
    try:
        make_private_folder(checkpoint.parent)
    except OSError as error:
        raise StorageError(
            f"{checkpoint.parent} cannot be written: {error.strerror or error}.",
            remedy="Check the permissions of the state folder and the free space.",
        ) from error


def with_checkpoint(error: TailerdError, folder: Path) -> TailerdError:
    """Add to an error about a saved offset the location of the offset and how to discard it."""
    is_named = bool(error.path) and Path(error.path).is_relative_to(folder)
    if not isinstance(error, _ABOUT_OFFSETS) or is_named:
        return error
    kept = f"{error.raw_remedy} Spark keeps the offset in {folder}: `rm -r {folder}` {_AGAIN}"
    placed = error.restate(error.message, remedy=kept.strip())
    placed.path = str(folder)
    return placed


def _check_metadata(folder: Path, mend: str) -> None:
    path = folder / "metadata"
    if not path.exists():
        if batch_numbers(folder / "offsets"):
            raise _describe_damage(folder, "metadata, which names the query, is missing", mend)
        return
    try:
        query = json.loads(path.read_text(encoding="utf-8"))["id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        query = ""
    if not query:
        what = "metadata, which names the query, is empty or cut off"
        raise _describe_damage(folder, what, mend)


def _check_offset(folder: Path, name: str, begin_again: str, mend: str) -> None:
    """Check one file: the log's version, a line about the micro-batch, then one for each source."""
    lines = _lines(folder / name)
    if lines and lines[0] != _LOG_VERSION:
        # Spark decides whether it can read that version.
        return
    if len(lines) < 3:
        raise _describe_damage(folder, f"{name} is cut off", mend)
    for line in lines[2:]:
        if line == _NONE:
            continue
        try:
            Offset.from_json(line)
        except OffsetError as error:
            raise OffsetError(
                f"Spark's checkpoint {folder} cannot be resumed from: {name}: {error.message}",
                remedy=f"{error.raw_remedy} For a query that means: {begin_again}".strip(),
                path=str(folder),
            ) from error


def _lines(path: Path) -> list[str]:
    """Return the lines of a log's file; none if it does not begin with a version."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        return []
    return lines if lines and _ANY_VERSION.fullmatch(lines[0]) else []


def _describe_damage(folder: Path, what: str, mend: str) -> OffsetError:
    return OffsetError(
        f"Spark's checkpoint {folder} is damaged: {what}, because it was copied in part or the"
        " disk failed.",
        remedy=mend,
        path=str(folder),
    )
