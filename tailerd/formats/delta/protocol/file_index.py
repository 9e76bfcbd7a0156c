"""The live files of one version: their keys and sizes, about 21 bytes each.

Paths and statistics remain in the log; the index records where to find them again. Sorted arrays
hold most files, a dict recent ones; the dict is merged into the arrays when it has grown, so that
the cost of a commit is proportional to its size.

Protocol: PROTOCOL.md#action-reconciliation
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from tailerd.errors import BugError
from tailerd.formats.delta.protocol.commit_file import Commit
from tailerd.formats.delta.protocol.file_key import KeyArray
from tailerd.formats.delta.protocol.file_tally import SizeBins, SizeHistogram, VectorTally

Sizes = npt.NDArray[np.int64]
Origins = npt.NDArray[np.uint32]

VERSION_FLAG = 1 << 31
"""An origin with this bit is an age in commits since the checkpoint; without it, a row there."""
FOLD_AT_LEAST = 65_536
FEW = 64
"""Up to this number a loop is faster than arrays."""
BULK_COMMIT = 16_384
"""Commits with more file actions than this are applied directly to the arrays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFiles:
    """`add` entries of one range of checkpoint rows.

    Attributes:
        keys: Logical file keys, shape (n,).
        sizes: Bytes, shape (n,).
        rows: Row number of each within the whole checkpoint, shape (n,), ascending.
        vector_keys, vector_rows, vector_paths: Keys of those with a deletion vector, the number of
            rows it deletes, and the key of the path alone; parallel.
    """

    keys: KeyArray
    sizes: Sizes
    rows: Origins
    vector_keys: tuple[int, ...] = ()
    vector_rows: tuple[int, ...] = ()
    vector_paths: tuple[int, ...] = ()


