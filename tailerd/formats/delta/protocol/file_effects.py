"""Finds file actions that are forbidden, and those that change no file of the table.

Case A: a path is in two `add` or in two `remove` actions: forbidden.
Case B: an `add` of a path that is live with another deletion vector, and no `remove` of that one:
    forbidden.
Case C: an `add` of a file that is live, by path and vector: legal; it updates metadata only.
Case D: a `remove` of a file that is not live: it changes nothing.
Case E: an `add` and a `remove` of the same file, which is live: both stay for the planner.

Protocol: PROTOCOL.md#add-file-and-remove-file
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tailerd.formats.delta.protocol.actions import FileAction, Line
from tailerd.formats.delta.protocol.commit_file import Commit
from tailerd.formats.delta.protocol.file_index import FileIndex
from tailerd.formats.delta.protocol.file_key import file_key


@dataclass(frozen=True, slots=True)
class ForbiddenAction:
    """A path whose actions the protocol forbids in one commit.

    Attributes:
        path_key: Key of the path alone.
        problem: The commit's mistake, to complete "it ...".
    """

    path_key: int
    problem: str


@dataclass(frozen=True, slots=True)
class NoEffect:
    """Keys of file actions that change no file of the table.

    Attributes:
        added: Of `add` actions of files that were live.
        removed: Of `remove` actions of files that were not.
    """

    added: frozenset[int] = frozenset()
    removed: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)

    def without(self, lines: Sequence[Line], root_url: str) -> list[Line]:
        """Return the lines that have an effect, or are not about files."""
        if not self:
            return list(lines)
        return [
            line
            for line in lines
            if not (line.add and _key(line.add, root_url) in self.added)
            and not (line.remove and _key(line.remove, root_url) in self.removed)
        ]


ALL_EFFECTIVE = NoEffect()


def _key(action: FileAction, root_url: str) -> int:
    vector = action.deletion_vector
    return file_key(action.path, None if vector is None else vector.unique_id, root_url)


def find_repeated(commit: Commit) -> ForbiddenAction | None:
    """Return a path with two actions of one kind; None if there is none (case A)."""
    for verb, keys in (("adds", commit.added_paths), ("removes", commit.removed_paths)):
        if len(keys) < 2:
            continue
        paths = np.array(keys, np.uint64)
        paths.sort()
        repeated = paths[1:][paths[1:] == paths[:-1]]
        if len(repeated):
            return ForbiddenAction(int(repeated[0]), f"{verb} {{path!r}} more than once")
    return None


def find_second_vector(commit: Commit, live: FileIndex) -> ForbiddenAction | None:
    """Return a path that is live with another vector, which is not removed; else None (case B)."""
    if not commit.added_paths or not (live.vectors.count or commit.vector_keys):
        return None
    paths, keys = np.array(commit.added_paths, np.uint64), np.array(commit.added_keys, np.uint64)
    removed = np.array(commit.removed_keys, np.uint64)
    is_second = (paths != keys) & live.are_live(paths) & ~np.isin(paths, removed)
    marked = live.vectors.keys_on(paths.tolist()) if live.vectors.count else [None] * len(paths)
    kept = {key for key in marked if key is not None} - set(removed.tolist())
    for index, key in enumerate(marked):
        if key is not None and key in kept and key != int(keys[index]):
            is_second[index] = True
    if not is_second.any():
        return None
    return ForbiddenAction(
        int(paths[is_second][0]),
        "adds {path!r} with another deletion vector, and does not remove the file with the one it"
        " has",
    )


def find_no_effect(commit: Commit, live: FileIndex) -> NoEffect:
    """Return the actions that change no file (cases C and D).

    Args:
        live: The files that were live before the commit.
    """
    added, removed = (
        np.array(keys, np.uint64) for keys in (commit.added_keys, commit.removed_keys)
    )
    again = added[live.are_live(added)]
    if len(again):
        again = again[~np.isin(again, removed)]
    gone = removed[~live.are_live(removed)]
    if not len(again) and not len(gone):
        return ALL_EFFECTIVE
    return NoEffect(frozenset(again.tolist()), frozenset(gone.tolist()))
