"""A task's payload: files of one partition, and what they are compared with; small, picklable."""

from __future__ import annotations

from dataclasses import dataclass

from tailerd.changefeed.change_task import ChangeTask
from tailerd.errors import BugError

FORMAT = "kartothek"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFiles:
    """Rows of files: all of them, or those that the files of the other side do not have.

    Attributes:
        urls: The files whose rows come, in order.
        folder: What their paths say of columns; see `table_schema.path_pieces`.
        schema: The columns, as `table_schema.encode_schema` has them; shared by many tasks.
        others: Files of the same commit and folder on the other side; with them an equal row
            of both sides cancels. Empty: every row comes.
        share_index, share_count: Which row groups of the one file there is then.
    """

    urls: tuple[str, ...]
    folder: str
    schema: bytes
    others: tuple[str, ...] = ()
    share_index: int = 0
    share_count: int = 1


def partition_files(task: ChangeTask) -> PartitionFiles:
    """Return the files of a task that was planned here."""
    if not isinstance(task.payload, PartitionFiles):
        raise BugError(f"A task of the format {task.format} was given to Kartothek's reader.")
    return task.payload
