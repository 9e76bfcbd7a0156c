"""What a pipeline keeps, in the memory of this process."""

from __future__ import annotations

from tailerd.changefeed.saved_offset import SavedOffset
from tailerd.state.corrupt_commits import CorruptCommitRecord


class MemoryOffsetStore:
    """Forgets everything when the process ends."""

    def __init__(self) -> None:
        self._saved: dict[str, SavedOffset] = {}

    async def load(self, pipeline: str) -> SavedOffset | None:
        """Return what was last saved."""
        return self._saved.get(pipeline)

    async def save(self, pipeline: str, saved: SavedOffset) -> None:
        """Keep it in memory."""
        self._saved[pipeline] = saved


class MemoryCorruptCommitLog:
    """Forgets everything when the process ends."""

    def __init__(self) -> None:
        self.records: dict[str, list[CorruptCommitRecord]] = {}

    async def record(self, table: str, record: CorruptCommitRecord) -> str:
        """Keep it in memory."""
        self.records.setdefault(table, []).append(record)
        return "memory"
