"""The checkpoint folder of a supervised query, looked at before Spark takes it up.

Spark writes `metadata` once, `offsets/N` before micro-batch N and `commits/N` behind it, each whole
or not at all. A full disk, a power cut or a copy of half a folder leaves what Spark reports as an
error of its Java, or goes on from as if nothing had happened.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from tailerd.changefeed.offset import Offset
from tailerd.errors import MissingVersionError, OffsetError, TableRecreatedError, TailerdError
from tailerd.spark.checkpoints import batch_numbers

_LOG_VERSION = "v1"
_OTHER_VERSION = re.compile(r"v\d+")
_NONE = "-"
_ABOUT_OFFSETS = (OffsetError, TableRecreatedError, MissingVersionError)


def check_checkpoint(folder: Path) -> None:
    """Make sure that a query can go on from a checkpoint; one that is not there yet is good.

    Raises:
        OffsetError: It is damaged, or not this release's.
    """
    if not folder.exists():
        return
    try:
        _check_metadata(folder)
        planned, done = batch_numbers(folder / "offsets"), batch_numbers(folder / "commits")
        if done and (not planned or done[-1] > planned[-1]):
            raise _damaged(
                folder,
                f"commits/{done[-1]} says that a micro-batch is done whose offset is not there",
            )
        for number in planned[-2:]:
            _check_offset(folder, f"offsets/{number}")
    except OSError as error:
        raise OffsetError(
            f"Spark's checkpoint {folder} cannot be read: {error.strerror}.",
            hint="Give this user the right to read and write there.",
        ) from error


def with_checkpoint(error: TailerdError, folder: Path) -> TailerdError:
    """Return an error about a saved offset with the place it is kept at and how to let it go."""
    if not isinstance(error, _ABOUT_OFFSETS) or str(folder) in str(error):
        return error
    return type(error)(
        error.message,
        hint=f"{error.hint} Spark keeps the offset in {folder}: {_begin_anew(folder)}".strip(),
    )


def _check_metadata(folder: Path) -> None:
    path = folder / "metadata"
    if not path.exists():
        if batch_numbers(folder / "offsets"):
            raise _damaged(folder, "metadata, which names the query, is missing")
        return
    try:
        query = json.loads(path.read_text(encoding="utf-8"))["id"]
    except (ValueError, KeyError, TypeError):
        query = ""
    if not query:
        raise _damaged(folder, "metadata, which names the query, is empty or cut off")


def _check_offset(folder: Path, name: str) -> None:
    """Check one file: the log's version, a line about the micro-batch, then one for each source."""
    try:
        lines = (folder / name).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        lines = []
    if lines and lines[0] != _LOG_VERSION and _OTHER_VERSION.fullmatch(lines[0]):
        # Spark knows whether it reads that.
        return
    if len(lines) < 3 or lines[0] != _LOG_VERSION:
        raise _damaged(folder, f"{name} is cut off")
    for line in lines[2:]:
        if line != _NONE:
            _check_source(folder, name, line)


def _check_source(folder: Path, name: str, line: str) -> None:
    try:
        Offset.from_json(line)
    except OffsetError as error:
        raise OffsetError(
            f"Spark's checkpoint {folder} cannot be gone on from: {name} says: {error.message}",
            hint=f"{error.hint} For a query that means: {_begin_anew(folder)}".strip(),
        ) from error


def _damaged(folder: Path, what: str) -> OffsetError:
    return OffsetError(
        f"Spark's checkpoint {folder} is damaged: {what}, because it was copied in part or the"
        " disk failed.",
        hint=f"Restore the folder from a backup, or begin anew: {_begin_anew(folder)}",
    )


def _begin_anew(folder: Path) -> str:
    return (
        f"`rm -r {folder}` and empty the sink; then the table comes again from where its"
        " configuration says."
    )
