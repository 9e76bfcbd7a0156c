"""What the live files of a version add up to: their sizes by magnitude, their deletion vectors.

Protocol: PROTOCOL.md#version-checksum-file (histograms), #deletion-vectors
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from tailerd.delta.protocol.file_key import KeyArray

_POWERS = np.array([1 << bits for bits in range(63)], np.int64)
BINS = len(_POWERS) + 1
FOLD_AT_LEAST = 65_536


class SizeHistogram:
    """Number of files by size. Bin `n` counts sizes above 2**(n-1) and up to 2**n; bin 0 up to 1.

    Attributes:
        counts: By bin, `BINS` of them.
    """

    def __init__(self) -> None:
        self.counts = [0] * BINS

    def count(self, size_bytes: int, files: int = 1) -> None:
        """Count files of one size; fewer, where `files` is negative."""
        self.counts[(size_bytes - 1).bit_length() if size_bytes > 1 else 0] += files

    def count_all(self, sizes: npt.NDArray[np.int64], files: int = 1) -> None:
        """Count each of `sizes` as `count` does."""
        found = np.bincount(np.searchsorted(_POWERS, sizes), minlength=BINS).tolist()
        self.counts = [now + files * more for now, more in zip(self.counts, found, strict=True)]


class VectorTally:
    """The deletion vectors of live files, by the files' keys: about 17 bytes for each of them.

    Files without a vector cost nothing. Like the file index, sorted arrays hold the bulk and a
    dict what came since.

    Attributes:
        count: Live files with a vector.
        deleted_rows: Rows these vectors delete.
    """

    def __init__(self) -> None:
        self.count = 0
        self.deleted_rows = 0
        self._keys: KeyArray = np.empty(0, np.uint64)
        self._rows: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._is_live: npt.NDArray[np.bool_] = np.empty(0, np.bool_)
        self._recent: dict[int, int] = {}

    def add(self, keys: Iterable[int], rows: Iterable[int]) -> None:
        """Take vectors of files that are live now; keys that are known already must be forgotten.

        Args:
            keys: Keys of the files with their vectors.
            rows: How many rows each vector deletes.
        """
        for key, deleted in zip(keys, rows, strict=True):
            if (before := self._recent.get(key)) is not None:
                self.count -= 1
                self.deleted_rows -= before
            self._recent[key] = deleted
            self.count += 1
            self.deleted_rows += deleted
        if len(self._recent) > max(FOLD_AT_LEAST, len(self._keys) // 4):
            self._fold()

    def forget(self, keys: Sequence[int]) -> None:
        """Drop the vectors of files that are not live any more; files without one are passed."""
        below = []
        for key in keys:
            if (deleted := self._recent.pop(key, None)) is None:
                below.append(key)
            else:
                self.count -= 1
                self.deleted_rows -= deleted
        if below and len(self._keys):
            wanted = np.array(below, np.uint64)
            at = np.searchsorted(self._keys, wanted)
            at[at == len(self._keys)] = 0
            hits = np.unique(at[(self._keys[at] == wanted) & self._is_live[at]])
            self._is_live[hits] = False
            self.count -= len(hits)
            self.deleted_rows -= int(self._rows[hits].sum())

    def _fold(self) -> None:
        count, live = len(self._recent), self._is_live
        recent = np.fromiter(self._recent.keys(), np.uint64, count)
        rows = np.fromiter(self._recent.values(), np.int64, count)
        self._recent = {}
        keys = np.concatenate([self._keys[live], recent])
        order = np.argsort(keys)
        self._keys = keys[order]
        self._rows = np.concatenate([self._rows[live], rows])[order]
        self._is_live = np.ones(len(order), np.bool_)


def cardinality(value: int) -> int:
    """Return how many rows a vector deletes, brought into what the tally can hold."""
    return min(max(value, 0), 2**62)
