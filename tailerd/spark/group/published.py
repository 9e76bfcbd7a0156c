"""The last batch of a group of which every line has its place, noted beside its checkpoint."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tailerd.spark.checkpoints import (
    CHECKPOINT_FOLDER,
    batch_end,
    make_logged_durable,
    query_of,
)
from tailerd.spark.delivered_batch import DeliveredBatch
from tailerd.spark.durable import read_document, write_durably
from tailerd.spark.group.quarantine import read_holds

PUBLISHED_FILE = "published.json"


def published_batch(folder: Path) -> DeliveredBatch | None:
    """Return the last batch of the present checkpoint whose lines all have their place.

    Args:
        folder: Of the group; blocking.

    Returns:
        None where nothing is known of one.

    Raises:
        OffsetError: The file or the checkpoint is damaged.
        StorageError: It cannot be read.
    """
    path = folder / PUBLISHED_FILE
    document = read_document(path)
    if not document:
        return None
    found = DeliveredBatch.of(document, str(path))
    return found if found.checkpoint == query_of(folder / CHECKPOINT_FOLDER) else None


def write_published(folder: Path, batch_id: int, end: str) -> None:
    """Note that each line of a batch has its place; durable when this returns. Blocking.

    Raises:
        OffsetError: The checkpoint is damaged.
        StorageError: The folder cannot be written.
    """
    identity = query_of(folder / CHECKPOINT_FOLDER)
    delivered = DeliveredBatch(checkpoint=identity, batch_id=batch_id, end=end)
    write_durably(folder / PUBLISHED_FILE, delivered.fields())


def end_digest(folder: Path, batch_id: int) -> str:
    """Return what tells a batch from another one of its number; empty where it is not logged.

    It is the end that Spark has logged, which survives a power cut when this returns, and the
    tables that were held back from it: the same when the batch is repeated, and when it is planned
    again with the same rows.

    Args:
        folder: Of the group; blocking.
        batch_id: Spark's number of it.

    Raises:
        OffsetError: The checkpoint or the notes are damaged.
        StorageError: The notes cannot be read, or the checkpoint not be written.
    """
    checkpoint = folder / CHECKPOINT_FOLDER
    if not (checkpoint / "offsets" / str(batch_id)).exists():
        return ""
    make_logged_durable(checkpoint, batch_id)
    end = batch_end(checkpoint, batch_id)
    held = sorted(n for n, hold in read_holds(folder).items() if hold.number == end.get("number"))
    return hashlib.sha256(json.dumps([end, held], sort_keys=True).encode()).hexdigest()
