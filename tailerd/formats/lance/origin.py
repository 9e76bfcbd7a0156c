"""Identity of a table: it has no id, so it is identified by the oldest version that was seen.

When old versions are cleaned up, the oldest version changes. So a ledger records the first one, and
a later version by which to recognise the table: a table that was dropped and created again has
different transactions under the same numbers.
"""

from __future__ import annotations

import msgspec

from tailerd.errors import OffsetError
from tailerd.formats.lance.protocol.manifest import Manifest
from tailerd.formats.lance.version_log import VersionLog
from tailerd.remedies import RESTART
from tailerd.state.ledger import Ledger

_SAVED_EVERY = 50
"""Versions between two records: the recorded version should be recent enough to still exist."""


class _Known(msgspec.Struct, frozen=True):
    """A ledger's entry: the table's id, and a version by which it is recognised."""

    origin: str
    version: int
    identity: str


class TableOrigin:
    """The id of one table.

    Attributes:
        table_id: The id.
    """

    def __init__(self, ledger: Ledger, table_id: str, number: int, known: _Known | None) -> None:
        self.table_id = table_id
        self._ledger = ledger
        self._number = number
        self._known = known

    @classmethod
    async def open(cls, log: VersionLog, ledger: Ledger) -> TableOrigin:
        """Return the id in the ledger, or derive it from the oldest version.

        Raises:
            OffsetError: The ledger is damaged.
            TableError, StorageError: The table cannot be read.
        """
        numbers = await ledger.numbers()
        number = numbers[-1] if numbers else -1
        for each in reversed(numbers):
            entry = await ledger.load(each)
            if entry is None:
                continue
            known = _decode_entry(entry)
            if await _is_same(log, known):
                return cls(ledger, known.origin, number, known)
            break
        for version in log.versions:
            oldest = await log.find(version)
            # It may be cleaned up concurrently.
            if oldest is not None:
                return cls(ledger, oldest.identity, number, None)
        head = await log.manifest(log.head, lambda: "which was the newest")
        return cls(ledger, head.identity, number, None)

    async def note(self, manifest: Manifest) -> None:
        """Record a version by which to recognise the table, at intervals of `_SAVED_EVERY`."""
        known = self._known
        if known is not None and abs(manifest.version - known.version) < _SAVED_EVERY:
            return
        self._known = _Known(self.table_id, manifest.version, manifest.identity)
        await self._ledger.save(self._number + 1, msgspec.json.encode(self._known))
        self._number += 1
        await self._ledger.forget_before(self._number)


async def _is_same(log: VersionLog, known: _Known) -> bool:
    """Return whether the table is the known one, as far as its versions show."""
    if known.version > log.head:
        return False
    there = await log.find(known.version)
    return there is None or there.identity == known.identity


def _decode_entry(entry: bytes) -> _Known:
    try:
        return msgspec.json.decode(entry, type=_Known)
    except msgspec.MsgspecError as error:
        raise OffsetError(
            f"An entry of the ledger cannot be read: {error}.",
            remedy=f"Restore it from a backup, or {RESTART}.",
        ) from error
