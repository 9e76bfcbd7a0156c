"""The observed states of a dataset: the newest in memory, the others in a ledger."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from tailerd.changefeed.limits import DEFAULT_MEMORY_BYTES
from tailerd.errors import ConfigError, NotATableError, TableRecreatedError
from tailerd.formats.kartothek.commit_plan import change_source
from tailerd.formats.kartothek.dataset import (
    DatasetAddress,
    FileSizes,
    MetadataFile,
    Reading,
    find_metadata,
    read_dataset,
)
from tailerd.formats.kartothek.spool import FileSpool
from tailerd.formats.kartothek.state import (
    MAX_COMMITS,
    ObservedCommit,
    ObservedState,
    difference,
    observe_state,
    operation,
)
from tailerd.remedies import RESTART
from tailerd.state.ledger import Ledger
from tailerd.storage.base import ObjectStore
from tailerd.threads import in_thread

_STATES_IN_MEMORY = 4
"""Small, because each may have a million keys."""


class DatasetHistory:
    """Observes one dataset and numbers its states. Created by `open`.

    `look` finds a candidate for the next state; `keep` makes it durable.

    Attributes:
        sizes: Of its data files.
        spool: Links files when they are first seen, until no kept state references them; None: no
            links.
    """

    def __init__(
        self,
        store: ObjectStore,
        address: DatasetAddress,
        ledger: Ledger,
        name: str,
        spool: FileSpool | None = None,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
    ) -> None:
        self._store = store
        self._memory_bytes = memory_bytes
        self._address = address
        self._ledger = ledger
        self._name = name
        self._file: MetadataFile | None = None
        self._reading: Reading | None = None
        self._stored: ObservedState | None = None
        self._newest: ObservedState | None = None
        self._states: OrderedDict[int, ObservedState] = OrderedDict()
        self._first: int | None = None
        self.spool = spool
        self.sizes = FileSizes(store, address, spool)

    @classmethod
    async def open(
        cls,
        store: ObjectStore,
        address: DatasetAddress,
        ledger: Ledger,
        name: str,
        spool: FileSpool | None = None,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
    ) -> DatasetHistory:
        """Read the ledger's newest state and the dataset's current one.

        Raises:
            NotATableError: There is no dataset.
            TableError: It is not supported.
            ConfigError: The ledger is of another dataset.
            OffsetError: The ledger is damaged.
            StorageError: The dataset or the ledger cannot be read.
        """
        history = cls(store, address, ledger, name, spool, memory_bytes)
        numbers = await ledger.numbers()
        if numbers:
            history._first = numbers[0]
            history._stored = history._newest = await history._load_state(numbers[-1])
        before = history._stored
        if before is not None and not _belongs_to(before, address):
            raise ConfigError(
                f"The ledger of {name} has states of the dataset {before.uuid}, table"
                f" {before.table}: two tables cannot share one.",
                remedy="Give each table its own `ledger`, or leave it out.",
            )
        try:
            reading = await history._read(None if before is None else before.table)
        except NotATableError:
            if before is not None:
                await ledger.mark_dropped()
            raise
        if before is not None and await ledger.is_marked_dropped():
            await history._found_again(reading, before)
        await history._take(reading)
        if spool is not None:
            await in_thread(spool.add, history.newest.keys)
        return history

    async def _read(self, table_before: str | None) -> Reading:
        return await read_dataset(
            self._store,
            self._address,
            table_before=table_before,
            memory_bytes=self._memory_bytes,
        )

    async def _found_again(self, reading: Reading, before: ObservedState) -> None:
        """Clear the ledger if the dataset was replaced after it was dropped, else its mark."""
        if reading.metadata.creation_time == before.creation_time:
            await self._ledger.unmark_dropped()
            return
        if self.spool is not None:
            for number in await self._ledger.numbers():
                old = await self._load_state(number)
                await in_thread(self.spool.remove, () if old is None else old.keys)
        await self._ledger.clear()
        self._states.clear()
        self._stored = self._newest = self._first = None

    @property
    def newest(self) -> ObservedState:
        """The newest state, kept or not."""
        assert self._newest is not None
        return self._newest

    @property
    def is_durable(self) -> bool:
        """Whether states outlive this process."""
        return self._ledger.is_durable

    @property
    def first_number(self) -> int:
        """Number of the oldest available state."""
        return self.newest.number if self._first is None else self._first

    async def refresh(self) -> None:
        """Poll the dataset for a change; does not make the newest state durable.

        Raises:
            TableRecreatedError: The dataset was dropped.
            TableError: It is not supported.
            StorageError: It cannot be read.
        """
        file = await find_metadata(self._store, self._address)
        if file is not None and file == self._file:
            return
        try:
            reading = await self._read(self.newest.table)
        except NotATableError as error:
            await self._ledger.mark_dropped()
            raise TableRecreatedError(
                f"The dataset {self._name} was dropped: its metadata file no longer exists.",
                remedy=f"If it was created again, {RESTART}.",
            ) from error
        await self._take(reading)

    async def _take(self, reading: Reading) -> None:
        self._file = reading.file
        before = self._stored
        if before is not None and before.digest == reading.digest:
            self._reading, self._newest = None, before
            return
        self._reading = reading
        state = observe_state(
            reading.metadata,
            before=before,
            digest=reading.digest,
            timestamp_ms=reading.file.meta.mtime_ms,
            table=reading.table,
            schema=reading.schema,
        )
        self._newest = await self._with_summary(before, state)

    async def _with_summary(
        self, before: ObservedState | None, after: ObservedState
    ) -> ObservedState:
        files = difference(before, after)
        if self.spool is not None:
            # Before anything else: files may be garbage-collected at any time.
            await in_thread(self.spool.add, files.added)
        commit = ObservedCommit(
            number=after.number,
            timestamp_ms=after.timestamp_ms,
            operation=operation(before, after, files),
            files_added=len(files.added),
            files_removed=len(files.removed),
            bytes_added=-1 if before is None else await self._total(files.added),
            bytes_removed=await self._total(files.removed),
            changes=change_source(before, after, files).value,
        )
        return msgspec.structs.replace(after, commits=[*after.commits, commit][-MAX_COMMITS:])

    async def _total(self, keys: list[str]) -> int:
        sizes = await self.sizes.fetch_sizes(keys)
        return sum(sizes.values()) if len(sizes) == len(keys) else -1

    async def keep(self) -> ObservedState:
        """Make the newest state durable, if it is not, and return it.

        Raises:
            OffsetError: The ledger is damaged.
            StorageError: It cannot be written.
        """
        while self._reading is not None:
            state = self.newest
            if await self._ledger.save(state.number, state.to_bytes()):
                self._stored, self._reading = state, None
                self._first = state.number if self._first is None else self._first
                self._remember(state)
                break
            # Another process saved a state of this number first. The current state follows its
            # newest one; the state read before need not.
            numbers = await self._ledger.numbers()
            self._stored = await self._load_state(max(numbers, default=state.number))
            self._first = min(numbers, default=None)
            self._file = None
            await self.refresh()
        return self.newest

    async def state(self, number: int) -> ObservedState | None:
        """Return a state; None if it does not exist, or no longer.

        Raises:
            OffsetError: The ledger is damaged.
            StorageError: It cannot be read.
        """
        if number == self.newest.number:
            return self.newest
        if number > self.newest.number or number < 0:
            return None
        return await self._load_state(number)

    async def _load_state(self, number: int) -> ObservedState | None:
        known = self._states.get(number)
        if known is None:
            entry = await self._ledger.load(number)
            if entry is None:
                return None
            known = ObservedState.from_bytes(entry)
        self._remember(known)
        return known

    def _remember(self, state: ObservedState) -> None:
        self._states[state.number] = state
        self._states.move_to_end(state.number)
        while len(self._states) > _STATES_IN_MEMORY:
            self._states.popitem(last=False)

    async def forget_before(self, number: int) -> None:
        """Delete states that no delivery needs any longer; the newest is kept.

        Raises:
            StorageError: One cannot be deleted.
        """
        until = self._ledger.agree(min(number, self.newest.number))
        if self._stored is None or until <= self.first_number:
            return
        if self.spool is not None:
            await in_thread(self.spool.remove, await self._list_unneeded(until))
        await self._ledger.forget_before(until)
        for old in [each for each in self._states if each < until]:
            del self._states[old]
        self._first = until

    async def _list_unneeded(self, until: int) -> set[str]:
        """Return the files that only states below a number reference."""
        gone: set[str] = set()
        for number in range(self.first_number, until):
            state = await self.state(number)
            gone.update(() if state is None else state.keys)
        for number in range(until, self.newest.number + 1):
            state = await self.state(number)
            gone.difference_update(() if state is None else state.keys)
        return gone


def _belongs_to(state: ObservedState, address: DatasetAddress) -> bool:
    return state.uuid == address.uuid and address.table in (None, state.table)
