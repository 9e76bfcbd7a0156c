"""The files of a state in an object store, which a lease protects; nothing stays on this machine.

Each save creates a new file, `<name>/<number>.json`, under an unused number; the greatest number is
current. A daemon that takes over the state rewrites a file under the next number, with the token of
its lease, before it uses it. A daemon that was suspended meanwhile then finds its number in use. If
that file was deleted since, the listing after the write shows a greater number. The two newest
files are kept.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tailerd.clock import Clock
from tailerd.errors import (
    AccessDeniedError,
    BugError,
    FileExistsAlreadyError,
    FileMissingError,
    StateInUseError,
    StorageError,
)
from tailerd.state.base import Parse, ScratchLocation, StateObserver, T
from tailerd.storage.base import FileMeta, ObjectStore
from tailerd.storage.lease import LEASE_SECONDS, Holder, Lease, Purpose

FORMAT = 1
"""Format of the envelope around the content, which has its own format."""

_PURPOSE = Purpose(folder="lease", doing="works on this state", refusal=StateInUseError)
_SUFFIX = ".json"
_RETAINED_FILES = 2
_ATTEMPTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One file: its content (None: only claimed), and the lease of its writer."""

    token: int
    holder: str
    body: bytes | None

    def to_json(self) -> bytes:
        fields = {"format": FORMAT, "token": self.token, "holder": self.holder, "saved": None}
        envelope = json.dumps(fields).encode()
        return (envelope if self.body is None else envelope[:-5] + self.body + b"}") + b"\n"

    @classmethod
    def from_json(cls, text: bytes) -> _Entry:
        """Read what `to_json` wrote; raise an error of `_DAMAGE` if it is damaged."""
        fields = json.loads(text)
        if fields["format"] != FORMAT:
            raise ValueError(f"format {fields['format']!r} is of another release")
        saved = fields["saved"]
        return cls(
            token=int(fields["token"]),
            holder=str(fields["holder"])[:200],
            body=None if saved is None else json.dumps(saved).encode(),
        )


_DAMAGE = (ValueError, KeyError, TypeError, OverflowError, RecursionError)


