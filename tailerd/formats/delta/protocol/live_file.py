"""One live file of a version, described.

Protocol: PROTOCOL.md#add-file-and-remove-file
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tailerd.formats.delta.protocol.actions import (
    DeletionVectorDescriptor,
    FileAction,
    Line,
    decode_partition_values,
    read_num_records,
)
from tailerd.formats.delta.protocol.file_key import KeyArray, file_key


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFile:
    """A live file as described by the log.

    Attributes:
        key: Identity within the table.
        path: As in the log.
        partition_values: (physical name, serialized value) pairs.
        num_records: Physical rows; None if statistics are missing or were not read.
    """

    key: int
    path: str
    size_bytes: int
    partition_values: tuple[tuple[str, str | None], ...]
    modification_time_ms: int
    num_records: int | None
    deletion_vector: DeletionVectorDescriptor | None

    @property
    def deleted_rows(self) -> int:
        """Rows its deletion vector removes."""
        return 0 if self.deletion_vector is None else self.deletion_vector.cardinality

    @classmethod
    def from_action(cls, key: int, action: FileAction) -> LiveFile:
        """Return the file an `add` action describes."""
        return cls(
            key=key,
            path=action.path,
            size_bytes=action.size or 0,
            partition_values=decode_partition_values(action),
            modification_time_ms=action.modification_time,
            num_records=read_num_records(action),
            deletion_vector=action.deletion_vector,
        )


def files_added(lines: list[Line], keys: KeyArray, root_url: str) -> Iterator[LiveFile]:
    """Yield the files of `add` actions whose key is among `keys` (sorted ascending)."""
    for line in lines:
        if line.add is None:
            continue
        vector = line.add.deletion_vector
        key = file_key(line.add.path, None if vector is None else vector.unique_id, root_url)
        at = int(np.searchsorted(keys, np.uint64(key)))
        if at < len(keys) and int(keys[at]) == key:
            yield LiveFile.from_action(key, line.add)
