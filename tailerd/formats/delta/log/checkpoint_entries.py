"""Checks that rows of a checkpoint file are still those that were indexed, and have not expired.

The index refers to descriptions of files by row number. Another writer, such as deltalake, may
replace the checkpoint that was read by its own of the same version; then the numbers refer to other
rows.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.errors import LogCleanedUpError
from tailerd.formats.delta.protocol.checkpoint import list_vectors, logical_keys
from tailerd.formats.delta.protocol.file_key import KeyArray


def check_entries(add: pa.StructArray, keys: KeyArray, name: str, root_url: str) -> None:
    """Compare `add` entries, with their key columns, with the expected keys.

    Args:
        name: Of the checkpoint file.

    Raises:
        LogCleanedUpError: They differ.
    """
    paths = pc.struct_field(add, "path")
    is_same = not paths.null_count and np.array_equal(
        logical_keys(paths, list_vectors(add), root_url), keys
    )
    if not is_same:
        raise LogCleanedUpError(
            f"{name} was replaced by another writer's checkpoint since it was read first.",
            remedy="Run the command again; a daemon retries automatically.",
        )


def entries_at(
    add: pa.StructArray, positions: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> pa.Array:
    """Return the entries at ascending positions; without copying if they are consecutive."""
    first, count = int(positions[0]), len(positions)
    if int(positions[-1]) - first == count - 1:
        return add.slice(first, count)
    return add.take(pa.array(positions))


def expired_removes(
    removes: pa.StructArray, removed_after_ms: int
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which removes expired; one without a timestamp counts as of 1970."""
    if removes.type.get_field_index("deletionTimestamp") < 0:
        return np.full(len(removes), removed_after_ms >= 0)
    times = pc.fill_null(pc.struct_field(removes, "deletionTimestamp"), 0)
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = (
        times.to_numpy(zero_copy_only=False) <= removed_after_ms
    )
    return found


def remove_keys(removes: pa.StructArray, root_url: str) -> KeyArray:
    """Return the keys of `remove` actions; shape (n,)."""
    return logical_keys(pc.struct_field(removes, "path"), list_vectors(removes), root_url)
