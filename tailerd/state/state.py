"""The saved state of a daemon: one object for each kind, over the files of one folder or bucket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tailerd.state.base import ScratchLocation, StateFiles, StateObserver
from tailerd.state.corrupt_commits import CorruptCommits
from tailerd.state.history import History
from tailerd.state.offsets import Offsets
from tailerd.state.pauses import Pauses
from tailerd.state.pipeline_records import PipelineRecords


class State:
    """The parts of a state. Any process may read them; all else requires holding the state."""

    def __init__(self, files: StateFiles) -> None:
        self._files = files
        self.offsets = Offsets(files)
        self.pauses = Pauses(files)
        self.pipelines = PipelineRecords(files)
        self.corrupt_commits = CorruptCommits(files)
        self.history = History(files)

    @asynccontextmanager
    async def hold(self, observer: StateObserver | None = None) -> AsyncIterator[None]:
        """Own the state while inside.

        Args:
            observer: Is notified of other processes.

        Raises:
            StateInUseError: Another process owns it.
            ConfigError, StorageError: It cannot be used.
        """
        async with self._files.hold(observer):
            await self.pauses.load()
            yield

    def scratch(self, pipeline: str) -> ScratchLocation:
        """Return where a pipeline's source keeps what a snapshot needs after a restart."""
        return self._files.scratch(pipeline)
