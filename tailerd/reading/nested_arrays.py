"""Parts of nested arrays, for building others of the same shape."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def null_mask(array: pa.Array) -> pa.Array | None:
    """Return which values are null; None if none is."""
    return array.is_null() if array.null_count else None


def zero_based(array: pa.Array) -> tuple[pa.Array, int, int]:
    """Return a list's or map's offsets, starting at 0, and the range of values they cover."""
    offsets = array.offsets
    start, end = offsets[0].as_py(), offsets[-1].as_py()
    return (pc.subtract(offsets, offsets[0]) if start else offsets), start, end


def own_offsets(offsets: pa.Array) -> pa.Array:
    """Return offsets at the start of their buffer, as required to build a list with nulls."""
    return pa.concat_arrays([offsets]) if offsets.offset == 0 else pc.add(offsets, 0)
