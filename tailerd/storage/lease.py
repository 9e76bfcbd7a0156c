"""Leases in a store: small files that let one process at a time work on something.

A lease is a file `<token>.lease` in its own folder; a table's lease is next to its log, where Delta
readers and VACUUM ignore it. Acquiring a lease creates the file of the next token, which only one
process can do. The greatest token is valid, so it fences off a holder that was suspended; a process
suspended before it created the file detects that by listing again. A holder renews by rewriting its
file. Clocks of two machines are never compared: a lease has expired when an observer saw the same
beat for the whole lease duration by its own monotonic clock.

A lease alone does not prevent conflicting writes, because a holder may be suspended between check
and write. Maintenance creates every file under a free name; saved offsets carry the token.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tailerd.clock import Clock
from tailerd.errors import (
    BugError,
    FileExistsAlreadyError,
    FileMissingError,
    MaintenanceBusyError,
    StorageError,
    TailerdError,
)
from tailerd.storage.base import ObjectStore

LEASE_SECONDS = 60.0
RELEASE_SECONDS = 5.0
"""Longest wait, when a process ends, for the write that releases its lease."""
BEATS_PER_LEASE = 4
_SUFFIX = ".lease"
_LONGEST_SECONDS = 3600.0
_POLL_SECONDS = 1.0

OnWait = Callable[[str, float], Awaitable[None]]
"""Called with the holder's name and the longest wait in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """Purpose and times of a lease.

    Attributes:
        folder: Folder of its files, relative to the location it protects.
        doing: What its holder does, as part of a sentence: `maintains this table`.
        refusal: Error raised while another process holds the lease.
    """

    folder: str
    doing: str
    refusal: type[TailerdError]


MAINTENANCE = Purpose(
    folder="_tailerd/maintenance", doing="maintains this table", refusal=MaintenanceBusyError
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process: the boot of its machine, its PID there, and a name for display."""

    machine: str
    pid: int
    name: str

    @classmethod
    def this_process(cls) -> Holder:
        """Return the calling process."""
        name = f"process {os.getpid()} on {socket.gethostname()}"
        return cls(machine=_machine(), pid=os.getpid(), name=name)

    def is_surely_dead(self, observer: Holder) -> bool:
        """Return whether an observer on the same machine sees that the process is gone."""
        if not self.machine or self.machine != observer.machine or self.pid <= 0:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class _LeaseRecord:
    """The content of a lease file."""

    token: int
    beat: int
    seconds: float
    is_released: bool
    holder: Holder = field(
        default_factory=lambda: Holder(machine="", pid=0, name="another process")
    )

    def to_json(self) -> bytes:
        return json.dumps({"format": 1, **asdict(self)}).encode() + b"\n"

    @classmethod
    def read(cls, token: int, body: bytes) -> _LeaseRecord:
        """Parse a file; an unreadable one is a lease that is not renewed, so it expires."""
        try:
            fields = json.loads(body)
            return cls(
                token=token,
                beat=int(fields["beat"]),
                seconds=min(_LONGEST_SECONDS, max(0.0, float(fields["seconds"]))),
                is_released=fields["is_released"] is True,
                holder=Holder(
                    machine=str(fields["holder"]["machine"]),
                    pid=int(fields["holder"]["pid"]),
                    name=str(fields["holder"]["name"])[:200],
                ),
            )
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return cls(token=token, beat=-1, seconds=LEASE_SECONDS, is_released=False)


