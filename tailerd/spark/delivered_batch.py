"""The batch that a sink has for certain, so that nothing of it is read or written again.

Spark repeats a batch that it has not committed itself, and by then its rows may be gone. Kafka
keeps this exactly once, in the transaction of the batch; beside files of lines it is a file in the
group's folder, written when each line of the batch has its place.

A checkpoint that is put back from a copy gives other rows under numbers that were delivered. So the
end of the batch is kept too, and a batch that is another one is refused instead of being skipped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tailerd.errors import OffsetError
from tailerd.spark.checkpoints import COMES_AGAIN

_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredBatch:
    """What is kept of the last batch.

    Attributes:
        checkpoint: Identity of the query's checkpoint: numbers of another one say nothing.
        batch_id: Its number.
        end: What `end_digest` said of it.
    """

    checkpoint: str
    batch_id: int
    end: str

    def covers(self, batch_id: int, end: str, checkpoint: Path) -> bool:
        """Tell whether a batch that Spark gives is this one, so that nothing is to be done.

        Args:
            batch_id: Its number.
            end: What `end_digest` says of it.
            checkpoint: To tell of.

        Raises:
            OffsetError: Its number was delivered, and it is another batch.
        """
        if batch_id > self.batch_id:
            return False
        # Spark repeats the newest batch only.
        if batch_id == self.batch_id and self.end == end:
            return True
        raise OffsetError(
            f"The sink has batches up to {self.batch_id} of the checkpoint {checkpoint}, which now"
            f" gives another batch {batch_id}: the folder was put back from a copy, or lost its end"
            " in a power cut, and rows would be skipped.",
            remedy=f"Start over: `rm -r {checkpoint}` {COMES_AGAIN}",
        )

    def fields(self) -> dict[str, object]:
        """Return the stable form."""
        return {
            "format": _FORMAT,
            "checkpoint": self.checkpoint,
            "batch_id": self.batch_id,
            "end": self.end,
        }

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
        except (ValueError, RecursionError) as error:
            raise OffsetError(f"{place} is damaged: {error!r}.") from error
        return cls.of(fields, place)

    @classmethod
    def of(cls, fields: Mapping[str, object], place: str) -> DeliveredBatch:
        """Read what `fields` gave; errors as of `from_json`."""
        try:
            if fields["format"] != _FORMAT:
                raise OffsetError(
                    f"{place} has format {fields['format']!r}, because a newer tailerd wrote it.",
                    remedy="Run the newer release.",
                )
            return cls(
                checkpoint=str(fields["checkpoint"]),
                batch_id=int(str(fields["batch_id"])),
                end=str(fields["end"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise OffsetError(f"{place} is damaged: {error!r}.") from error
