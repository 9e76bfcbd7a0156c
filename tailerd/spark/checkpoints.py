"""What Spark's own checkpoint folders say, read as files: no session is needed for that."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tailerd.errors import OffsetError, StorageError
from tailerd.storage.posix_files import sync_file, sync_folder

CHECKPOINT_FOLDER = "checkpoint"
"""Of the query of a group, in the group's folder."""

COMES_AGAIN = (
    "and empty the sinks of its tables; then they come again from where they began with this query,"
    " or from where their configuration says. Where a sink had more, restart the table too:"
    " `tailerd offsets reset NAME --to snapshot`."
)
"""What follows the removal of a checkpoint that tables share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedBatches:
    """The newest batches of a checkpoint; None where there is none.

    Attributes:
        logged: The newest batch whose end is logged.
        committed: The newest batch that is done. Spark repeats `logged` if it is not this one.
    """

    logged: int | None
    committed: int | None

    @property
    def unfinished(self) -> int | None:
        """The batch that Spark will repeat, if there is one."""
        return self.logged if self.logged != self.committed else None


def logged_batches(checkpoint: Path) -> LoggedBatches:
    """Look which batches a checkpoint has; blocking.

    Raises:
        OffsetError: It cannot be read.
    """
    return LoggedBatches(
        logged=_newest(checkpoint / "offsets"), committed=_newest(checkpoint / "commits")
    )


def batch_numbers(folder: Path) -> list[int]:
    """Return the numbers of the batches that a folder of a checkpoint has, sorted; blocking.

    Raises:
        OSError: It cannot be listed; one that is not there has none.
    """
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def query_of(checkpoint: Path) -> str:
    """Return what Spark has named a checkpoint's query, again in each one; empty without one.

    Raises:
        OffsetError: It cannot be read.
    """
    path = checkpoint / "metadata"
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise OffsetError(
            f"Spark's checkpoint {path} cannot be read: {error.strerror}.", path=str(path)
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise OffsetError(
            f"Spark's checkpoint {path} is damaged: {error!r}.",
            remedy=_again(checkpoint),
            path=str(path),
        ) from error


def batch_end(checkpoint: Path, batch_id: int) -> dict[str, object]:
    """Return the fields of the end of a batch, as the query's one source gave it; blocking.

    Raises:
        OffsetError: The checkpoint is damaged.
    """
    path = checkpoint / "offsets" / str(batch_id)
    try:
        # A version line, a line about the batch, then one line for each source.
        fields = json.loads(path.read_text(encoding="utf-8").splitlines()[2])
    except OSError as error:
        raise OffsetError(
            f"Spark's checkpoint {path} cannot be read: {error.strerror}.", path=str(path)
        ) from error
    except (ValueError, IndexError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise OffsetError(
            f"Spark's checkpoint {path} is cut off, because it was copied in part or the disk"
            " failed.",
            remedy=_again(checkpoint),
            path=str(path),
        )
    return fields


def make_logged_durable(checkpoint: Path, batch_id: int) -> None:
    """Have the end that Spark logged for a batch survive a power cut, which Spark leaves open.

    What is delivered must not outlive it: planned again, the batch would be another one. Blocking.

    Raises:
        StorageError: The folder cannot be written.
    """
    folder = checkpoint / "offsets"
    try:
        # Beside it lies what Hadoop checks it by.
        for path in (folder / str(batch_id), folder / f".{batch_id}.crc"):
            with suppress(FileNotFoundError):
                sync_file(path)
        with suppress(FileNotFoundError):
            sync_folder(folder)
    except OSError as error:
        raise StorageError(
            f"Spark's checkpoint {folder} cannot be written: {error.strerror or error}.",
            remedy="Look at the permissions of the state folder and at the free space.",
        ) from error


def _again(checkpoint: Path) -> str:
    return f"Start over: `rm -r {checkpoint}` {COMES_AGAIN}"


def _newest(folder: Path) -> int | None:
    try:
        return max(batch_numbers(folder), default=None)
    except OSError as error:
        raise OffsetError(
            f"Spark's checkpoint {folder} cannot be read: {error}.", path=str(folder)
        ) from error
