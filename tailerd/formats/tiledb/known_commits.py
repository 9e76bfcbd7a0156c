"""Records which commits were known when an offset was saved, to detect late and vanished ones."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import msgspec
import xxhash

from tailerd.errors import MissingVersionError, OffsetError
from tailerd.formats.tiledb.protocol.commits import Commits
from tailerd.formats.tiledb.protocol.names import TimedName, timed_name
from tailerd.remedies import RESET_PIPELINE
from tailerd.state.ledger import Ledger

_IN_MEMORY = 4


class _Entry(msgspec.Struct, frozen=True):
    array: str
    names: list[str]


@dataclass(frozen=True, slots=True)
class Mark:
    """An offset's reference to the commits that were known.

    Attributes:
        number: Of the ledger's entry.
        digest: Of the names in it.
        shares: Number of shares of a partly delivered snapshot; 0 if there is none.
    """

    number: int
    digest: str
    shares: int = 0

    def to_text(self) -> str:
        """Return the text form in an offset."""
        return f"{self.number}.{self.digest}" + (f"/{self.shares}" if self.shares else "")


def read_mark(text: str) -> Mark | None:
    """Parse the result of `Mark.to_text`; None if no commits were recorded.

    Raises:
        OffsetError: It is not a mark.
    """
    known, _, shares = text.partition("/")
    if not known:
        return None
    number, _, digest = known.partition(".")
    try:
        return Mark(int(number), digest, int(shares or 0))
    except ValueError as error:
        raise OffsetError(
            f"The offset has the mark {text!r}, which is not one of a TileDB array.",
            remedy=RESET_PIPELINE,
        ) from error


class KnownCommits:
    """Sets of commit names, kept in a ledger while a delivery needs them.

    Args:
        ledger: Has one entry for each set.
        array: Identity of the array.
    """

    def __init__(self, ledger: Ledger, array: str) -> None:
        self._ledger = ledger
        self._array = array
        self._sets: OrderedDict[int, frozenset[TimedName]] = OrderedDict()
        self._newest: tuple[int, str] | None = None

    async def keep(self, commits: Commits) -> Mark:
        """Make the current set of commits durable, if it is not, and return its mark.

        Raises:
            OffsetError: The ledger is damaged.
            StorageError: It cannot be written.
        """
        names = sorted(commits.names)
        digest = _digest(names)
        if self._newest is None or self._newest[1] != digest:
            await self._load_newest()
        while self._newest is None or self._newest[1] != digest:
            number = 0 if self._newest is None else self._newest[0] + 1
            entry = msgspec.json.encode(_Entry(self._array, names))
            if await self._ledger.save(number, entry):
                self._newest = (number, digest)
            else:
                # Another process saved this number first.
                await self._load_newest()
        return Mark(self._newest[0], digest)

    async def _load_newest(self) -> None:
        numbers = await self._ledger.numbers()
        if not numbers:
            self._newest = None
            return
        entry = await self._entry(numbers[-1])
        digest = "" if entry is None or entry.array != self._array else _digest(entry.names)
        self._newest = (numbers[-1], digest)

    async def _entry(self, number: int) -> _Entry | None:
        content = await self._ledger.load(number)
        if content is None:
            return None
        try:
            return msgspec.json.decode(content, type=_Entry)
        except msgspec.MsgspecError as error:
            raise OffsetError(
                f"Entry {number} of the ledger is not one of a TileDB array: {error}.",
                remedy="Give each table its own `ledger`, or leave it out.",
            ) from error

    async def read_names(self, mark: Mark) -> frozenset[TimedName]:
        """Return the names that were known when an offset was saved.

        Raises:
            MissingVersionError: The ledger lacks them.
            OffsetError: The ledger is damaged.
        """
        found = self._sets.get(mark.number)
        if found is None:
            entry = await self._entry(mark.number)
            if entry is None or _digest(entry.names) != mark.digest:
                raise MissingVersionError(
                    f"The ledger lacks entry {mark.number}, which says what was committed when the"
                    " offset was saved: it was restored from another copy, or deleted.",
                    remedy=RESET_PIPELINE,
                )
            found = frozenset(
                name for text in entry.names if (name := timed_name(text)) is not None
            )
            self._sets[mark.number] = found
            while len(self._sets) > _IN_MEMORY:
                self._sets.popitem(last=False)
        return found

    async def forget_before(self, mark: Mark) -> None:
        """Delete sets that no offset from this one on needs.

        Raises:
            StorageError: One cannot be deleted.
        """
        await self._ledger.forget_before(mark.number)
        for old in [number for number in self._sets if number < mark.number]:
            del self._sets[old]


def _digest(names: list[str]) -> str:
    return xxhash.xxh3_64_hexdigest("\n".join(sorted(names)).encode())
