"""The saved state of a daemon: one object for each kind, over the files of one folder or bucket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from tailerd.changefeed.saved_offset import SavedOffset
from tailerd.pipeline_names import file_name
from tailerd.remedies import reset_command
from tailerd.state.base import ScratchLocation, StateFiles, StateObserver
from tailerd.state.corrupt_commits import CorruptCommits
from tailerd.state.history import History
from tailerd.state.pauses import Pauses
from tailerd.state.pipeline_records import PipelineRecords

_OFFSETS = "offsets"


class Offsets:
    """An `OffsetStore` in the files of a state."""

    def __init__(self, files: StateFiles) -> None:
        self._files = files

    async def load(self, pipeline: str) -> SavedOffset | None:
        """Return the last saved offset.

        Raises:
            OffsetError: It is damaged, or a newer release wrote it.
            StateInUseError, StorageError: As `StateFiles.load`.
        """
        return await self._files.load(_path(pipeline), partial(self._parse, pipeline))

    def _parse(self, pipeline: str, text: bytes, location: str) -> SavedOffset:
        restore = self._files.restore_remedy(file_name(pipeline))
        fix = f"{reset_command(pipeline)}, or {restore}."
        return SavedOffset.from_json(text, location=f"The offset file {location}", fix=fix)

    async def save(self, pipeline: str, saved: SavedOffset) -> None:
        """Save an offset durably.

        Raises:
            StateInUseError: Another process has taken over the state; nothing was saved.
            StorageError: It cannot be written; the previous content is still there.
        """
        await self._files.save(_path(pipeline), saved.to_json().encode())


def _path(pipeline: str) -> str:
    return f"{_OFFSETS}/{file_name(pipeline)}"


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
        """Return where a pipeline's source stores a snapshot's data for a restart."""
        return self._files.scratch(file_name(pipeline))
