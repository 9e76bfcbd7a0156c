"""Common parts of all answers: errors as JSON, and headers that restrict a browser."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web
from aiohttp.typedefs import Handler

HEADERS: Mapping[str, str] = {
    # Everything from this server, nothing inline; no site may embed the page in a frame.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
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
    """Turn aiohttp's own errors into JSON errors that quote nothing of the request."""
    try:
        return await handler(request)
    except web.HTTPError as error:
        code, text = _TEXTS.get(error.status, ("refused", error.reason))
        kept = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
        return refusal(error.status, code, text, kept)
