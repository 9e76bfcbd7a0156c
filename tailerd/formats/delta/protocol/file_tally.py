"""Totals of the live files of a version: histograms of sizes, and deletion vectors.

Protocol: PROTOCOL.md#version-checksum-file (histograms), #deletion-vectors
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from tailerd.formats.delta.protocol.file_key import KeyArray

_POWERS = np.array([1 << bits for bits in range(63)], np.int64)
BINS = len(_POWERS) + 1
FOLD_AT_LEAST = 65_536


_MIB = 1 << 20
SIZE_BOUNDARIES = (
    0,
    *(8192 << power for power in range(10)),
    *(_MIB * size for size in range(8, 41, 4)),
    *(_MIB * size for size in range(48, 121, 8)),
    *(_MIB * size for size in range(124, 145, 4)),
    *(_MIB * size for size in range(160, 577, 16)),
    *(_MIB * size for size in range(640, 1409, 64)),
    *(_MIB * size for size in range(1536, 2049, 128)),
    *(_MIB * size for size in range(2304, 4097, 256)),
    *(_MIB * 4096 << power for power in range(1, 7)),
)
"""Lower bounds of the bins of a version checksum, the same for every writer."""
_BOUNDARIES = np.array(SIZE_BOUNDARIES, np.int64)
DELETED_BOUNDARIES = (1, 10, 100, 1000, 10_000, 100_000, 1_000_000, 10_000_000, 2**31 - 1)
"""Numbers of deleted rows at which the second and later bins start."""


class SizeBins:
    """Files and bytes by size, in the bins of a version checksum.

    Attributes:
        files, bytes: By bin; bin `n` starts at `SIZE_BOUNDARIES[n]`, inclusive.
    """

    def __init__(self, sizes: npt.NDArray[np.int64]) -> None:
        """Count files of these sizes."""
        self.files = [0] * len(SIZE_BOUNDARIES)
        self.bytes = [0] * len(SIZE_BOUNDARIES)
        self.count_all(sizes)

    def count(self, size_bytes: int, files: int) -> None:
        """Add files of one size; a negative `files` subtracts."""
        at = max(0, bisect_right(SIZE_BOUNDARIES, size_bytes) - 1)
        self.files[at] += files
        self.bytes[at] += files * size_bytes

    def count_all(self, sizes: npt.NDArray[np.int64], files: int = 1) -> None:
        """Count each of `sizes` as `count` does."""
        positions = np.maximum(np.searchsorted(_BOUNDARIES, sizes, side="right") - 1, 0)
        sums = np.zeros(len(SIZE_BOUNDARIES), np.int64)
        np.add.at(sums, positions, sizes)
        for at, count in enumerate(np.bincount(positions, minlength=len(sums)).tolist()):
            self.files[at] += files * count
            self.bytes[at] += files * int(sums[at])


class SizeHistogram:
    """Number of files by size. Bin `n` counts sizes above 2**(n-1) and up to 2**n; bin 0 up to 1.

    Attributes:
        counts: By bin, `BINS` of them.
        bins: The same in the bins of a version checksum; None until first used.
    """

    def __init__(self) -> None:
        self.counts = [0] * BINS
        self.bins: SizeBins | None = None

    def count(self, size_bytes: int, files: int = 1) -> None:
        """Add files of one size; a negative `files` subtracts."""
        self.counts[(size_bytes - 1).bit_length() if size_bytes > 1 else 0] += files
        if self.bins is not None:
            self.bins.count(size_bytes, files)

    def count_all(self, sizes: npt.NDArray[np.int64], files: int = 1) -> None:
        """Count each of `sizes` as `count` does."""
        found = np.bincount(np.searchsorted(_POWERS, sizes), minlength=BINS).tolist()
        self.counts = [now + files * more for now, more in zip(self.counts, found, strict=True)]
        if self.bins is not None:
            self.bins.count_all(sizes, files)


class VectorTally:
    """The deletion vectors of live files, by the files' keys: about 41 bytes each.

    Files without a vector need no memory. As in the file index, sorted arrays hold most of them and
    a dict recent ones. The protocol allows one vector for each path; of several, one is found.

    Attributes:
        count: Live files with a vector.
        deleted_rows: Rows these vectors delete.
        counts: Vectors by the number of rows they delete; bin 0 for none, the others start at
            `DELETED_BOUNDARIES`.
    """

    def __init__(self) -> None:
        self.count = 0
        self.deleted_rows = 0
        self.counts = [0] * (len(DELETED_BOUNDARIES) + 1)
        self._keys: KeyArray = np.empty(0, np.uint64)
        self._rows: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._paths: KeyArray = np.empty(0, np.uint64)
        self._is_live: npt.NDArray[np.bool_] = np.empty(0, np.bool_)
        self._by_path: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._sorted_paths: KeyArray = np.empty(0, np.uint64)
        self._recent: dict[int, tuple[int, int]] = {}
        self._recent_paths: dict[int, int] = {}

    def add(self, keys: Iterable[int], rows: Iterable[int], paths: Iterable[int]) -> None:
        """Add vectors of live files; call `forget` first for keys that are already known.

        Args:
            keys: Keys of the files with their vectors.
            rows: Number of rows that each vector deletes.
            paths: Keys of the files' paths alone.
        """
        for key, deleted, path in zip(keys, rows, paths, strict=True):
            if (before := self._recent.get(key)) is not None:
                self._count(before[0], -1)
            self._recent[key] = deleted, path
            self._recent_paths[path] = key
            self._count(deleted, 1)
        if len(self._recent) > max(FOLD_AT_LEAST, len(self._keys) // 4):
            self._fold()

    def forget(self, keys: Sequence[int]) -> None:
        """Drop the vectors of files that are no longer live; ignores files without one."""
        below = []
        for key in keys:
            if (known := self._recent.pop(key, None)) is None:
                below.append(key)
            else:
                self._count(known[0], -1)
                if self._recent_paths.get(known[1]) == key:
                    del self._recent_paths[known[1]]
        if below and len(self._keys):
            requested = np.array(below, np.uint64)
            at = np.searchsorted(self._keys, requested)
            at[at == len(self._keys)] = 0
            hits = np.unique(at[(self._keys[at] == requested) & self._is_live[at]])
            self._is_live[hits] = False
            for deleted in self._rows[hits].tolist():
                self._count(deleted, -1)

    def live_paths(self) -> KeyArray:
        """Return the path of each live vector's file; a path with two vectors occurs twice."""
        recent = np.fromiter((path for _, path in self._recent.values()), np.uint64)
        return np.concatenate([self._paths[self._is_live], recent])

    def keys_on(self, paths: Sequence[int]) -> list[int | None]:
        """Return the key of the live file with a vector on each path; None if there is none."""
        found = [self._recent_paths.get(path) for path in paths]
        if len(self._keys):
            requested = np.array(paths, np.uint64)
            at = np.searchsorted(self._sorted_paths, requested)
            at[at == len(self._keys)] = 0
            rows = self._by_path[at]
            hits = (self._sorted_paths[at] == requested) & self._is_live[rows]
            for index in np.flatnonzero(hits).tolist():
                found[index] = int(self._keys[rows[index]])
        return found

    def _count(self, deleted_rows: int, vectors: int) -> None:
        self.count += vectors
        self.deleted_rows += vectors * deleted_rows
        self.counts[bisect_right(DELETED_BOUNDARIES, deleted_rows)] += vectors

    def _fold(self) -> None:
        count, live = len(self._recent), self._is_live
        recent = np.fromiter(self._recent.keys(), np.uint64, count)
        rows = np.fromiter((rows for rows, _ in self._recent.values()), np.int64, count)
        paths = self.live_paths()
        self._recent, self._recent_paths = {}, {}
        keys = np.concatenate([self._keys[live], recent])
        order = np.argsort(keys)
        self._keys = keys[order]
        self._rows = np.concatenate([self._rows[live], rows])[order]
        self._paths = paths[order]
        self._is_live = np.ones(len(order), np.bool_)
        self._by_path = np.argsort(self._paths)
        self._sorted_paths = self._paths[self._by_path]


def cardinality(value: int) -> int:
    """Return the number of rows a vector deletes, clamped to the range of the tally."""
    return min(max(value, 0), 2**62)
