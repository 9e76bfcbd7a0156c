"""An event loop in a separate thread: asynchronous work for blocking callers.

The caller's thread may run a loop itself, as in notebooks, and cannot run a second one.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

_T = TypeVar("_T")


class LoopThread:
    """A loop that runs while inside; for one caller at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="tailerd-loop", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        # Python ends daemon threads before it finalizes objects that a program left open, and a
        # finalizer that waited for this thread would never return.
        atexit.register(self._stop)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        atexit.unregister(self._stop)
        self._stop()

    def _stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _serve(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        loop.run_forever()
        pending = asyncio.all_tasks(loop)
        for task in pending:
            task.cancel()
        if pending:
            loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine to its end; raise its error.

        If the caller is interrupted meanwhile, the coroutine is cancelled.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncIterator[_T]) -> Iterator[_T]:
        """Yield the items of an asynchronous iterator, which is closed when the iteration is left.

        One task reads all items: an asynchronous generator must close its contexts in the task that
        opened them.
        """
        requested: asyncio.Queue[bool] = asyncio.Queue()
        given: asyncio.Queue[tuple[_T] | None] = asyncio.Queue()

        async def read() -> None:
            try:
                while await requested.get():
                    item = await anext(items, _NO_MORE)
                    if item is _NO_MORE:
                        return
                    given.put_nowait((item,))
            finally:
                close = getattr(items, "aclose", None)
                if close is not None:
                    await close()
                given.put_nowait(None)

        async def begin() -> asyncio.Task[None]:
            return asyncio.create_task(read())

        async def following() -> tuple[_T] | None:
            requested.put_nowait(True)
            return await given.get()

        async def ended() -> None:
            if not reading.done():
                reading.cancel()
            await asyncio.wait([reading])
            if not reading.cancelled():
                reading.result()

        reading = self.run(begin())
        try:
            while (found := self.run(following())) is not None:
                yield found[0]
        finally:
            if self._thread.is_alive():
                self.run(ended())


_NO_MORE: Any = object()
