"""Reads the full actions of commits, for jobs that go through them more than once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from tailerd.formats.delta.log.log_folder import LogFolder
from tailerd.formats.delta.protocol.commit_file import WholeLines
from tailerd.formats.delta.protocol.full_actions import FullLine, decode_full
from tailerd.formats.delta.protocol.log_path import LogFile

ONE_GET_BYTES = 1024 * 1024
HELD_BYTES = 16 * 1024 * 1024
"""Bytes of small commits that are decoded once and kept for the job."""


class CommitLines:
    """Reads commits of one log; small ones are fetched and decoded once.

    Args:
        log: The table's log.
    """

    def __init__(self, log: LogFolder) -> None:
        self._log = log
        self._held: dict[str, list[list[FullLine]]] = {}
        self._held_bytes = 0

    async def read(self, file: LogFile) -> AsyncIterator[list[FullLine]]:
        """Yield a commit's lines, a slice at a time.

        Raises:
            CorruptLogError: A line does not have the shape of its action.
            FileMissingError: The commit is missing.
        """
        if file.size_bytes <= ONE_GET_BYTES:
            known = self._held.get(file.name)
            if known is None:
                bodies = [await self._log.store.get(self._log.resolve_path(file))]
                known = list(decode_full(file.name, bodies))
                if self._held_bytes + file.size_bytes <= HELD_BYTES:
                    self._held[file.name] = known
                    self._held_bytes += file.size_bytes
            for lines in known:
                yield lines
            return
        blocks = WholeLines(file.name, self._log.memory_bytes)
        async for chunk in self._log.chunks(file):
            block = blocks.feed(chunk)
            for lines in await asyncio.to_thread(list, decode_full(file.name, [block])):
                yield lines
        for lines in decode_full(file.name, [blocks.rest()]):
            yield lines
