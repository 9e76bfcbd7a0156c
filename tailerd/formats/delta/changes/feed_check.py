"""Notices change files that contradict the file actions of their commit.

Some writers left out one image of each update. The numbers of rows show it: those of the change
files must be balanced, and their sum must be the difference of the commit's added and removed
files. The check reads one column of the change files, and the footers of files without statistics.

Protocol: PROTOCOL.md#change-data-files
"""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

import pyarrow as pa

from tailerd.changefeed.change_batch import CHANGE_TYPE, count_values
from tailerd.changefeed.change_task import ChangeType
from tailerd.changefeed.limits import BatchLimit
from tailerd.errors import FileMissingError, StorageError, TableError
from tailerd.formats.delta.log.log_reader import CommitBody, LogReader
from tailerd.formats.delta.protocol.actions import CommitInfo, FileAction, Line, read_num_records
from tailerd.formats.delta.protocol.commit_file import Commit
from tailerd.formats.delta.protocol.data_path import DataPaths
from tailerd.reading.file_scan import FileScan
from tailerd.reading.files_ahead import FilesAhead
from tailerd.reading.parquet_chunks import parse_footer
from tailerd.reading.parquet_open import read_footer_bytes
from tailerd.reading.small_files import read_files
from tailerd.storage.stores import Stores

MAX_FILES = 1000
"""Commits of more files are not checked: each may take a request."""

COMMITS_AHEAD = 31
"""Commits that are judged with one: a switch to a thread and back costs more than a small file."""

TRUSTED_ENGINES = ("Delta-Lake/", "Databricks-Runtime/")
"""Engines of the reference implementation, whose change files are complete."""

_UNREADABLE = (FileMissingError, TableError, pa.ArrowException, OSError, KeyError)
_REMOVED = (ChangeType.DELETE, ChangeType.UPDATE_PREIMAGE)


class Feed(enum.Enum):
    """Verdict on the change files of a commit."""

    CONSISTENT = enum.auto()
    """They fit the file actions, or nothing is known about them."""
    WRONG = enum.auto()
    WRONG_UPDATES = enum.auto()
    """They are wrong, and have images of updates only."""


@dataclass(slots=True)
class _Files:
    changes: list[FileAction] = field(default_factory=list)
    added: list[FileAction] = field(default_factory=list)
    removed: list[FileAction] = field(default_factory=list)

    def take(self, lines: Iterable[Line]) -> None:
        for line in lines:
            if line.cdc is not None:
                self.changes.append(line.cdc)
            elif line.add is not None and line.add.data_change:
                self.added.append(line.add)
            elif line.remove is not None and line.remove.data_change:
                self.removed.append(line.remove)


class FeedCheck:
    """Checks the change files of one table's commits.

    Args:
        reader: The table's log.
        paths: Resolves the files it names.
        stores: Where they are.
    """

    def __init__(self, reader: LogReader, paths: DataPaths, stores: Stores) -> None:
        self._reader = reader
        self._paths = paths
        self._stores = stores
        self._known: dict[int, Feed] = {}

    def forget_before(self, version: int) -> None:
        """Drop what only versions before `version` need."""
        for old in [known for known in self._known if known < version]:
            del self._known[old]

    async def check(self, found: CommitBody, following: Iterable[CommitBody] = ()) -> Feed:
        """Return the verdict on the change files of a commit.

        Files that are missing or damaged are not judged: reading them for their rows raises the
        error. A storage that fails is an error here: the judgement must not depend on it.

        Args:
            following: Commits after it, some of which are judged in the same call to a thread.

        Raises:
            TableError: The commit cannot be read again.
            StorageError: A file cannot be reached.
        """
        version = found.commit.version
        if version not in self._known:
            if not _is_suspect(found.commit):
                return Feed.CONSISTENT
            commits: dict[int, _Files] = {}
            left = MAX_FILES
            for each in (found, *islice(following, COMMITS_AHEAD)):
                left -= each.commit.change_files.files
                if each is found or (left > 0 and _is_suspect(each.commit)):
                    commits[each.commit.version] = files = _Files()
                    async for lines, _ in self._reader.actions(each):
                        files.take(lines)
            self._known |= await asyncio.to_thread(self._judge_ahead, commits)
        return self._known[version]

    def _judge_ahead(self, commits: Mapping[int, _Files]) -> dict[int, Feed]:
        """Judge commits; only the first if a file of one of them cannot be read."""
        try:
            return self._judge(commits)
        except (*_UNREADABLE, StorageError):
            first, files = next(iter(commits.items()))
        try:
            return self._judge({first: files})
        except _UNREADABLE:
            return {first: Feed.CONSISTENT}

    def _judge(self, commits: Mapping[int, _Files]) -> dict[int, Feed]:
        counts = {version: Counter[str]() for version in commits}
        changed = [
            (version, self._paths.resolve(action.path))
            for version, files in commits.items()
            for action in files.changes
        ]
        scans = (FileScan(url=url, fields=(), change_column=CHANGE_TYPE) for _, url in changed)
        limit = BatchLimit(memory_bytes=self._reader.memory_bytes)
        with FilesAhead([url for _, url in changed], self._stores) as ahead:
            for number, rows in read_files(scans, len(changed), limit, ahead.open):
                counts[changed[number][0]].update(count_values(rows.changes))
        return {
            version: self._compare(counts[version], files) for version, files in commits.items()
        }

    def _compare(self, kinds: Counter[str], files: _Files) -> Feed:
        if any(kind not in list(ChangeType) for kind in kinds):
            return Feed.CONSISTENT
        is_wrong = kinds[ChangeType.UPDATE_PREIMAGE] != kinds[ChangeType.UPDATE_POSTIMAGE]
        if not is_wrong:
            change = sum(-n if kind in _REMOVED else n for kind, n in kinds.items())
            is_wrong = change != self._difference(files)
        if not is_wrong:
            return Feed.CONSISTENT
        has_others = kinds[ChangeType.INSERT] or kinds[ChangeType.DELETE]
        return Feed.WRONG if has_others else Feed.WRONG_UPDATES

    def _difference(self, files: _Files) -> int:
        """Return the rows that the added files have more than the removed ones."""
        records = {
            action.path: count
            for action in files.added
            if (count := read_num_records(action)) is not None
        }

        def rows(action: FileAction) -> int:
            count = read_num_records(action)
            if count is None:
                count = records.get(action.path)
            if count is None:
                count = self._count_rows(self._paths.resolve(action.path))
            vector = action.deletion_vector
            return count - (0 if vector is None else vector.cardinality)

        return sum(map(rows, files.added)) - sum(map(rows, files.removed))

    def _count_rows(self, url: str) -> int:
        memory = self._reader.memory_bytes
        with self._stores.open_data_file(url) as source:
            body, _ = read_footer_bytes(source, memory, url)
        return sum(group.num_rows for group in parse_footer(body, memory, url).groups)


def _is_suspect(commit: Commit) -> bool:
    """Return whether the change files of a commit are judged."""
    data_files = commit.data_added.files + commit.data_removed.files
    is_many = data_files + commit.change_files.files > MAX_FILES
    return bool(
        commit.change_files.files and data_files and not is_many and not _is_trusted(commit.info)
    )


def _is_trusted(info: CommitInfo | None) -> bool:
    return info is not None and any(name in info.engine_info for name in TRUSTED_ENGINES)
