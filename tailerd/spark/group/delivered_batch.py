"""The batch that a sink has for certain, so that nothing of it is read or written again.

Spark repeats a batch that it has not committed itself, and by then its rows may be gone. Kafka
keeps this exactly once, in the transaction of the batch; beside files of lines it is a file in the
group's folder, written when each line of the batch has its place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tailerd.errors import OffsetError
from tailerd.spark.checkpoints import query_of
from tailerd.spark.group.durable import read_document, write_durably
from tailerd.spark.group.groups_folder import CHECKPOINT_FOLDER

PUBLISHED_FILE = "published.json"

_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredBatch:
    """What is kept of the last batch.

    Attributes:
        checkpoint: Identity of the query's checkpoint: numbers of another one say nothing.
        batch_id: Its number.
    """

    checkpoint: str
    batch_id: int

    def fields(self) -> dict[str, object]:
        """Return the stable form."""
        return {"format": _FORMAT, "checkpoint": self.checkpoint, "batch_id": self.batch_id}

    def to_json(self) -> str:
        """Return it as the value of a record."""
        return json.dumps(self.fields())

    @classmethod
    def from_json(cls, text: bytes, place: str) -> DeliveredBatch:
        """Read a record's value.

        Raises:
            OffsetError: It is damaged, or a newer release wrote it.
        """
        try:
            fields = json.loads(text)
        except ValueError as error:
            raise OffsetError(f"{place} is damaged: {error!r}.") from error
        return cls.of(fields, place)

    @classmethod
    def of(cls, fields: Mapping[str, object], place: str) -> DeliveredBatch:
        """Read what `fields` gave; errors as of `from_json`."""
        try:
            if fields["format"] != _FORMAT:
                raise OffsetError(
                    f"{place} has format {fields['format']!r}, because a newer tailerd wrote it.",
                    hint="Run the newer release.",
                )
            return cls(checkpoint=str(fields["checkpoint"]), batch_id=int(str(fields["batch_id"])))
        except (ValueError, KeyError, TypeError) as error:
            raise OffsetError(f"{place} is damaged: {error!r}.") from error


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


def write_published(folder: Path, batch_id: int) -> None:
    """Note that each line of a batch has its place; durable when this returns. Blocking.

    Raises:
        OffsetError: The checkpoint is damaged.
        StorageError: The folder cannot be written.
    """
    delivered = DeliveredBatch(checkpoint=query_of(folder / CHECKPOINT_FOLDER), batch_id=batch_id)
    write_durably(folder / PUBLISHED_FILE, delivered.fields())
