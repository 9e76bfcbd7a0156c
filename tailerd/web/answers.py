"""Common parts of all answers: errors as JSON, headers that restrict a browser, shared bodies.

Large answers are serialized once for all callers, and sent without a copy for each of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler

HEADERS: Mapping[str, str] = {
    # Everything from this server, nothing inline; no site may embed the page in a frame.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
        " connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}

_TEXTS = {
    404: ("not_found", "There is nothing at this path."),
    405: ("wrong_method", "This path does not support this method."),
    413: ("too_large", "A request has 16 KiB at most."),
}


def refusal(
    status: int, code: str, message: str, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return an error as JSON."""
    return web.json_response(
        {"error": {"code": code, "message": message}}, status=status, headers=headers
    )


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Put the headers on an answer that is about to be sent, streams and errors included."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    # No cache may keep what one caller may see for another caller.
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers["Server"] = "tailerd"


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn aiohttp's own errors into JSON errors that do not quote the request."""
    try:
        return await handler(request)
    except web.HTTPError as error:
        code, text = _TEXTS.get(error.status, ("refused", error.reason))
        kept = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
        return refusal(error.status, code, text, kept)


FRESH_SECONDS = 1.0
"""Longest time for which further callers share an answer, unless it took more than half of that."""
SERIALIZING_SHARE = 0.05
"""They share it for less if serializing takes no more than this share of the time even so."""
WRITE_SECONDS = 10.0
"""How long sending a piece may take."""
ANSWER_SECONDS = 60.0
"""The same for a whole answer."""
_PIECE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Rendered:
    """A body, and when its serialization began: it includes all earlier events."""

    body: bytes
    began: float


class SharedBody:
    """Serializes a body in a thread, once for all callers while it is fresh.

    A small one stays fresh for some milliseconds, so that a caller who waits for a change sees it
    at once; one of thousands of tables for a second or more.

    Args:
        render: Serializes it; blocking, from any thread.
    """

    def __init__(self, render: Callable[[], bytes]) -> None:
        self._render = render
        self._changes = 0
        self._known: Rendered | None = None
        self._known_changes = 0
        self._fresh_until = 0.0
        self._running: asyncio.Task[None] | None = None

    def expire(self) -> None:
        """Discard the cached body: its content has changed."""
        self._changes += 1

    async def get(self) -> Rendered:
        """Return the body; waits for one that is being serialized."""
        requested = asyncio.get_running_loop().time()
        while True:
            known = self._known
            is_current = known is not None and self._known_changes == self._changes
            if known is not None and is_current:
                now = asyncio.get_running_loop().time()
                if now < self._fresh_until or known.began >= requested:
                    return known
            if self._running is None:
                self._running = asyncio.ensure_future(self._write_down(self._changes))
            # Other callers wait for it too: it continues when this caller is cancelled.
            await asyncio.shield(self._running)

    async def _write_down(self, changes: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            began = loop.time()
            body = await asyncio.to_thread(self._render)
            self._known, self._known_changes = Rendered(body, began), changes
            took = loop.time() - began
            # At least half of the time is left to the deliveries.
            fresh = max(min(FRESH_SECONDS, took / SERIALIZING_SHARE), 2 * took)
            self._fresh_until = began + fresh
        finally:
            self._running = None


async def send_body(
    request: web.Request, body: bytes, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Answer with a body that many readers may share; disconnect one that reads too slowly.

    A transport copies what its socket does not accept: at most one piece.
    """
    answer = web.StreamResponse(headers=headers)
    answer.content_length = len(body)
    transport = request.transport
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await answer.prepare(request)
            if request.method != "HEAD":
                await write_in_pieces(answer.write, body)
    except (ConnectionError, TimeoutError):
        if transport is not None:
            transport.abort()
    return answer


async def write_in_pieces(
    write: Callable[[memoryview], Awaitable[object]],
    body: bytes,
) -> None:
    """Write a body of which the transport never buffers more than a piece.

    Raises:
        TimeoutError: The reader accepted nothing for too long.
        ConnectionError: It disconnected.
    """
    whole = memoryview(body)
    for start in range(0, len(whole), _PIECE_BYTES):
        async with asyncio.timeout(WRITE_SECONDS):
            await write(whole[start : start + _PIECE_BYTES])
