"""The offset of each pipeline whose sink does not keep it: the JSON of `SavedOffset`."""

from __future__ import annotations

from functools import partial

from tailerd.changefeed.saved_offset import SavedOffset
from tailerd.state.base import StateFiles

_FOLDER = "offsets"


class Offsets:
    """An `OffsetStore` in the files of a state."""

    def __init__(self, files: StateFiles) -> None:
        self._files = files

    async def load(self, pipeline: str) -> SavedOffset | None:
        """Return the last saved offset.

        Raises:
            OffsetError: It is damaged, or a newer release wrote it.
            StateInUseError, StorageError: As `StateFiles.load`.
        """
        return await self._files.load(f"{_FOLDER}/{pipeline}", partial(self._parse, pipeline))

    def _parse(self, pipeline: str, text: bytes, location: str) -> SavedOffset:
        restore = self._files.restore_remedy(pipeline)
        fix = f"Reset it with `tailerd offsets reset {pipeline} --to ...`, or {restore}."
        return SavedOffset.from_json(text, place=f"The offset file {location}", fix=fix)

    async def save(self, pipeline: str, saved: SavedOffset) -> None:
        """Save an offset durably.

        Raises:
            StateInUseError: Another process has taken over the state; nothing was saved.
            StorageError: It cannot be written; what was saved before is still there.
        """
        await self._files.save(f"{_FOLDER}/{pipeline}", saved.to_json().encode())
