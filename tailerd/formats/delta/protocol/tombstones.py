"""The removes of a state: the newest of each logical file that is not live, until it expires.

Protocol: PROTOCOL.md#add-file-and-remove-file (tombstones), #action-reconciliation
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tailerd.formats.delta.protocol.file_index import FileIndex
from tailerd.formats.delta.protocol.file_key import KeyArray

Mask = npt.NDArray[np.bool_]


class Tombstones:
    """Removes of the commits after a checkpoint, by key: 16 bytes each.

    Add every commit in ascending order, call `close`, then query.
    """

    def __init__(self) -> None:
        self._keys: list[KeyArray] = []
        self._versions: list[npt.NDArray[np.int64]] = []
        self._ours: KeyArray = np.empty(0, np.uint64)
        self._newest: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._is_taken: Mask = np.empty(0, np.bool_)

    def take(self, version: int, keys: Sequence[int]) -> None:
        """Add the removes of one commit."""
        if keys:
            self._keys.append(np.array(keys, np.uint64))
            self._versions.append(np.full(len(keys), version, np.int64))

    def close(self, files: FileIndex) -> None:
        """Determine the valid removes at the version of `files`: those of files not live there."""
        keys = np.concatenate([np.empty(0, np.uint64), *self._keys])
        versions = np.concatenate([np.empty(0, np.int64), *self._versions])
        self._keys, self._versions = [], []
        # Stable: the last of several removes of one file is kept.
        order = np.argsort(keys, kind="stable")
        keys, versions = keys[order], versions[order]
        is_newest = np.append(keys[1:] != keys[:-1], True)[: len(keys)]
        keys, versions = keys[is_newest], versions[is_newest]
        dead = ~files.are_live(keys)
        self._ours, self._newest = keys[dead], versions[dead]
        self._is_taken = np.zeros(len(self._ours), np.bool_)

    @property
    def count(self) -> int:
        """Number of valid removes, including expired ones."""
        return len(self._ours)

    def take_counting(self, version: int, keys: KeyArray) -> Mask:
        """Return which of the removes of the commit `version` are valid; each is returned once."""
        at, found = self._find(keys)
        found[found] = (self._newest[at[found]] == version) & ~self._is_taken[at[found]]
        self._is_taken[at[found]] = True
        return found

    def contain(self, keys: KeyArray) -> Mask:
        """Return for which keys a commit has a newer remove than the checkpoint."""
        return self._find(keys)[1]

    def _find(self, keys: KeyArray) -> tuple[npt.NDArray[np.int64], Mask]:
        at = np.searchsorted(self._ours, keys)
        if not len(self._ours):
            return at, np.zeros(len(keys), np.bool_)
        at[at == len(self._ours)] = 0
        return at, self._ours[at] == keys
