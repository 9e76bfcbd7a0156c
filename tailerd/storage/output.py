"""Files that are written piece by piece and appear at once, however large they are.

`ObjectStore.put` takes a whole body. A store that can do better (`OutputStore`) is asked to; for
any other the pieces wait in a temporary file of this machine.
"""

from __future__ import annotations

import asyncio
import io
import logging
import tempfile
from typing import IO, Protocol, runtime_checkable

from tailerd.errors import AccessDeniedError, CredentialsExpiredError
from tailerd.storage.base import ObjectStore

_logger = logging.getLogger(__name__)


class Output(io.RawIOBase):
    """A file that nobody sees before `finish`. Written by one thread at a time, blocking.

    Errors: `StorageError` and its kinds, from `write` and `finish`.
    """

    size_bytes: int = 0
    """Bytes written so far."""

    def writable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Return the place of the next byte."""
        return self.size_bytes

    async def finish(self, *, if_absent: bool = False) -> None:
        """Let the file appear, whole and durable; as `ObjectStore.put` otherwise.

        Raises:
            FileExistsAlreadyError: With `if_absent`, somebody else was first.
        """
        raise NotImplementedError

    async def discard(self) -> None:
        """Forget what was written, and what is written from now on; nothing after `finish`."""
        raise NotImplementedError


@runtime_checkable
class OutputStore(Protocol):
    """A store that takes a file piece by piece."""

    def open_output(self, path: str) -> Output:
        """Begin a file at `path`, blocking; folders appear as needed."""
        ...

    async def sweep(self, folder: str, before_ms: int) -> int:
        """Delete what writers that died left unfinished in `folder`; return how much there was.

        Args:
            before_ms: Only what was last written before, in milliseconds since the epoch: younger
                files may belong to a writer that is at work.
        """
        ...


def open_output(store: ObjectStore, path: str) -> Output:
    """Begin a file in any store, blocking."""
    return store.open_output(path) if isinstance(store, OutputStore) else SpooledOutput(store, path)


async def sweep(store: ObjectStore, folder: str, before_ms: int) -> int:
    """Delete unfinished files in any store, as `OutputStore.sweep`; 0 where this user may not.

    They are in nobody's way, so nothing else should fail for them: `validate` says what is missing.

    Raises:
        StorageError: As all requests.
    """
    if not isinstance(store, OutputStore):
        return 0
    try:
        return await store.sweep(folder, before_ms)
    except CredentialsExpiredError:
        raise
    except AccessDeniedError as error:
        _logger.debug("Unfinished files are left where they are.", exc_info=error)
        return 0


class SpooledOutput(Output):
    """Pieces wait in a temporary file, and one `put` takes them all."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        """Begin a file."""
        self._store = store
        self._path = path
        self._spool: IO[bytes] | None = tempfile.TemporaryFile()  # noqa: SIM115 - closed by finish

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Take the next piece."""
        size = memoryview(data).nbytes
        if self._spool is not None:
            self._spool.write(data)
            self.size_bytes += size
        return size

    async def finish(self, *, if_absent: bool = False) -> None:
        """Put the file."""
        body = await asyncio.to_thread(self._body)
        await self._store.put(self._path, body, if_absent=if_absent)

    def _body(self) -> bytes:
        assert self._spool is not None
        self._spool.seek(0)
        body = self._spool.read()
        self._spool.close()
        self._spool = None
        return body

    async def discard(self) -> None:
        """Drop the pieces."""
        if self._spool is not None:
            self._spool.close()
            self._spool = None
