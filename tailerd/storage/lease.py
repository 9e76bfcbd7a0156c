"""Whose turn it is to work on something in a store: one process at a time, told by small files.

A lease is a file `<token>.lease` in a folder of its own; that of a table is beside its log, where
readers of Delta and its VACUUM pass over it. Taking a lease creates the file of the next token,
which only one can do; the greatest token is the one that counts, so it fences off a holder that
slept, and who slept before creating the file finds it out by looking again. A holder beats by
writing its file again. Nobody compares two machines' clocks: a lease has expired when an observer
saw the same beat for the whole of its duration by its own clock, which never jumps.

It keeps nobody safe by itself, because a holder may sleep between looking and writing. Maintenance
creates every file under a name that was free; saved offsets carry the token.
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
"""How long the end of a process waits for its lease's last file."""
BEATS_PER_LEASE = 4
_SUFFIX = ".lease"
_LONGEST_SECONDS = 3600.0
_LOOK_SECONDS = 1.0

OnWait = Callable[[str, float], Awaitable[None]]
"""Hears whom a lease is waited for, and how long at most, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """What a lease is for.

    Attributes:
        folder: Where its files are, below the place it is a lease of.
        doing: What its holder does, for a sentence: `maintains this table`.
        refusal: What is raised for those who have to wait.
    """

    folder: str
    doing: str
    refusal: type[TailerdError]


MAINTENANCE = Purpose(
    folder="_tailerd/maintenance", doing="maintains this table", refusal=MaintenanceBusyError
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process: its machine as it was started, its number there, and a name for people."""

    machine: str
    pid: int
    name: str

    @classmethod
    def this_process(cls) -> Holder:
        """Return the one that asks."""
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
    """What a lease's file says."""

    token: int
    beat: int
    seconds: float
    is_released: bool
    holder: Holder = field(default_factory=lambda: Holder(machine="", pid=0, name="somebody"))

    def to_json(self) -> bytes:
        return json.dumps({"format": 1, **asdict(self)}).encode() + b"\n"

    @classmethod
    def read(cls, token: int, body: bytes) -> _LeaseRecord:
        """Read a file; one that cannot be read is a lease that nobody renews."""
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
        store, root: What it is a lease of.
        purpose: What for; that of a table's maintenance, unless said.
        clock: Its monotonic time is used, and nothing else of it.
        seconds: How long others wait for a holder that beats no more.
        holder: Who asks.
        first_token: Where tokens begin when no file is there: where they are kept elsewhere, too,
            files that vanished must not let them begin again. A time in milliseconds will do.
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
        """The fencing token while the lease is held: greater than of every holder before."""
        return None if self._mine is None else self._mine.token

    async def take(self) -> None:
        """Take the lease.

        Raises:
            TailerdError: The purpose's refusal: another process has it, or was quicker.
            StorageError: The lease's files cannot be read or written.
        """
        if self._mine is not None:
            raise BugError("A lease was taken twice.")
        tokens = await self._tokens()
        newest = max(tokens, default=0)
        self._ahead = None
        if newest and (paper := await self._read(newest)) is not None and self._counts(paper):
            self._ahead = paper
            raise self._purpose.refusal(
                f"{paper.holder.name} {self._purpose.doing} now.",
                remedy=f"Try again later; should it have died, in {paper.seconds:.0f} s.",
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
        """Give up a token of the past: whoever took a greater one had deleted the file of ours."""
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
            f"Another process, which was quicker, {self._purpose.doing} now.",
            remedy="Try again later.",
        )

    async def take_patiently(self, on_wait: OnWait | None = None) -> None:
        """Take the lease, and wait for that of a holder which is heard of no more.

        Args:
            on_wait: Called once where it has to wait, with the holder's name and the longest time
                in seconds.

        Raises:
            TailerdError: The purpose's refusal: the holder was heard of, so it lives.
            StorageError: As `take`.
        """
        seen: tuple[int, int] | None = None
        while True:
            try:
                return await self.take()
            except self._purpose.refusal:
                if seen is not None and self._seen != seen:
                    raise
                if seen is None and self._ahead is not None and on_wait is not None:
                    await on_wait(self._ahead.holder.name, self._ahead.seconds)
                seen = self._seen
            await self._clock.sleep(_LOOK_SECONDS)

    async def newest_holder(self) -> str:
        """Return the name of whoever took the lease last, for a person."""
        newest = max(await self._tokens(), default=0)
        paper = await self._read(newest) if newest else None
        return "another process" if paper is None else paper.holder.name

    async def is_mine(self) -> bool:
        """Return whether the lease is still held: nobody has taken a greater token."""
        if self._mine is None:
            return False
        if max(await self._tokens(), default=0) != self._mine.token:
            self._mine = None
        return self._mine is not None

    async def beat(self) -> bool:
        """Renew the lease; return whether it is still held."""
        async with self._changing:
            if not await self.is_mine() or self._mine is None:
                return False
            self._mine = replace(self._mine, beat=self._mine.beat + 1)
            await self._store.put(self._path(self._mine.token), self._mine.to_json())
            return True

    async def rise_above(self, token: int) -> bool:
        """Go on with a token above one found elsewhere; tell whether the lease is still held.

        The file of such a token is gone, or it would count: somebody deleted files of the past.

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
    async def held(
        self,
        *,
        is_patient: bool = False,
        on_wait: OnWait | None = None,
        on_lost: Callable[[], Awaitable[None]] | None = None,
    ) -> AsyncIterator[None]:
        """Hold the lease while inside, and beat.

        Args:
            is_patient: Whether to wait as `take_patiently` does.
            on_wait: As there.
            on_lost: Called when a beat finds that another process has taken the lease: a beat's
                time after that at most, or as soon as the storage answers again. Also where beating
                ends with another error than the storage's.

        Raises:
            TailerdError, StorageError: As `take`.
            Exception: What ended the beating, unless the work inside failed itself.
        """
        await (self.take_patiently(on_wait) if is_patient else self.take())
        is_over = asyncio.Event()
        keeping = asyncio.create_task(self._keep(is_over, on_lost))
        try:
            yield
        finally:
            is_over.set()
            # Not cancelled: a beat that is being written would come after the release. But who ends
            # in an outage of the storage does not wait for it: the lease expires.
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
        """Beat until it is over or the lease is lost; a beat the storage fails is tried again."""
        ending = asyncio.ensure_future(is_over.wait())
        is_held = True
        try:
            while is_held and not is_over.is_set():
                sleeping = asyncio.ensure_future(self._clock.sleep(self._seconds / BEATS_PER_LEASE))
                await asyncio.wait({ending, sleeping}, return_when=asyncio.FIRST_COMPLETED)
                sleeping.cancel()
                if not is_over.is_set():
                    with suppress(StorageError):
                        is_held = await self.beat()
        except Exception:
            # Nobody beats any more, so others will take it.
            is_held = False
            raise
        finally:
            ending.cancel()
            if not is_held and on_lost is not None:
                await on_lost()

    async def release(self, *, within_seconds: float | None = None) -> None:
        """Let others have the lease at once, as far as the storage allows; else it expires."""
        mine, self._mine = self._mine, None
        if mine is None:
            return
        # The file stays: without it tokens would begin again, and fence off nobody.
        done = replace(mine, beat=mine.beat + 1, is_released=True)
        with suppress(StorageError, TimeoutError):
            async with asyncio.timeout(
                RELEASE_SECONDS if within_seconds is None else within_seconds
            ):
                await self._store.put(self._path(mine.token), done.to_json())

    def _counts(self, paper: _LeaseRecord) -> bool:
        """Return whether somebody else's lease has to be respected."""
        if paper.is_released or paper.holder.is_surely_dead(self._holder):
            return False
        now = self._clock.monotonic()
        if self._seen != (paper.token, paper.beat):
            self._seen, self._seen_at = (paper.token, paper.beat), now
        return now - self._seen_at < paper.seconds

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
    """Return what two processes share that can see each other's numbers; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""
