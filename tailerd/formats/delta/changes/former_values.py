"""Finds partition values of removed files whose `remove` lacks them, in the earlier `add`.

Old writers omit `extendedFileMetadata`. The file was live in the version before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tailerd.changefeed.change_task import ChangeTask, ChangeType
from tailerd.changefeed.offset import Version
from tailerd.errors import TableError
from tailerd.formats.delta.log.live_files import read_live_files
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.protocol.data_file import VERSIONS, data_file
from tailerd.formats.delta.protocol.data_path import DataPaths

_Values = tuple[tuple[str, str | None], ...]


class FormerValues:
    """Looks up partition values in the version before a commit.

    Args:
        reader: The table's log.
        paths: Resolves the files it names.
    """

    def __init__(self, reader: LogReader, paths: DataPaths) -> None:
        self._reader = reader
        self._paths = paths
        self._found: dict[Version, dict[str, _Values]] = {}

    def forget_before(self, version: int) -> None:
        """Drop what only versions before `version` need."""
        for old in [known for known in self._found if known < version]:
            del self._found[old]

    async def completed(self, tasks: list[ChangeTask]) -> list[ChangeTask]:
        """Return tasks of one commit, each with its partition values if known.

        If the version before can no longer be rebuilt, tasks are unchanged: reading them raises the
        error.
        """
        lacking = {data_file(task).url for task in tasks if _lacks_values(task)}
        if not lacking:
            return tasks
        version = tasks[0].version
        known = self._found.setdefault(version, {})
        if not lacking <= known.keys():
            known |= await self._look_up(VERSIONS.version_before(version), lacking)
        return [_with_values(task, known) if _lacks_values(task) else task for task in tasks]

    async def _look_up(self, version: Version, urls: set[str]) -> dict[str, _Values]:
        found: dict[str, _Values] = {}
        try:
            snapshot = await self._reader.open(version)
            async for files in read_live_files(self._reader, snapshot):
                for file in files:
                    url = self._paths.resolve(file.path)
                    if url in urls:
                        found[url] = file.partition_values
        except TableError:
            # Reading the tasks raises an error that names the commit.
            return found
        return found


def _lacks_values(task: ChangeTask) -> bool:
    file = data_file(task)
    is_removed = task.change_type is ChangeType.DELETE
    return is_removed and bool(file.schema.partition_columns) and not file.partition_values


def _with_values(task: ChangeTask, known: dict[str, _Values]) -> ChangeTask:
    file = data_file(task)
    values: Sequence[tuple[str, str | None]] = known.get(file.url, ())
    return replace(task, payload=replace(file, partition_values=tuple(values)))
