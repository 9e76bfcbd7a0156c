"""Splits chunks of a file into blocks of whole lines; a line that exceeds the memory is an error.

Protocol: PROTOCOL.md#delta-log-entries
"""

from __future__ import annotations

from tailerd.changefeed.limits import largest_piece_bytes
from tailerd.errors import CorruptLogError, TooLargeError


class WholeLines:
    """Buffers a line until it is complete.

    Args:
        name: File name for error messages.
        memory_bytes: Memory for reading.
    """

    def __init__(self, name: str, memory_bytes: int) -> None:
        self._name = name
        self._memory_bytes = memory_bytes
        # Pieces are joined once: joining at every chunk would be quadratic in their number.
        self._pieces: list[bytes] = []
        self._held_bytes = 0

    @property
    def has_rest(self) -> bool:
        """Whether more than white space is buffered."""
        return any(piece.strip() for piece in self._pieces)

    def feed(self, chunk: bytes) -> bytes:
        """Return every line completed by `chunk`; empty if there is none.

        Raises:
            CorruptLogError: A too long line has NUL bytes: its data was never written.
            TooLargeError: A line does not fit the memory.
        """
        cut = chunk.rfind(b"\n") + 1
        if not cut:
            self._hold(chunk)
            return b""
        if cut == len(chunk) and not self._pieces:
            return chunk
        whole = b"".join((*self._pieces, chunk[:cut]))
        self._pieces, self._held_bytes = [], 0
        self._hold(chunk[cut:])
        return whole

    def rest(self) -> bytes:
        """Return the buffered bytes and clear the buffer."""
        rest = b"".join(self._pieces)
        self._pieces, self._held_bytes = [], 0
        return rest

    def _hold(self, piece: bytes) -> None:
        if not piece:
            return
        self._pieces.append(piece)
        self._held_bytes += len(piece)
        if self._held_bytes <= largest_piece_bytes(self._memory_bytes):
            return
        has_nuls = b"\0" in self._pieces[0]
        # Free the memory now: a traceback of the error keeps this object alive.
        self._pieces.clear()
        if has_nuls:
            # JSON has no NUL bytes; file systems show them for data that never reached the disk.
            raise CorruptLogError(
                f"{self._name} has NUL bytes where actions of the Delta protocol should be, because"
                " it was damaged or never written whole.",
                remedy="Restore the file from a backup.",
            )
        raise TooLargeError.within(
            self._memory_bytes, f"A line of {self._name} has more than {self._held_bytes >> 20} MiB"
        )
