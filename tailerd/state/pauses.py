"""Which pipelines are paused, so that a pause survives a restart: a list of their names."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Set as AbstractSet

from tailerd.errors import StorageError
from tailerd.state.base import StateFiles

_NAME = "paused/names"


class Pauses:
    """The paused pipelines of a state."""

    def __init__(self, files: StateFiles) -> None:
        self._files = files
        self._names: AbstractSet[str] = frozenset()
        self._changing = asyncio.Lock()

    async def load(self) -> None:
        """Read which pipelines are paused, once the state is held.

        Raises:
            StateInUseError: Another process has taken over the state.
            StorageError: The list cannot be read, or is damaged.
        """
        self._names = await self._files.load(_NAME, _parse) or frozenset()

    def is_paused(self, pipeline: str) -> bool:
        """Return whether a pipeline is paused."""
        return pipeline in self._names

    async def pause(self, pipeline: str) -> None:
        """Save durably that a pipeline is paused.

        Raises:
            StateInUseError: Another process has taken over the state.
            StorageError: It cannot be written; the pipeline is not paused.
        """
        async with self._changing:
            await self._save(self._names | {pipeline})

    async def release(self, pipeline: str) -> None:
        """Save durably that a pipeline is not paused; raises as `pause`."""
        async with self._changing:
            await self._save(self._names - {pipeline})

    async def _save(self, names: AbstractSet[str]) -> None:
        await self._files.require_ownership()
        await self._files.save(_NAME, json.dumps(sorted(names)).encode())
        self._names = names


def _parse(text: bytes, location: str) -> AbstractSet[str]:
    try:
        names = json.loads(text)
        if not isinstance(names, list):
            raise TypeError("not a list")
        return frozenset(map(str, names))
    except (ValueError, TypeError, RecursionError) as error:
        raise StorageError(
            f"The list of paused pipelines in {location} is damaged: {error!r}.",
            remedy="Delete it, then no pipeline is paused.",
        ) from error
