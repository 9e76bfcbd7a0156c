"""Keeps the live files before the next commit, to know which of its file actions have an effect.

The index is built when the first commit needs it, and every later commit is applied to it. So a
reader that follows a table reads the list of its files once.
"""

from __future__ import annotations

import asyncio

from tailerd.errors import CorruptLogError, MissingVersionError, TableError
from tailerd.formats.delta.log.log_reader import CommitBody, LogReader
from tailerd.formats.delta.protocol.commit_file import Commit, CommitScan
from tailerd.formats.delta.protocol.file_effects import (
    ALL_EFFECTIVE,
    ForbiddenAction,
    NoEffect,
    find_no_effect,
    find_repeated,
    find_second_vector,
)
from tailerd.formats.delta.protocol.file_index import FileIndex
from tailerd.formats.delta.protocol.file_key import file_key
from tailerd.remedies import RESTART

MANY_FILES = 100_000
"""With more files, a worker thread applies the commits: the event loop must not wait for it."""


class LiveBefore:
    """Finds actions without an effect in the commits of one table, in ascending order.

    Args:
        reader: The table's log.
    """

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._index: FileIndex | None = None
        self._version = -1
        self._found: dict[int, NoEffect] = {}
        self._is_unavailable = False

    def forget_before(self, version: int) -> None:
        """Drop what only versions before `version` need; the index stays."""
        for old in [known for known in self._found if known < version]:
            del self._found[old]

    async def find(self, found: CommitBody, *, is_needed: bool) -> NoEffect:
        """Return which actions of a commit have no effect.

        If the version before cannot be rebuilt with its files, all of them count as effective.

        Args:
            is_needed: Whether the rows of its files are changes; change files need no comparison.

        Raises:
            CorruptLogError: The protocol forbids an action; the message names its file.
        """
        commit = found.commit
        known = self._found.get(commit.version)
        if known is not None:
            return known
        if (forbidden := find_repeated(commit)) is not None:
            raise await self._error(found, forbidden)
        if self._version != commit.version - 1:
            self._index, self._version = None, commit.version - 1
        if self._index is None:
            if not is_needed or self._is_unavailable:
                return ALL_EFFECTIVE
            self._index = await self._open(commit.version - 1)
        result = ALL_EFFECTIVE
        if self._index is not None:
            result = await self._compare(found, self._index)
        self._found[commit.version] = result
        return result

    async def _open(self, version: int) -> FileIndex | None:
        if version < 0:
            return FileIndex()
        try:
            snapshot, _ = await self._reader.open_listed(version)
        except MissingVersionError:
            # The log begins with this commit.
            return None
        except TableError:
            # The list of files is damaged or too large. Do not read it again for every commit.
            self._is_unavailable = True
            return None
        return snapshot.files

    async def _compare(self, found: CommitBody, index: FileIndex) -> NoEffect:
        commit = found.commit
        is_large = index.num_files + len(commit.added_keys) > MANY_FILES
        if is_large:
            result = await asyncio.to_thread(_find, commit, index)
        else:
            result = _find(commit, index)
        if isinstance(result, ForbiddenAction):
            raise await self._error(found, result)
        # From here on the index is that of the commit; nothing may fail in between.
        self._version = commit.version
        if is_large:
            await asyncio.to_thread(index.apply, commit)
        else:
            index.apply(commit)
        return result

    async def reduce_commit(self, found: CommitBody, no_effect: NoEffect) -> Commit:
        """Return a commit without the actions that have no effect."""
        if not no_effect:
            return found.commit
        scan = CommitScan(found.commit.version, found.file.name, self._reader.url)
        async for lines, _ in self._reader.actions(found):
            scan.take(no_effect.without(lines, self._reader.url))
        return scan.commit

    async def _error(self, found: CommitBody, forbidden: ForbiddenAction) -> CorruptLogError:
        path = "a file"
        async for lines, _ in self._reader.actions(found):
            for line in lines:
                action = line.add or line.remove
                if action and file_key(action.path, None, self._reader.url) == forbidden.path_key:
                    path = action.path
        problem = forbidden.problem.format(path=path)
        return CorruptLogError(
            f"Version {found.commit.version} {problem}, which the protocol forbids: the rows of"
            " the table are not certain.",
            remedy="Its writer is broken. Have a writer remove that file and add it in a new"
            f" commit, then {RESTART}.",
        )


def _find(commit: Commit, index: FileIndex) -> NoEffect | ForbiddenAction:
    return find_second_vector(commit, index) or find_no_effect(commit, index)
