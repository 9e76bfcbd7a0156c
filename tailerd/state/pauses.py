"""Which pipelines are paused and who paused them, so that a pause survives a restart."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

from tailerd.errors import StorageError
from tailerd.state.base import StateFiles

_NAME = "paused/names"
_FORMAT = 1


class Pauses:
    """The paused pipelines of a state."""

    def __init__(self, files: StateFiles) -> None:
        self._files = files
        self._pauses: Mapping[str, str] = {}
        self._changing = asyncio.Lock()

    async def load(self) -> None:
        """Read which pipelines are paused, once the state is held.

        Raises:
            StateInUseError: Another process has taken over the state.
            StorageError: The list cannot be read, or is damaged.
        """
        self._pauses = await self._files.load(_NAME, _parse) or {}

    def is_paused(self, pipeline: str) -> bool:
        """Return whether a pipeline is paused."""
        return pipeline in self._pauses

    def paused_by(self, pipeline: str) -> str:
        """Return who paused a pipeline; empty if nobody did, or it is not known."""
        return self._pauses.get(pipeline, "")

    async def pause(self, pipeline: str, by: str = "") -> None:
        """Save durably that a pipeline is paused, and by whom.

        Raises:
            StateInUseError: Another process has taken over the state.
            StorageError: It cannot be written; the pipeline is not paused.
        """
        async with self._changing:
            await self._save({**self._pauses, pipeline: by})

    async def release(self, pipeline: str) -> None:
        """Save durably that a pipeline is not paused; raises as `pause`."""
        async with self._changing:
            await self._save({name: by for name, by in self._pauses.items() if name != pipeline})

    async def _save(self, pauses: Mapping[str, str]) -> None:
        await self._files.require_ownership()
        content = {"format": _FORMAT, "paused": dict(pauses)}
        await self._files.save(_NAME, json.dumps(content, sort_keys=True).encode())
        self._pauses = pauses


def _parse(text: bytes, location: str) -> Mapping[str, str]:
    try:
        content = json.loads(text)
        if content["format"] != _FORMAT:
            raise ValueError(f"format {content['format']} is of another release")
        return {name: str(by) for name, by in content["paused"].items()}
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise StorageError(
            f"The list of paused pipelines in {location} is damaged: {error!r}.",
            remedy="Delete it, then no pipeline is paused.",
        ) from error
