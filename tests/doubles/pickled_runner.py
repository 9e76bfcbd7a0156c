"""A `Location` in this process that passes on only what pickling keeps, as an engine's does."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable

from tailerd.pipeline.remote_rows import RemoteAnswer, RemoteWork, do_remote_work
from tailerd.storage.stores import Stores


def nothing_happens() -> None:
    """Let work end as it does."""


class PickledRunner:
    """Does work in a thread.

    Attributes:
        works: What was sent here, one after the other.
    """

    def __init__(self, afterwards: Callable[[], None] = nothing_happens) -> None:
        """Call `afterwards` when work is done; it may raise what the engine does then."""
        self.works: list[RemoteWork] = []
        self._afterwards = afterwards

    async def run(self, work: RemoteWork) -> RemoteAnswer:
        self.works.append(work)
        sent = pickle.dumps(work)

        def do() -> bytes:
            return pickle.dumps(do_remote_work(pickle.loads(sent), Stores()))

        answer = await asyncio.to_thread(do)
        self._afterwards()
        found = pickle.loads(answer)
        assert isinstance(found, RemoteAnswer)
        return found
