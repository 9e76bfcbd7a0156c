"""Tables held back from a batch: rows that Spark has logged and that could not be read.

When rows of a table cannot be read on an executor (a vacuumed file, a value that fits no format),
Spark has logged the end of the batch already, and will repeat the batch until it is committed. Then
the whole batch fails, whatever the other tables did; sinks take back or replace what a failed batch
left, so no half commit stays. The daemon notes here, durably, that this table is not in the batch
of this number, and where its rows began; only then it lets Spark repeat the batch. Why nothing is
lost or doubled:

- A batch of this number gives no rows of the table from now on, however often it is repeated: the
  note is there before the repetition is planned, and is removed only when it no longer counts.
- The note counts as long as the table was not moved by a later batch (the entry in the offset says
  which batch moved it last). While it counts, the table stands at the note's `begin`, not at the
  entry's offset. The batch that moves it next says in its own end that it begins there.
- That batch is logged, by Spark, before a row of it is read. From then on the entry names it, and
  the note no longer counts, without anybody having to remove it at that moment.
- A sink that had the whole batch already does not read it again, so it cannot fail here.
- The note says which checkpoint the batch is of. That of one that is gone, or of a batch behind the
  end of one put back from a copy, is of a batch that never was: it is dropped before the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from tailerd.changefeed.offset import Offset
from tailerd.spark.checkpoints import CHECKPOINT_FOLDER, batch_end, logged_batches, query_of
from tailerd.spark.durable import read_document, write_durably
from tailerd.spark.group.group_offset import Entry, GroupOffset

HOLDS_FILE = "held.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """One table held back.

    Attributes:
        number: Of the batch it is not in.
        generation: Of the table.
        begin: Where its rows of that batch began: where the table stands.
        attempt: How often it was held back in a row.
        retry_at: When it may be planned again, seconds since the epoch.
    """

    number: int
    generation: int
    begin: Offset
    attempt: int = 0
    retry_at: float = 0.0

    def counts(self, entry: Entry) -> bool:
        """Tell whether no later batch has moved the table."""
        return (self.number, self.generation) == (entry.moved, entry.generation)


Holds = Mapping[str, Hold]


def read_holds(folder: Path) -> dict[str, Hold]:
    """Read the notes of a group that are of its present checkpoint; blocking.

    Raises:
        OffsetError: They are damaged.
        StorageError: They cannot be read.
    """
    document = cast("dict[str, dict[str, object]]", read_document(folder / HOLDS_FILE))
    if not document:
        return {}
    query = query_of(folder / CHECKPOINT_FOLDER)
    return {name: _hold(each) for name, each in document.items() if each["checkpoint"] == query}


def settle_holds(folder: Path) -> dict[str, Hold]:
    """Drop the notes of batches that the checkpoint does not have, before its query starts.

    Returns:
        Those that stay.

    Raises:
        OffsetError: They are damaged, or the checkpoint is.
        StorageError: They cannot be read or written.
    """
    holds = read_holds(folder)
    checkpoint = folder / CHECKPOINT_FOLDER
    newest = logged_batches(checkpoint).logged if holds else None
    if newest is None:
        kept: dict[str, Hold] = {}
    else:
        number = GroupOffset.of(batch_end(checkpoint, newest)).number
        kept = {name: hold for name, hold in holds.items() if hold.number <= number}
    if (folder / HOLDS_FILE).exists():
        write_holds(folder, kept)
    return kept


def write_holds(folder: Path, holds: Holds) -> None:
    """Replace the notes of a group, which are of its present checkpoint; blocking.

    Raises:
        OffsetError: The checkpoint cannot be read.
        StorageError: The folder cannot be written.
    """
    checkpoint = query_of(folder / CHECKPOINT_FOLDER)
    document = {
        name: {
            "checkpoint": checkpoint,
            "number": each.number,
            "generation": each.generation,
            "begin": each.begin.to_json(),
            "attempt": each.attempt,
            "retry_at": each.retry_at,
        }
        for name, each in holds.items()
    }
    write_durably(folder / HOLDS_FILE, document)


def held_back(
    holds: Holds, batch: GroupOffset, name: str, *, attempt: int, retry_at: float
) -> dict[str, Hold]:
    """Return the notes with which a batch may be repeated without a table that it moves."""
    counting = {
        other: hold
        for other, hold in holds.items()
        if other in batch.tables and hold.counts(batch.tables[other])
    }
    new = Hold(
        number=batch.number,
        generation=batch.tables[name].generation,
        begin=batch.begins[name],
        attempt=attempt,
        retry_at=retry_at,
    )
    return {**counting, name: new}


def stands_at(entry: Entry, hold: Hold | None) -> Offset:
    """Return the first thing of a table that is not delivered, when all batches are committed."""
    return hold.begin if hold is not None and hold.counts(entry) else entry.offset


def _hold(fields: dict[str, object]) -> Hold:
    return Hold(
        number=cast(int, fields["number"]),
        generation=cast(int, fields["generation"]),
        begin=Offset.from_json(str(fields["begin"])),
        attempt=cast(int, fields["attempt"]),
        retry_at=cast(float, fields["retry_at"]),
    )
