"""Which checkpoint a query has: Spark counts its micro-batches from 0 in each new one."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from tailerd.errors import OffsetError, StorageError
from tailerd.private_files import make_private_folder
from tailerd.spark.group.durable import replace_durably

_NAME = "tailerd-kafka.json"
"""In the checkpoint's folder, so that it goes with it. Spark takes no notice of it."""


def has_identity(checkpoint: Path) -> bool:
    """Tell whether batches of a checkpoint may have been delivered exactly once."""
    return (checkpoint / _NAME).exists()


def checkpoint_identity(checkpoint: Path) -> str:
    """Return the identity of a checkpoint; a new one is given it, durably.

    Raises:
        OffsetError: It is damaged.
        StorageError: The folder cannot be written.
    """
    file = checkpoint / _NAME
    try:
        if not file.exists():
            make_private_folder(checkpoint)
            replace_durably(file, json.dumps({"checkpoint": uuid.uuid4().hex}))
        return str(json.loads(file.read_text(encoding="utf-8"))["checkpoint"])
    except OSError as error:
        raise StorageError(
            f"The checkpoint {checkpoint} cannot be written: {error.strerror or error}."
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise OffsetError(
            f"{file} is damaged: {error!r}.",
            hint=f"Remove the checkpoint {checkpoint}; delivery then starts anew.",
        ) from error
