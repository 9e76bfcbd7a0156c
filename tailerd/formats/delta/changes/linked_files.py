"""Restricts data files and deletion vectors reached by symbolic links to the allowed places.

Checked when tasks are planned, like paths in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from tailerd.changefeed.change_task import ChangeTask, TaskGroup
from tailerd.formats.delta.protocol.rewritten_files import files_of
from tailerd.storage.links import RealPlaces


class LinkedFiles:
    """Resolves the symbolic links below one table.

    Args:
        root: The table's place, as in `DataPaths`.
        allowed: Further places, in the same form.
    """

    def __init__(self, root: str, allowed: Iterable[str]) -> None:
        is_local = root.startswith("/")
        self._places = RealPlaces(root, allowed) if is_local else None

    async def checked(self, group: TaskGroup) -> TaskGroup:
        """Return a group after checking that its files resolve to allowed places.

        Raises:
            PathOutsideTableError: One does.
        """
        if self._places is not None and group.tasks:
            await asyncio.to_thread(self._places.check, _local_files(group.tasks))
        return group


def _local_files(tasks: Iterable[ChangeTask]) -> Iterator[str]:
    for file in (file for task in tasks for file in files_of(task)):
        if file.url.startswith("/"):
            yield file.url
        for vector in (file.rows.include, file.rows.exclude):
            if vector is not None and vector.url.startswith("/"):
                yield vector.url
