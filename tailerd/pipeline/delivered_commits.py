"""The commits of one delivery, from its plan."""

from __future__ import annotations

from collections import Counter

from tailerd.changefeed.change_task import TaskGroup
from tailerd.changefeed.offset import Offset, Phase, Version
from tailerd.telemetry.events import DeliveredCommit


class DeliveredCommits:
    """Counts commits where they begin: a large one comes in several groups, and deliveries.

    Attributes:
        kinds: Commits begun so far, by how they are read; snapshots are not counted.
        details: The plan's details of each of them.
        planned: End of the last tasks that were planned; some of them may still be read.
    """

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.details: list[DeliveredCommit] = []
        self.planned: Offset | None = None
        self._counted: Version | None = None

    def count(self, group: TaskGroup) -> None:
        """Add a group of tasks."""
        self.planned = group.end
        is_begin = group.start.phase is Phase.FOLLOW and group.start.position == 0
        if is_begin and group.version != self._counted:
            self._counted = group.version
            self.kinds[group.change_source.value] += 1
            self.details.append(_details(group))


def _details(group: TaskGroup) -> DeliveredCommit:
    return DeliveredCommit(
        version=group.version,
        timestamp_ms=group.timestamp_us // 1000,
        mode=group.change_source.value,
        operation=group.operation,
        files_added=group.files_added,
        bytes_added=group.bytes_added,
        files_removed=group.files_removed,
        bytes_removed=group.bytes_removed,
    )
