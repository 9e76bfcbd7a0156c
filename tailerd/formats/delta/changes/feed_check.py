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
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from tailerd.changefeed.change_batch import CHANGE_TYPE
from tailerd.changefeed.change_task import ChangeType
from tailerd.errors import FileMissingError, TableError
from tailerd.formats.delta.log.log_reader import CommitBody, LogReader
from tailerd.formats.delta.protocol.actions import CommitInfo, FileAction, Line, read_num_records
from tailerd.formats.delta.protocol.data_path import DataPaths
from tailerd.reading.files_ahead import FilesAhead
from tailerd.reading.parquet_open import OpenedParquet, open_parquet
from tailerd.storage.stores import Stores

MAX_FILES = 1000
"""Commits of more files are not checked: each may take a request."""

TRUSTED_ENGINES = ("Delta-Lake/", "Databricks-Runtime/")
"""Engines of the reference implementation, whose change files are complete."""

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

    async def check(self, found: CommitBody) -> Feed:
        """Return the verdict on the change files of a commit.

        Files that are missing or damaged are not judged: reading them for their rows raises the
        error. A storage that fails is an error here: the judgement must not depend on it.

        Raises:
            TableError: The commit cannot be read again.
            StorageError: A file cannot be reached.
        """
        commit = found.commit
        if commit.version not in self._known:
            data_files = commit.data_added.files + commit.data_removed.files
            is_many = data_files + commit.change_files.files > MAX_FILES
            if not data_files or is_many or _is_trusted(commit.info):
                return Feed.CONSISTENT
            files = _Files()
            async for lines, _ in self._reader.actions(found):
                files.take(lines)
            self._known[commit.version] = await asyncio.to_thread(self._judge_files, files)
        return self._known[commit.version]

    def _judge_files(self, files: _Files) -> Feed:
        try:
            kinds = self._count_changes(files.changes)
            if any(kind not in list(ChangeType) for kind in kinds):
                return Feed.CONSISTENT
            is_wrong = kinds[ChangeType.UPDATE_PREIMAGE] != kinds[ChangeType.UPDATE_POSTIMAGE]
            if not is_wrong:
                change = sum(-n if kind in _REMOVED else n for kind, n in kinds.items())
                is_wrong = change != self._difference(files)
        except (FileMissingError, TableError, pa.ArrowException, OSError, KeyError):
            return Feed.CONSISTENT
        if not is_wrong:
            return Feed.CONSISTENT
        has_others = kinds[ChangeType.INSERT] or kinds[ChangeType.DELETE]
        return Feed.WRONG if has_others else Feed.WRONG_UPDATES

    def _count_changes(self, actions: list[FileAction]) -> Counter[str]:
        kinds: Counter[str] = Counter()
        urls = [self._paths.resolve(action.path) for action in actions]
        with FilesAhead(urls, self._stores) as ahead:
            for url in urls:
                column = self._open(url, ahead).file.read([CHANGE_TYPE]).column(0)
                for pair in pc.value_counts(column).to_pylist():
                    kinds[str(pair["values"])] += pair["counts"]
        return kinds

    def _difference(self, files: _Files) -> int:
        """Return the rows that the added files have more than the removed ones."""
        records = {
            action.path: count
            for action in files.added
            if (count := read_num_records(action)) is not None
        }
        with FilesAhead((), self._stores) as ahead:

            def rows(action: FileAction) -> int:
                count = read_num_records(action)
                if count is None:
                    count = records.get(action.path)
                if count is None:
                    opened = self._open(self._paths.resolve(action.path), ahead)
                    count = sum(group.num_rows for group in opened.footer.groups)
                vector = action.deletion_vector
                return count - (0 if vector is None else vector.cardinality)

            return sum(map(rows, files.added)) - sum(map(rows, files.removed))

    def _open(self, url: str, ahead: FilesAhead) -> OpenedParquet:
        return open_parquet(ahead.open(url), self._reader.memory_bytes, url)


def _is_trusted(info: CommitInfo | None) -> bool:
    return info is not None and any(name in info.engine_info for name in TRUSTED_ENGINES)
