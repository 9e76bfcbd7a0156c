"""What brokers know a group as, and which checkpoint it has.

The name of a group is in its transactional id and in the key of its delivered batches. Names of
groups are alike in every folder of state: they tell brokers and delivery. Two daemons on one Kafka
would shut out each other and overwrite each other's records, so each group is given a name of its
own, kept beside its checkpoint; whoever runs a copy of the folder has the same one and is shut out.

Spark counts the micro-batches of each new checkpoint from 0, so each has an identity too.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from tailerd.errors import OffsetError, StorageError
from tailerd.private_files import make_private_folder
from tailerd.spark.durable import read_document, replace_durably, write_durably

_WRITER = "writer.json"
_CHECKPOINT = "tailerd-kafka.json"
"""In the checkpoint's folder, so that it goes with it. Spark takes no notice of it."""


def writer_name(folder: Path, group: str) -> str:
    """Return the name of a group to brokers, the same in every run; blocking.

    Args:
        folder: Of the group.
        group: Its name.

    Raises:
        OffsetError: The file with the name is damaged.
        StorageError: It cannot be read or written.
    """
    path = folder / _WRITER
    document = read_document(path)
    if not document:
        document = {"name": f"{group}-{uuid.uuid4().hex[:12]}"}
        write_durably(path, document)
    found = document.get("name")
    if not isinstance(found, str) or not found:
        raise OffsetError(
            f"{path} is damaged: it has no name.", remedy="Restore the state folder from a copy."
        )
    return found


def has_identity(checkpoint: Path) -> bool:
    """Tell whether batches of a checkpoint may have been delivered exactly once."""
    return (checkpoint / _CHECKPOINT).exists()


def checkpoint_identity(checkpoint: Path) -> str:
    """Return the identity of a checkpoint; a new one is given it, durably.

    Raises:
        OffsetError: It is damaged.
        StorageError: The folder cannot be written.
    """
    file = checkpoint / _CHECKPOINT
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
            remedy=f"Remove the checkpoint {checkpoint}; delivery then starts over.",
        ) from error
