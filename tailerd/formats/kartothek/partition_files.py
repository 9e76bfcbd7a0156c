"""The payload of tasks: a file of a partition, or files to compare; small, picklable."""

from __future__ import annotations

from dataclasses import dataclass

from tailerd.changefeed.change_task import ChangeTask
from tailerd.errors import BugError
from tailerd.rows.groups import FilesToCompare

FORMAT = "kartothek"


@dataclass(frozen=True, slots=True)
class DatasetFile:
    """One data file.

    Attributes:
        url: The file.
        folder: The part of its path with column values; see `table_schema.path_pieces`.
    """

    url: str
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFile:
    """All rows of a file.

    Attributes:
        schema: The columns, as encoded by `table_schema.encode_schema`; shared by many tasks.
        share_index, share_count: Which row groups; see `reading.file_scan.FileShare`.
    """

    file: DatasetFile
    schema: bytes
    share_index: int = 0
    share_count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenPartitions:
    """The row difference of removed and added files.

    Attributes:
        schema: The columns of both sides.
        groups: Every file is in one.
        key: Key columns by which a delete and an insert are paired to an update; empty: no pairing.
    """

    removed: tuple[DatasetFile, ...]
    added: tuple[DatasetFile, ...]
    schema: bytes
    groups: tuple[FilesToCompare, ...]
    key: tuple[str, ...] = ()


def decode_payload(task: ChangeTask) -> PartitionFile | RewrittenPartitions:
    """Return the payload of a task that was planned here."""
    if not isinstance(task.payload, PartitionFile | RewrittenPartitions):
        raise BugError(f"A task of the format {task.format} was given to Kartothek's reader.")
    return task.payload
