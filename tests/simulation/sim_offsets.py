"""Saved offsets that outlive the process, and one process's unreliable way to them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailerd.changefeed.offset import Offset
from tailerd.changefeed.saved_offset import SavedOffset
from tailerd.errors import StorageError
from tests.simulation.chaos import Chaos, Life


@dataclass(slots=True)
class OffsetDisk:
    """What lasts of one table; `history` has every offset ever saved."""

    saved: SavedOffset | None = None
    history: list[Offset] = field(default_factory=list)


def _failed() -> StorageError:
    return StorageError("The offset store failed for a moment.")


class OffsetLink:
    """An offset store as one process sees it; it may fail before it saved, and after."""

    def __init__(self, disk: OffsetDisk, chaos: Chaos, life: Life) -> None:
        self._disk = disk
        self._chaos = chaos
        self._life = life

    async def load(self, pipeline: str) -> SavedOffset | None:
        await self._request()
        return self._disk.saved

    async def save(self, pipeline: str, saved: SavedOffset) -> None:
        await self._request()
        self._disk.saved = saved
        self._disk.history.append(saved.offset)
        await self._request()

    async def _request(self) -> None:
        await self._chaos.pause(self._life)
        self._chaos.may_fail(_failed)