class Lease:
    """One process's view of one lease. Used by one task at a time.

    Args:
        store, root: The location that the lease protects.
        purpose: Its purpose; by default a table's maintenance.
        clock: Only its monotonic time is used.
        seconds: How long others wait for a holder that has stopped renewing.
        holder: The process that acquires it; by default this one.
        first_token: First token when there is no file. Where tokens are also stored elsewhere, they
            must not start again after files are lost; a time in milliseconds is sufficient.
    """

    def __init__(
        self,
        store: ObjectStore,
        root: str,
        *,
        clock: Clock,
        seconds: float = LEASE_SECONDS,
        holder: Holder | None = None,
        purpose: Purpose = MAINTENANCE,
        first_token: int = 1,
    ) -> None:
        self._store = store
        self._purpose = purpose
        self._folder = f"{root.rstrip('/')}/{purpose.folder}"
        self._clock = clock
        self._seconds = seconds
        self._holder = holder or Holder.this_process()
        self.holder_name = self._holder.name
        self._first_token = first_token
        self._changing = asyncio.Lock()
        self._mine: _LeaseRecord | None = None
        self._seen: tuple[int, int] | None = None
        self._seen_at = 0.0
        self._ahead: _LeaseRecord | None = None

    @property
    def token(self) -> int | None:
        """The fencing token while the lease is held: greater than that of every earlier holder."""
        return None if self._mine is None else self._mine.token

    async def acquire(self) -> None:
        """Acquire the lease.

        Raises:
            TailerdError: The purpose's refusal: another process holds it, or acquired it first.
            StorageError: The lease's files cannot be read or written.
        """
        if self._mine is not None:
            raise BugError("A lease was taken twice.")
        tokens = await self._tokens()
        newest = max(tokens, default=0)
        self._ahead = None
        if newest and (record := await self._read(newest)) is not None and self._is_valid(record):
            self._ahead = record
            raise self._purpose.refusal(
                f"{record.holder.name} {self._purpose.doing} now.",
                remedy=f"Try again later; if it has died, after {record.seconds:.0f} s.",
            )
        mine = _LeaseRecord(
            token=newest + 1 if newest else self._first_token,
            beat=0,
            seconds=self._seconds,
            is_released=False,
            holder=self._holder,
        )
        try:
            await self._store.put(self._path(mine.token), mine.to_json(), if_absent=True)
        except FileExistsAlreadyError as error:
            raise self._too_late() from error
        self._mine = mine
        await self._make_sure(mine)
        for token in tokens:
            with suppress(StorageError):
                await self._store.delete(self._path(token))

    async def _make_sure(self, mine: _LeaseRecord) -> None:
        """Give up the token if a greater one exists: its holder had deleted our token's file."""
        try:
            newest = max(await self._tokens(), default=0)
        except BaseException:
            await self.release()
            raise
        if newest > mine.token:
            self._mine = None
            with suppress(StorageError):
                await self._store.delete(self._path(mine.token))
            raise self._too_late()

    def _too_late(self) -> TailerdError:
        return self._purpose.refusal(
            f"Another process, which was faster, {self._purpose.doing} now.",
            remedy="Try again later.",
        )

    async def acquire_waiting(self, on_wait: OnWait | None = None) -> None:
        """Acquire the lease, after waiting for the lease of a dead holder to expire.

        Args:
            on_wait: Called once if it has to wait, with the holder's name and the longest wait in
                seconds.

        Raises:
            TailerdError: The purpose's refusal: the holder renewed meanwhile, so it is alive.
            StorageError: As `acquire`.
        """
        seen: tuple[int, int] | None = None
        while True:
            try:
                return await self.acquire()
            except self._purpose.refusal:
                if seen is not None and self._seen != seen:
                    raise
                if seen is None and self._ahead is not None and on_wait is not None:
                    await on_wait(self._ahead.holder.name, self._ahead.seconds)
                seen = self._seen
            await self._clock.sleep(_POLL_SECONDS)

    async def newest_holder(self) -> str:
        """Return the name of the newest holder, for display."""
        newest = max(await self._tokens(), default=0)
        record = await self._read(newest) if newest else None
        return "another process" if record is None else record.holder.name

    async def is_mine(self) -> bool:
        """Return whether the lease is still held: no greater token exists."""
        if self._mine is None:
            return False
        if max(await self._tokens(), default=0) != self._mine.token:
            self._mine = None
        return self._mine is not None

    async def renew(self) -> bool:
        """Renew the lease; return whether it is still held."""
        async with self._changing:
            if not await self.is_mine() or self._mine is None:
                return False
            self._mine = replace(self._mine, beat=self._mine.beat + 1)
            await self._store.put(self._path(self._mine.token), self._mine.to_json())
            return True

    async def raise_token(self, token: int) -> bool:
        """Continue with a token above one found elsewhere; return whether the lease is still held.

        Such a token's file has been deleted; otherwise that token would be the valid one.

        Raises:
            StorageError: The lease's files cannot be read or written.
        """
        async with self._changing:
            if not await self.is_mine() or self._mine is None:
                return False
            before, after = self._mine, replace(self._mine, token=token + 1, beat=0)
            try:
                await self._store.put(self._path(after.token), after.to_json(), if_absent=True)
            except FileExistsAlreadyError:
                self._mine = None
                return False
            self._mine = after
            with suppress(StorageError):
                await self._store.delete(self._path(before.token))
            return True

    @asynccontextmanager
    async def hold(
        self,
        *,
        is_patient: bool = False,
        on_wait: OnWait | None = None,
        on_lost: Callable[[], Awaitable[None]] | None = None,
    ) -> AsyncIterator[None]:
        """Hold and renew the lease inside the context.

        Args:
            is_patient: Whether to wait as `acquire_waiting` does.
            on_wait: As in `acquire_waiting`.
            on_lost: Called when a renewal finds that another process has acquired the lease: at
                most one renewal interval later, or once the storage answers again. Also called when
                renewing fails with an error other than the storage's.

        Raises:
            TailerdError, StorageError: As `acquire`.
            Exception: The error that ended renewing, unless the body itself failed.
        """
        await (self.acquire_waiting(on_wait) if is_patient else self.acquire())
        is_over = asyncio.Event()
        keeping = asyncio.create_task(self._keep(is_over, on_lost))
        try:
            yield
        finally:
            is_over.set()
            # Not cancelled: a renewal in flight would overwrite the release. In a storage outage
            # the wait is limited, and the lease expires instead.
            until = time.monotonic() + RELEASE_SECONDS
            ended, late = await asyncio.wait([keeping], timeout=RELEASE_SECONDS)
            for task in late:
                task.cancel()
            await self.release(within_seconds=until - time.monotonic())
        for task in ended:
            task.result()

    async def _keep(
        self, is_over: asyncio.Event, on_lost: Callable[[], Awaitable[None]] | None
    ) -> None:
        """Renew until `is_over` or the lease is lost; storage errors are retried next time."""
        ending = asyncio.ensure_future(is_over.wait())
        is_held = True
        try:
            while is_held and not is_over.is_set():
                sleeping = asyncio.ensure_future(self._clock.sleep(self._seconds / BEATS_PER_LEASE))
                await asyncio.wait({ending, sleeping}, return_when=asyncio.FIRST_COMPLETED)
                sleeping.cancel()
                if not is_over.is_set():
                    with suppress(StorageError):
                        is_held = await self.renew()
        except Exception:
            # Renewing has stopped, so another process will acquire the lease.
            is_held = False
            raise
        finally:
            ending.cancel()
            if not is_held and on_lost is not None:
                await on_lost()

    async def release(self, *, within_seconds: float | None = None) -> None:
        """Release the lease at once; if the storage does not allow that, it expires."""
        mine, self._mine = self._mine, None
        if mine is None:
            return
        # The file stays: without it tokens would start again and no longer fence off old holders.
        done = replace(mine, beat=mine.beat + 1, is_released=True)
        with suppress(StorageError, TimeoutError):
            async with asyncio.timeout(
                RELEASE_SECONDS if within_seconds is None else within_seconds
            ):
                await self._store.put(self._path(mine.token), done.to_json())

    def _is_valid(self, record: _LeaseRecord) -> bool:
        """Return whether another process's lease is still valid."""
        if record.is_released or record.holder.is_surely_dead(self._holder):
            return False
        now = self._clock.monotonic()
        if self._seen != (record.token, record.beat):
            self._seen, self._seen_at = (record.token, record.beat), now
        return now - self._seen_at < record.seconds

    async def _tokens(self) -> list[int]:
        return [
            int(meta.name.removesuffix(_SUFFIX))
            async for meta in self._store.list_from(self._folder)
            if meta.name.endswith(_SUFFIX) and meta.name.removesuffix(_SUFFIX).isdecimal()
        ]

    async def _read(self, token: int) -> _LeaseRecord | None:
        try:
            return _LeaseRecord.read(token, await self._store.get(self._path(token)))
        except FileMissingError:
            return None

    def _path(self, token: int) -> str:
        return f"{self._folder}/{token:020}{_SUFFIX}"


def _machine() -> str:
    """Return an id shared by processes that see each other's PIDs; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""
