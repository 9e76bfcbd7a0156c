"""The persistent state of a daemon: in a folder, or below a prefix of a bucket.

With a bucket nothing stays on this machine, and a lease replaces the lock: another daemon may take
over when this one has not renewed the lease before it expires.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from tailerd.changefeed.saved_offset import OffsetStore
from tailerd.clock import Clock
from tailerd.errors import BugError, StateInUseError, StorageError
from tailerd.formats.base import ScratchPlace
from tailerd.pipeline.bucket_history import BucketHistory
from tailerd.pipeline.bucket_offset_store import BucketOffsetStore, taken_over_by
from tailerd.pipeline.corrupt_commit_log import (
    BucketCorruptCommitLog,
    CorruptCommitLog,
    FileCorruptCommitLog,
)
from tailerd.pipeline.fenced_files import FencedFile
from tailerd.pipeline.offset_store import FileOffsetStore
from tailerd.pipeline.pause_store import BucketPauses, Pauses, PauseStore
from tailerd.pipeline.pipeline_records import (
    PIPELINES_FOLDER,
    BucketPipelineRecords,
    FilePipelineRecords,
    PipelineRecords,
)
from tailerd.pipeline.state_lock import state_lock
from tailerd.storage.base import ObjectStore
from tailerd.storage.lease import LEASE_SECONDS, Lease, Purpose
from tailerd.telemetry.history_store import HistoryStore, KeepsHistory

_PURPOSE = Purpose(folder="lease", doing="works on this state", refusal=StateInUseError)


class StateWatch(Protocol):
    """Is notified of what other processes do with a state."""

    async def waits(self, holder: str, seconds: float) -> None:
        """Note that this process waits for the state, and how long at most."""
        ...

    def taken(self) -> None:
        """Note that this process holds the state now."""
        ...

    def lost(self, error: StateInUseError) -> None:
        """Note that another process took it over, as the error says."""
        ...


class State(Protocol):
    """The parts of a state. Any process may read offsets; all else requires holding the state."""

    pauses: Pauses
    corrupt_commits: CorruptCommitLog
    history: KeepsHistory
    pipelines: PipelineRecords

    def held(self, watch: StateWatch | None = None) -> AbstractAsyncContextManager[None]:
        """Hold the state while inside.

        Args:
            watch: Is notified of other processes.

        Raises:
            StateInUseError: Another process holds it.
            ConfigError, StorageError: It cannot be used.
        """
        ...

    def offsets(self) -> OffsetStore:
        """Return the saved offsets; they can be saved while the state is held."""
        ...

    def scratch(self, pipeline: str) -> ScratchPlace:
        """Return the place for what a pipeline's snapshot needs after a restart."""
        ...


class FolderState:
    """The state in a folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.pauses: Pauses = PauseStore(folder / "paused")
        self.corrupt_commits: CorruptCommitLog = FileCorruptCommitLog(folder / "corrupt_commits")
        self.history: KeepsHistory = HistoryStore(folder / "history")
        self.pipelines: PipelineRecords = FilePipelineRecords(folder / PIPELINES_FOLDER)

    @asynccontextmanager
    async def held(self, watch: StateWatch | None = None) -> AsyncIterator[None]:
        """Hold the folder's lock while inside.

        Raises:
            StateInUseError: Another process holds it.
            ConfigError: The folder cannot be written.
        """
        with state_lock(self._folder):
            yield

    def offsets(self) -> OffsetStore:
        """Return the saved offsets."""
        return FileOffsetStore(self._folder / "offsets")

    def scratch(self, pipeline: str) -> ScratchPlace:
        """Return the place for what a pipeline's snapshot needs after a restart."""
        return ScratchPlace(folder=self._folder / "spool" / pipeline)


class BucketState:
    """The state below a prefix of an object store.

    Args:
        store, root: Where.
        clock: For the lease.
        seconds: How long others wait for a daemon that no longer renews its lease.
    """

    def __init__(
        self, store: ObjectStore, root: str, *, clock: Clock, seconds: float = LEASE_SECONDS
    ) -> None:
        self._store = store
        self._root = root
        self._clock = clock
        self._seconds = seconds
        self._lease: Lease | None = None
        self._scratch: Path | None = None
        self._pauses = BucketPauses(self._file("paused"))
        self.pauses: Pauses = self._pauses
        self.corrupt_commits: CorruptCommitLog = BucketCorruptCommitLog(
            store, f"{root}/corrupt_commits", self._token
        )
        self.history: KeepsHistory = BucketHistory(store, f"{root}/history", self._is_held)
        self.pipelines: PipelineRecords = BucketPipelineRecords(
            lambda pipeline: self._file(f"{PIPELINES_FOLDER}/{pipeline}")
        )

    @asynccontextmanager
    async def held(self, watch: StateWatch | None = None) -> AsyncIterator[None]:
        """Hold the lease while inside, after waiting for the lease of a dead daemon to expire.

        Args:
            watch: Is notified of the wait, and of a daemon that takes over the state.

        Raises:
            StateInUseError: Another process holds it, and is alive.
            StorageError: The bucket cannot be read or written, or has no conditional writes.
        """
        lease = Lease(
            self._store,
            self._root,
            clock=self._clock,
            seconds=self._seconds,
            purpose=_PURPOSE,
            # Offsets keep tokens longer than lifecycle rules may keep the lease's files.
            first_token=self._clock.now_ms(),
        )
        with tempfile.TemporaryDirectory(
            prefix="tailerd-spool-", ignore_cleanup_errors=True
        ) as scratch:
            on_wait = None if watch is None else watch.waits
            on_lost = None if watch is None else partial(self._lose, watch)
            async with lease.held(is_patient=True, on_wait=on_wait, on_lost=on_lost):
                if watch is not None:
                    watch.taken()
                self._lease, self._scratch = lease, Path(scratch)
                try:
                    await self._pauses.look()
                    yield
                finally:
                    self._lease = None

    async def _lose(self, watch: StateWatch) -> None:
        holder = "another process"
        if self._lease is not None:
            with suppress(StorageError):
                holder = await self._lease.newest_holder()
        watch.lost(taken_over_by(holder))

    def offsets(self) -> OffsetStore:
        """Return the saved offsets; read-only without the lease."""
        return BucketOffsetStore(self._store, f"{self._root}/offsets", self._lease)

    def scratch(self, pipeline: str) -> ScratchPlace:
        """Return the place for what a pipeline's snapshot needs after a restart."""
        if self._scratch is None:
            raise BugError("A snapshot's file list was asked for without holding the state.")
        return ScratchPlace(
            folder=self._scratch / pipeline,
            store=self._store,
            prefix=f"{self._root}/spool/{pipeline}",
            check_held=self._check_held,
        )

    def _file(self, name: str) -> FencedFile:
        return FencedFile(self._store, f"{self._root}/{name}", self._token)

    def _is_held(self) -> bool:
        return self._lease is not None and self._lease.token is not None

    async def _token(self) -> int | None:
        """Return the token of the lease, None without one.

        Raises:
            StateInUseError: Another process has taken the state over.
        """
        lease = self._lease
        if lease is None:
            return None
        if not await lease.is_mine():
            raise taken_over_by(await lease.newest_holder())
        return lease.token

    async def _check_held(self) -> None:
        await self._token()