class LeasedFiles:
    """A `StateFiles` below a folder of an object store.

    Args:
        store, root: Where.
        lease: Protects them; `make_lease` returns it.
    """

    def __init__(self, store: ObjectStore, root: str, lease: Lease) -> None:
        self.store = store
        self.root = root
        self._lease = lease
        self._is_held = False
        self._scratch: Path | None = None
        self._numbers: dict[str, int] = {}

    @property
    def token(self) -> int | None:
        """The token of the lease; None without it."""
        return self._lease.token if self._is_held else None

    @asynccontextmanager
    async def hold(self, observer: StateObserver | None = None) -> AsyncIterator[None]:
        """Hold the lease while inside, after waiting for the lease of a dead daemon to expire.

        Raises:
            StateInUseError: Another process holds it, and is alive.
            StorageError: The store cannot be read or written, or has no conditional writes.
        """
        with tempfile.TemporaryDirectory(
            prefix="tailerd-spool-", ignore_cleanup_errors=True
        ) as scratch:
            on_wait = None if observer is None else observer.on_wait
            on_lost = None if observer is None else partial(self._report_loss, observer)
            async with self._lease.hold(is_patient=True, on_wait=on_wait, on_lost=on_lost):
                if observer is not None:
                    observer.on_hold()
                self._is_held, self._scratch, self._numbers = True, Path(scratch), {}
                try:
                    yield
                finally:
                    self._is_held = False

    async def _report_loss(self, observer: StateObserver) -> None:
        holder = "another process"
        with suppress(StorageError):
            holder = await self._lease.newest_holder()
        observer.on_lost(_lost_to(holder))

    async def require_ownership(self) -> int:
        """Return the token, after a look at the lease's files.

        Raises:
            StateInUseError: Another process has taken over the state.
            StorageError: The lease's files cannot be listed.
        """
        self._require_hold()
        await self._lease.is_mine()
        return await self._require_token()

    async def load(self, name: str, parse: Parse[T]) -> T | None:
        """Return the parsed content of a file, and take it over.

        Raises:
            StateInUseError: Another process has taken over the state.
            StorageError: The store cannot be read or written.
        """
        for _ in range(_ATTEMPTS):
            newest = await self._find_newest(name)
            number, entry, found = 0, None, None
            if newest is not None:
                number = _number(newest[0])
                entry, found = self._read(*newest, parse)
            if not self._is_held:
                return found
            token = await self._require_token(entry)
            if entry is not None and entry.token == token:
                self._numbers[name] = number
                return found
            body = None if entry is None else entry.body
            if await self._create(name, number + 1, self._make_entry(token, body)):
                return found
        raise self._explain_contention(name)

    def _read(self, file: FileMeta, text: bytes, parse: Parse[T]) -> tuple[_Entry, T | None]:
        location = self.store.format_url(file.path)
        try:
            entry = _Entry.from_json(text)
        except _DAMAGE as error:
            # Its own error, with its own remedy.
            parse(text, location)
            raise StorageError(f"{location} is damaged: {error!r}.") from error
        return entry, None if entry.body is None else parse(entry.body, location)

    async def save(self, name: str, body: bytes) -> None:
        """Create the next file of a name, and delete those no longer needed.

        Raises:
            StateInUseError: Another process has taken over the state; nothing was saved.
            StorageError: The store cannot be written.
        """
        self._require_hold()
        for _ in range(_ATTEMPTS):
            number, entry = self._numbers.get(name), None
            if number is None:
                number = 0
                newest = await self._find_newest(name)
                if newest is not None:
                    number = _number(newest[0])
                    # A damaged file is replaced.
                    with suppress(*_DAMAGE):
                        entry = _Entry.from_json(newest[1])
            token = await self._require_token(entry)
            if await self._create(name, number + 1, self._make_entry(token, body)):
                return
            # In use by another daemon, or by a cancelled save of this one.
            self._numbers.pop(name, None)
        raise self._explain_contention(name)

    def restore_remedy(self, name: str) -> str:
        """Return how to use the previous file."""
        return "delete that file to use the previous one"

    def scratch(self, pipeline: str) -> ScratchLocation:
        """Return the pipeline's folder in the store, and a local one for its copy."""
        if self._scratch is None:
            raise BugError("A snapshot's file list was requested without holding the state.")
        return ScratchLocation(
            store=self.store,
            prefix=f"{self.root}/spool/{pipeline}",
            folder=self._scratch / pipeline,
            require_ownership=self.require_ownership,
        )

    def _make_entry(self, token: int, body: bytes | None) -> _Entry:
        return _Entry(token=token, holder=self._lease.holder_name, body=body)

    async def _create(self, name: str, number: int, entry: _Entry) -> bool:
        """Create a file and return True; False if its number is in use."""
        path = self._path(name, number)
        try:
            await self.store.put(path, entry.to_json(), if_absent=True)
        except FileExistsAlreadyError:
            return False
        files = await self._list(name)
        if any(_number(file) > number for file in files):
            # The number was free only because other daemons wrote newer files and pruned it.
            await self.store.delete(path)
            return False
        self._numbers[name] = number
        for file in files:
            if _number(file) <= number - _RETAINED_FILES:
                await self._delete(file)
        return True

    async def _delete(self, file: FileMeta) -> None:
        try:
            await self.store.delete(file.path)
        except AccessDeniedError:
            raise
        except StorageError:
            # The content is saved: a failed cleanup must not cause redelivery. The next save
            # finds the file too.
            return

    def _path(self, name: str, number: int) -> str:
        return f"{self.root}/{name}/{number:020}{_SUFFIX}"

    async def _list(self, name: str) -> list[FileMeta]:
        return [
            file
            async for file in self.store.list_from(f"{self.root}/{name}")
            if file.name.endswith(_SUFFIX) and file.name.removesuffix(_SUFFIX).isdecimal()
        ]

    async def _find_newest(self, name: str) -> tuple[FileMeta, bytes] | None:
        """Return the newest file and its text; None if there is none."""
        own = self._numbers.get(name)
        for _ in range(_ATTEMPTS):
            files = await self._list(name)
            if own is not None and all(_number(file) < own for file in files):
                # The listing is behind.
                files.append(FileMeta(self._path(name, own), 0, 0))
                own = None
            if not files:
                return None
            newest = max(files, key=_number)
            # Saved twice since the listing, or the listing is behind.
            with suppress(FileMissingError):
                return newest, await self.store.get(newest.path)
        # Not fatal: only the lease and the tokens say that another daemon has the state.
        raise StorageError(
            f"The listing of {self.store.format_url(f'{self.root}/{name}')} names files that"
            " no longer exist: it is behind, or another daemon writes this state.",
            remedy="A daemon retries automatically. If the error stays, run one daemon for one"
            " `state`.",
        )

    def _require_hold(self) -> None:
        if not self._is_held:
            raise BugError(f"The state {self.root} was to be written without holding it.")

    async def _require_token(self, entry: _Entry | None = None) -> int:
        """Return the lease's token, unless another daemon has a greater one.

        Raises:
            StateInUseError: Another daemon has.
        """
        lease = self._lease
        if lease.token is None:
            raise _lost_to(await lease.newest_holder())
        # Of another daemon, or of an earlier lease whose file was deleted since.
        if entry is not None and entry.token > lease.token:
            is_mine = await lease.raise_token(entry.token)
            if not is_mine or lease.token is None:
                raise _lost_to(entry.holder)
        return lease.token

    def _explain_contention(self, name: str) -> StateInUseError:
        return StateInUseError(
            f"{self.store.format_url(f'{self.root}/{name}')} changes with every read, so another"
            " daemon writes it.",
            remedy="Run one daemon for one `state`.",
        )


def make_lease(
    store: ObjectStore,
    root: str,
    *,
    clock: Clock,
    seconds: float = LEASE_SECONDS,
    holder: Holder | None = None,
) -> Lease:
    """Return the lease of a state; arguments as those of `Lease`."""
    return Lease(
        store,
        root,
        clock=clock,
        seconds=seconds,
        holder=holder,
        purpose=_PURPOSE,
        # Files keep tokens longer than lifecycle rules may keep the lease's files.
        first_token=clock.now_ms(),
    )


def _lost_to(holder: str) -> StateInUseError:
    """Return the error with which a daemon ends when another one has taken over its state."""
    return StateInUseError(
        f"The state of this daemon was taken over by {holder}, because its lease"
        " was not renewed in time. Its offsets are no longer valid.",
        remedy="Run one daemon for one `state`; start this one again when that one has ended.",
    )


def _number(file: FileMeta) -> int:
    return int(file.name.removesuffix(_SUFFIX))
