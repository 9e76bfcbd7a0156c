"""Reads Spark's own checkpoint folders as files, without a session."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tailerd.changefeed.offset import Offset
from tailerd.config import Config
from tailerd.errors import OffsetError
from tailerd.pipeline_names import file_name


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedBatches:
    """The newest batches of a checkpoint; None if there is none.

    Attributes:
        logged: The newest batch whose end is logged.
        committed: The newest batch that is done. Spark repeats `logged` if it is not this one.
    """

    logged: int | None
    committed: int | None


def logged_batches(checkpoint: Path) -> LoggedBatches:
    """Return the newest batches of a checkpoint; blocking.

    Raises:
        OffsetError: It cannot be read.
    """
    return LoggedBatches(
        logged=_newest(checkpoint / "offsets"), committed=_newest(checkpoint / "commits")
    )


def batch_numbers(folder: Path) -> list[int]:
    """Return the numbers of the batches that a folder of a checkpoint has, sorted; blocking.

    Raises:
        OSError: It cannot be listed; a missing folder has none.
    """
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def batch_end(checkpoint: Path, batch_id: int) -> dict[str, object]:
    """Return the fields of the end of a batch, as the query's only source returned it; blocking.

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


def _again(checkpoint: Path) -> str:
    return (
        f"Start over: `rm -r {checkpoint}` and empty the sink; then the table is delivered again"
        " from the configured start."
    )


def _newest(folder: Path) -> int | None:
    try:
        return max(batch_numbers(folder), default=None)
    except OSError as error:
        raise OffsetError(
            f"Spark's checkpoint {folder} cannot be read: {error}.", path=str(folder)
        ) from error


def stream_checkpoint(config: Config, name: str) -> Path:
    """Return the folder of a pipeline's checkpoint."""
    return Path(config.state).absolute() / "spark" / file_name(name)


def delivered_until(checkpoint: Path) -> Offset | None:
    """Return the end of the newest committed batch of a query; None if there is none.

    Raises:
        OffsetError: The checkpoint cannot be read.
    """
    done = logged_batches(checkpoint).committed
    return None if done is None else Offset.from_json(json.dumps(batch_end(checkpoint, done)))