class FileIndex:
    """Live files by key. Mutable: owned by one snapshot, which passes it on when it advances.

    Args:
        base_version: Version of the underlying checkpoint; -1 without one. Ages count from it.

    Attributes:
        num_files, size_bytes: Of all live files.
        sizes: The same by magnitude.
        vectors: Their deletion vectors.
        repeated: Keys of files that one commit added more than once, and its version; some may be
            gone.
    """

    def __init__(self, base_version: int = -1) -> None:
        self.base_version = base_version
        self._keys: KeyArray = np.empty(0, np.uint64)
        self._sizes: Sizes = np.empty(0, np.int64)
        self._origins: Origins = np.empty(0, np.uint32)
        self._is_live: npt.NDArray[np.bool_] = np.empty(0, np.bool_)
        self._recent: dict[int, tuple[int, int]] = {}
        self.num_files = 0
        self.size_bytes = 0
        self.sizes = SizeHistogram()
        self.vectors = VectorTally()
        self.repeated: dict[int, int] = {}

    @classmethod
    def from_checkpoint(cls, version: int, parts: Iterable[CheckpointFiles]) -> FileIndex:
        """Build the index of a checkpoint; of entries with the same key the last is used."""
        index = cls(version)
        stretches = list(parts)
        if stretches:
            rows = np.concatenate([part.rows for part in stretches])
            sizes = np.concatenate([part.sizes for part in stretches])
            # Popped when passed on, so that no other reference keeps them alive while sorting.
            keys = [np.concatenate([part.keys for part in stretches])]
            index.vectors.add(
                chain.from_iterable(part.vector_keys for part in stretches),
                chain.from_iterable(part.vector_rows for part in stretches),
                chain.from_iterable(part.vector_paths for part in stretches),
            )
            stretches.clear()
            index._set_arrays(keys.pop(), sizes, rows)
        return index

    def apply(self, commit: Commit) -> None:
        """Reconcile one commit: its removes, then its adds."""
        if commit.has_vectors:
            # A key includes the vector: a file with one is removed or replaced by the same key.
            self.vectors.forget(commit.removed_keys)
            self.vectors.forget(commit.vector_keys)
            self.vectors.add(commit.vector_keys, commit.vector_rows, commit.vector_paths)
        if self.repeated:
            for key in self.repeated.keys() & {*commit.added_keys, *commit.removed_keys}:
                del self.repeated[key]
        if len(commit.added_keys) + len(commit.removed_keys) > BULK_COMMIT:
            self._apply_bulk(commit)
            return
        if commit.removed_keys:
            self._forget(commit.removed_keys)
        if commit.added_keys:
            self._forget(commit.added_keys)
            origin = self._find_origin(commit.version)
            recent = self._recent
            for key, size in zip(commit.added_keys, commit.added_sizes, strict=True):
                if (before := recent.get(key)) is not None:
                    self.size_bytes -= before[0]
                    self.num_files -= 1
                    self.sizes.count(before[0], -1)
                    self.repeated[key] = commit.version
                recent[key] = (size, origin)
                self.sizes.count(size)
                self.size_bytes += size
            self.num_files += len(commit.added_keys)
        if len(self._recent) > max(FOLD_AT_LEAST, len(self._keys) // 4):
            self._fold()

    def _find_origin(self, version: int) -> int:
        return VERSION_FLAG | (version - self.base_version)

    def _forget(self, keys: Iterable[int]) -> None:
        recent, base = self._recent, []
        for key in keys:
            if (entry := recent.pop(key, None)) is not None:
                self.num_files -= 1
                self.size_bytes -= entry[0]
                self.sizes.count(entry[0], -1)
            else:
                base.append(key)
        if base and len(self._keys):
            self._forget_base(np.array(base, np.uint64))

    def _forget_base(self, keys: KeyArray) -> None:
        at = np.searchsorted(self._keys, keys)
        at[at == len(self._keys)] = 0
        hits = np.unique(at[(self._keys[at] == keys) & self._is_live[at]])
        self._is_live[hits] = False
        sizes = self._sizes[hits]
        self.num_files -= len(hits)
        self.size_bytes -= int(sizes.sum())
        if len(hits) > FEW:
            self.sizes.count_all(sizes, -1)
        else:
            for size in sizes.tolist():
                self.sizes.count(size, -1)

    def _apply_bulk(self, commit: Commit) -> None:
        self._fold()
        added = np.array(commit.added_keys, np.uint64)
        ordered = np.sort(added)
        twice = ordered[1:][ordered[1:] == ordered[:-1]].tolist()
        self.repeated.update(dict.fromkeys(twice, commit.version))
        gone = np.concatenate([np.array(commit.removed_keys, np.uint64), added])
        if len(self._keys):
            self._forget_base(gone)
        live = self._is_live
        origin = np.full(len(added), self._find_origin(commit.version), np.uint32)
        self._set_arrays(
            np.concatenate([self._keys[live], added]),
            np.concatenate([self._sizes[live], np.array(commit.added_sizes, np.int64)]),
            np.concatenate([self._origins[live], origin]),
        )

    def _fold(self) -> None:
        if not self._recent:
            return
        recent, self._recent = self._recent, {}
        count, live = len(recent), self._is_live
        keys = np.fromiter(recent.keys(), np.uint64, count)
        sizes = np.fromiter((entry[0] for entry in recent.values()), np.int64, count)
        origins = np.fromiter((entry[1] for entry in recent.values()), np.uint32, count)
        # Recent files are not live in the arrays, so no key occurs twice and a merge is enough.
        order = np.argsort(keys)
        base = self._keys[live]
        positions = np.searchsorted(base, keys[order])
        self._keys = np.insert(base, positions, keys[order])
        self._sizes = np.insert(self._sizes[live], positions, sizes[order])
        self._origins = np.insert(self._origins[live], positions, origins[order])
        self._is_live = np.ones(len(self._keys), np.bool_)

    def _set_arrays(self, keys: KeyArray, sizes: Sizes, origins: Origins) -> None:
        """Set the arrays from entries in reconciliation order: later ones replace earlier ones."""
        # An unstable sort is several times faster, and keys that occur twice are rare.
        order = np.argsort(keys)
        ordered = keys[order]
        is_repeated = ordered[:-1] == ordered[1:]
        if is_repeated.any():
            order = np.argsort(keys, kind="stable")
            order = order[np.append(~is_repeated, True)]
            ordered = keys[order]
        del keys
        self._keys = ordered
        self._sizes = sizes[order]
        self._origins = origins[order]
        live = np.ones(len(ordered), np.bool_)
        self._is_live = live
        self.num_files = len(live)
        self.size_bytes = int(self._sizes.sum())
        had_bins = self.sizes.bins is not None
        self.sizes = SizeHistogram()
        self.sizes.count_all(self._sizes)
        if had_bins:
            self.sizes.bins = SizeBins(self._sizes)

    def size_bins(self) -> SizeBins:
        """Return files and bytes by size; maintained by every commit after the first call."""
        if self.sizes.bins is None:
            self.sizes.bins = SizeBins(self.sorted_files()[1])
        return self.sizes.bins

    def sorted_files(self) -> tuple[KeyArray, Sizes]:
        """Return keys, ascending, and sizes of all live files; read-only."""
        self._fold()
        if self._is_live.all():
            # These arrays are replaced, never modified.
            return self._keys, self._sizes
        return self._keys[self._is_live], self._sizes[self._is_live]

    def are_live(self, keys: KeyArray) -> npt.NDArray[np.bool_]:
        """Return for each key whether its file is live."""
        live = np.zeros(len(keys), np.bool_)
        if not len(keys):
            return live
        if self._recent:
            found = map(self._recent.__contains__, keys.tolist())
            live = np.fromiter(found, np.bool_, len(keys))
        if len(self._keys):
            at = np.searchsorted(self._keys, keys)
            at[at == len(self._keys)] = 0
            live |= (self._keys[at] == keys) & self._is_live[at]
        return live

    def find_repeated_add(self) -> int | None:
        """Return the version of a commit that added a live file more than once; else None."""
        versions = [
            version
            for key, version in self.repeated.items()
            if self.are_live(np.array([key], np.uint64)).any()
        ]
        return min(versions, default=None)

    def has_path_twice(self) -> bool:
        """Return whether a path is live with two deletion vectors, or with one and without."""
        paths = self.vectors.live_paths()
        return len(np.unique(paths)) < len(paths) or bool(self.are_live(paths).any())

    def live_origins(self) -> tuple[KeyArray, Origins]:
        """Return keys, ascending, and origins of all live files.

        An origin with `VERSION_FLAG` is an age, another one a row of the checkpoint.
        """
        self._fold()
        return self._keys[self._is_live], self._origins[self._is_live]

    def rebase(self, version: int, keys: KeyArray, rows: Origins) -> None:
        """Update the origins of files to a checkpoint that was written from this index.

        Args:
            version: The checkpoint's, and this index's.
            keys: Files with a new row; must include all that commits added.
            rows: Their rows in the new checkpoint; parallel. Other files keep theirs.

        Raises:
            BugError: A file that a commit added is missing from `keys`.
        """
        self._fold()
        # Sorted keys are found several times faster.
        order = np.argsort(keys)
        self._origins[np.searchsorted(self._keys, keys[order])] = rows[order]
        if bool((self._origins[self._is_live] >= VERSION_FLAG).any()):
            raise BugError(f"The checkpoint of version {version} lacks files of commits.")
        self.base_version = version

    def origins_between(self, first: int, until: int | None) -> FileOrigins:
        """Return where to find the live files with first <= key < until (None: to the end)."""
        self._fold()
        start = int(np.searchsorted(self._keys, np.uint64(first)))
        end = len(self._keys)
        if until is not None:
            end = int(np.searchsorted(self._keys, np.uint64(until)))
        live = self._is_live[start:end]
        keys, origins = self._keys[start:end], self._origins[start:end]
        if not live.all():
            keys, origins = keys[live], origins[live]
        # Origins in commits have the flag and come last, so one array of positions is enough.
        order = np.argsort(origins)
        first_commit = len(origins) - int(np.count_nonzero(origins >= VERSION_FLAG))
        in_checkpoint, in_commits = order[:first_commit], np.sort(order[first_commit:])
        ages = (origins[in_commits] & np.uint32(VERSION_FLAG - 1)).astype(np.int64)
        return FileOrigins(
            checkpoint_rows=origins[in_checkpoint],
            checkpoint_keys=keys[in_checkpoint],
            commit_keys=keys[in_commits],
            commit_versions=ages + self.base_version,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOrigins:
    """Where the entries of live files are in the log.

    Attributes:
        checkpoint_rows: Rows of the checkpoint, ascending; parallel to `checkpoint_keys`.
        commit_keys: Keys of files added by commits, ascending; parallel to `commit_versions`.
    """

    checkpoint_rows: Origins
    checkpoint_keys: KeyArray
    commit_keys: KeyArray
    commit_versions: npt.NDArray[np.int64]

    @property
    def count(self) -> int:
        """Number of files."""
        return len(self.checkpoint_rows) + len(self.commit_keys)
