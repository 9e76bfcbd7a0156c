"""Changes on standard output, one JSON object per line. Not durable: for inspection."""

from __future__ import annotations

import sys
from typing import BinaryIO, Self

from tailerd.changefeed.offset import Offset
from tailerd.errors import SinkError
from tailerd.sinks.base import Delivery
from tailerd.sinks.console.config import ConsoleSinkConfig
from tailerd.sinks.resources import EncodeBatch, SinkResources
from tailerd.threads import in_thread


class ConsoleSink:
    """Writes each batch in one call, so that lines of several tables do not mix."""

    def __init__(self, *, encode: EncodeBatch, stream: BinaryIO | None = None) -> None:
        """Write to `stream`, by default the process's standard output."""
        self._encode = encode
        self._stream = stream

    @classmethod
    def from_config(cls, config: ConsoleSinkConfig, resources: SinkResources) -> Self:
        """Build the sink of a table."""
        return cls(encode=resources.encode)

    @property
    def max_in_flight(self) -> int:
        """One: the terminal shows changes in order."""
        return 1

    @property
    def offsets(self) -> None:
        """None: the daemon stores them."""

    async def healthcheck(self) -> None:
        """Standard output needs no check."""

    async def resume(self, offset: Offset) -> None:
        """Do nothing: printed rows cannot be undone."""

    async def write(self, delivery: Delivery) -> int:
        """Print all rows; return their number.

        Raises:
            SinkError: The reader has closed the pipe, or the output cannot be written.
        """
        rows = 0
        async for batch in delivery.batches:
            data = self._encode(batch)
            # A slow reader of the pipe must not stop the other tables.
            await in_thread(self._print, data)
            rows += batch.num_rows
        return rows

    def _print(self, data: bytes) -> None:
        stream = self._stream if self._stream is not None else sys.stdout.buffer
        try:
            stream.write(data)
            stream.flush()
        except OSError as error:
            raise SinkError(
                f"Standard output cannot be written: {error.strerror}.",
                remedy="Keep the reading end of the pipe open, or choose another sink.",
            ) from error

    async def aclose(self) -> None:
        """Leave standard output open: it belongs to the process."""
