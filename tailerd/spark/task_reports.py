"""What tasks of a job report to the driver while the job runs, over a connection of each task.

Spark returns the results of a job when its last task has ended. A delivery must not wait for the
others of its job: its transaction has a time limit. So a task asks before each item whether it may
start it, sends each result at once, and its connection shows when it ends, however it ends.
"""

from __future__ import annotations

import asyncio
import hmac
import pickle
import secrets
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

_TOKEN_BYTES = 32
_CONNECT_SECONDS = 10.0
_YES, _NO = b"y", b"n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportAddress:
    """Where the tasks of a job report. Picklable.

    Attributes:
        host, port: Of the driver.
        token: Proves that a connection comes from a task.
        job: Number of the job.
    """

    host: str
    port: int
    token: bytes
    job: int


@dataclass(eq=False, slots=True, kw_only=True)
class TaskLink:
    """The connection of a running task.

    Attributes:
        job: Number of its job.
        task_id: Spark's id of this attempt of the task.
        item: Index of the item that the task works on; None between two items.
        since: Monotonic time when it started the item.
        is_killed: Whether the driver has ended the task.
        ended: Set when the task's process has closed the connection or died.
    """

    job: int
    task_id: int
    item: int | None = None
    since: float = 0.0
    is_killed: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class ReportReceiver(Protocol):
    """Decides what tasks may start, and gets their results."""

    def may_start(self, link: TaskLink, index: int) -> bool:
        """Return whether a task may start an item."""
        ...

    def receive(self, link: TaskLink, index: int, result: bytes) -> None:
        """Accept the result of an item."""
        ...

    def end(self, link: TaskLink) -> None:
        """Note that a task has ended."""
        ...


class ReportServer:
    """The driver's side; listens between `open` and `close`. Used from one event loop."""

    def __init__(self, receiver: ReportReceiver) -> None:
        self._receiver = receiver
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self._server: asyncio.Server | None = None
        self._opening = asyncio.Lock()

    async def open(self, host: str, job: int) -> ReportAddress:
        """Listen, unless it does; return the address for a job's tasks.

        Raises:
            OSError: The host is not an address of this machine.
        """
        async with self._opening:
            if self._server is None:
                self._server = await asyncio.start_server(self._serve, host, 0)
            port = self._server.sockets[0].getsockname()[1]
        return ReportAddress(host=host, port=port, token=self._token, job=job)

    def close(self) -> None:
        """Refuse further connections."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link: TaskLink | None = None
        try:
            if not hmac.compare_digest(await reader.readexactly(_TOKEN_BYTES), self._token):
                return
            job, task_id, _ = await _read(reader)
            link = TaskLink(job=job, task_id=task_id)
            while True:
                index, is_start, result = await _read(reader)
                if is_start:
                    is_allowed = self._receiver.may_start(link, index)
                    if is_allowed:
                        link.item, link.since = index, time.monotonic()
                    writer.write(_YES if is_allowed else _NO)
                else:
                    self._receiver.receive(link, index, result)
                    link.item = None
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()
            if link is not None:
                link.ended.set()
                self._receiver.end(link)


class TaskReporter:
    """The task's side. Blocking."""

    def __init__(self, address: ReportAddress, task_id: int) -> None:
        """Connect.

        Raises:
            OSError: The driver cannot be reached.
        """
        self._connection = socket.create_connection((address.host, address.port), _CONNECT_SECONDS)
        self._connection.settimeout(None)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection.sendall(address.token)
        self._send(address.job, task_id, b"")

    def may_start(self, index: int) -> bool:
        """Ask whether an item may start; it may not if the driver is gone."""
        try:
            self._send(index, True, b"")
            return self._connection.recv(1) == _YES
        except OSError:
            return False

    def send_result(self, index: int, result: bytes) -> bool:
        """Send the result of an item; return whether that was possible."""
        try:
            self._send(index, False, result)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self._connection.close()

    def _send(self, first: int, second: int, result: bytes) -> None:
        frame = pickle.dumps((first, second, result))
        self._connection.sendall(struct.pack(">I", len(frame)) + frame)


async def _read(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    (size,) = struct.unpack(">I", await reader.readexactly(4))
    first, second, result = pickle.loads(await reader.readexactly(size))
    return first, second, result
