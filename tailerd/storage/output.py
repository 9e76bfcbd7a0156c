"""Files that are written in chunks and appear atomically, at any size.

`ObjectStore.put` takes a whole body. A store that accepts chunks (`OutputStore`) receives them; for
any other they are spooled to a local temporary file.
"""

from __future__ import annotations

import io
import logging
import tempfile
from typing import IO, Protocol, runtime_checkable

from tailerd.errors import AccessDeniedError, CredentialsExpiredError
from tailerd.storage.base import ObjectStore
from tailerd.threads import in_thread

_logger = logging.getLogger(__name__)


class Output(io.RawIOBase):
    """A file that is invisible until `finish`. Written by one thread at a time, blocking.

    Errors: `StorageError` and its kinds, from `write` and `finish`.
    """

    size_bytes: int = 0
    """Bytes written so far."""

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position of the next byte."""
        return self.size_bytes

    async def finish(self, *, if_absent: bool = False) -> None:
        """Make the file visible, complete and durable; otherwise as `ObjectStore.put`.

        Raises:
            FileExistsAlreadyError: With `if_absent`, another writer was first.
        """
        raise NotImplementedError

    async def discard(self) -> None:
        """Discard past and future writes; does nothing after `finish`."""
        raise NotImplementedError


@runtime_checkable
class OutputStore(Protocol):
    """A store that accepts a file in chunks."""

    def open_output(self, path: str) -> Output:
        """Start a file at `path`, blocking; missing folders are created."""
        ...

    async def sweep(self, folder: str, before_ms: int) -> int:
        """Delete unfinished files of dead writers in `folder`; return how many there were.

        Args:
            before_ms: Only those last written before, in milliseconds since the epoch: younger
                files may belong to an active writer.
        """
        ...


def open_output(store: ObjectStore, path: str) -> Output:
    """Start a file in any store, blocking."""
    return store.open_output(path) if isinstance(store, OutputStore) else SpooledOutput(store, path)


async def sweep(store: ObjectStore, folder: str, before_ms: int) -> int:
    """Delete unfinished files in any store, as `OutputStore.sweep`; 0 where this user may not.

    They are harmless, so a missing right is no error here: `validate` reports it.

    Raises:
        StorageError: A request failed.
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
    """Spools chunks to a temporary file and writes them with one `put`."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        """Start a file."""
        self._store = store
        self._path = path
        self._spool: IO[bytes] | None = tempfile.TemporaryFile()  # noqa: SIM115 - closed by finish

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Append the next chunk."""
        size = memoryview(data).nbytes
        if self._spool is not None:
            self._spool.write(data)
            self.size_bytes += size
        return size

    async def finish(self, *, if_absent: bool = False) -> None:
        """Put the file."""
        body = await in_thread(self._body)
        await self._store.put(self._path, body, if_absent=if_absent)

    def _body(self) -> bytes:
        assert self._spool is not None
        self._spool.seek(0)
        body = self._spool.read()
        self._spool.close()
        self._spool = None
        return body

    async def discard(self) -> None:
        """Drop the chunks."""
        if self._spool is not None:
            self._spool.close()
            self._spool = None
