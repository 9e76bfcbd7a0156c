"""Which `remove` actions of a checkpoint still count: by the time of the deletion, and by key."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.formats.delta.protocol.checkpoint import logical_keys, vectors_of
from tailerd.formats.delta.protocol.file_key import KeyArray


def expired_removes(
    removes: pa.StructArray, removed_after_ms: int
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Tell which removes expired; one that does not say when it happened counts as of 1970."""
    if removes.type.get_field_index("deletionTimestamp") < 0:
        return np.full(len(removes), removed_after_ms >= 0)
    times = pc.fill_null(pc.struct_field(removes, "deletionTimestamp"), 0)
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = (
        times.to_numpy(zero_copy_only=False) <= removed_after_ms
    )
    return found


def remove_keys(removes: pa.StructArray, root_url: str) -> KeyArray:
    """Return the keys of `remove` actions; shape (n,)."""
    return logical_keys(pc.struct_field(removes, "path"), vectors_of(removes), root_url)
