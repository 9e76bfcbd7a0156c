"""Sorts rows so that those with equal hashes are adjacent."""

from __future__ import annotations

import numpy as np

from tailerd.rows.hash_kernels import U64, Bools, Rows


def prefix_order(first: U64) -> tuple[Rows, Bools]:
    """Return an order of rows in which those with the same hash prefix are adjacent.

    Args:
        first: First half of the hashes, shape (n,).

    Returns:
        Numbers of the rows, ascending among those with the same prefix; and for each in that order
        whether it has the prefix of the one before. The prefix has the bits that a row's number
        leaves of 64: few rows are equal only in those.
    """
    # The first bits of the hash and the row's number in one integer: sorting is several times
    # faster than `argsort`.
    count = len(first)
    mask = np.uint64((1 << max(count - 1, 1).bit_length()) - 1)
    keys = first & ~mask
    keys |= np.arange(count, dtype=np.uint64)
    keys.sort()
    is_like = np.zeros(count, np.bool_)
    np.less_equal(keys[1:] ^ keys[:-1], mask, out=is_like[1:])
    keys &= mask
    return keys.view(np.int64), is_like


def equal_runs(first: U64, second: U64) -> tuple[Rows, Bools]:
    """Return an order of rows in which equal ones are adjacent.

    Returns:
        Numbers of the rows, ascending among equal ones; and for each in that order whether it is
        equal to the one before.
    """
    order, is_like = prefix_order(first)
    return resolve_runs(order, is_like, first, second)


def resolve_runs(order: Rows, is_like: Bools, first: U64, second: U64) -> tuple[Rows, Bools]:
    """Return the result of `equal_runs` for rows in their `prefix_order`."""
    is_same = _is_same(order, first, second)
    if (is_like & ~is_same).any():
        # Different rows with the same prefix: sort by all bits, then by number.
        order = order[np.lexsort((order, second[order], first[order]))]
        is_same = _is_same(order, first, second)
    return order, is_same


def _is_same(order: Rows, first: U64, second: U64) -> Bools:
    is_same = np.zeros(len(order), np.bool_)
    for half in (first, second):
        in_order = half[order]
        same = in_order[1:] == in_order[:-1]
        if half is first:
            is_same[1:] = same
        else:
            is_same[1:] &= same
    return is_same
