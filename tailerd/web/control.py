"""The routes that make changes: pause, resume and reset of one pipeline.

Access is checked before they are reached, in `access.py`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from functools import wraps
from typing import Protocol

from aiohttp import web

from tailerd.config.values import check_start, parse_start
from tailerd.errors import TailerdError, UsageError
from tailerd.pipeline.reset import Reset
from tailerd.pipeline_names import is_named
from tailerd.registry import suggest_name
from tailerd.web.access import CONTROL_HEADER
from tailerd.web.answers import refusal


class Control(Protocol):
    """The pipelines that the routes control, by configured name."""

    @property
    def names(self) -> Sequence[str]:
        """All pipelines."""
        ...

    def can_reset(self, name: str) -> bool:
        """Return whether `reset` can move a pipeline's offset."""
        ...

    async def pause(self, name: str, by: str = "") -> None:
        """Let a pipeline finish deliveries in flight and pause it, also over restarts.

        Args:
            name: The pipeline.
            by: Who pauses it; empty if it is not known.
        """
        ...

    async def resume(self, name: str) -> None:
        """Resume a pipeline at its saved offset."""
        ...

    async def preview_reset(self, name: str, to: str) -> Reset:
        """Return what `reset` would do; changes nothing."""
        ...

    async def reset(self, name: str, to: str) -> Reset:
        """Move a pipeline's offset and resume there."""
        ...


_MOST_LETTERS = 64
"""Longest description of a caller, in characters."""

_Handler = Callable[["ControlRoutes", web.Request], Awaitable[web.Response]]


def _guard(handler: _Handler) -> _Handler:
    """Check that the pipeline exists before `handler` runs, and return errors as JSON."""

    @wraps(handler)
    async def guarded(routes: ControlRoutes, request: web.Request) -> web.Response:
        unknown = routes.unknown(request)
        if unknown is not None:
            return unknown
        try:
            answer = await handler(routes, request)
        except UsageError as error:
            return refusal(400, error.code, str(error))
        except TailerdError as error:
            answer = refusal(503 if error.retryable else 409, error.code, str(error))
        # Also after a failure: a part may have been done.
        routes.on_change()
        return answer

    return guarded


class ControlRoutes:
    """Handles requests that make changes."""

    def __init__(self, control: Control, on_change: Callable[[], None] = lambda: None) -> None:
        """Initialize.

        Args:
            control: The pipelines.
            on_change: Called after each request, before its answer, so that the next status request
                shows its effect.
        """
        self._control = control
        self.on_change = on_change

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.post("/pipelines/{name}/pause", self.pause),
            web.post("/pipelines/{name}/resume", self.resume),
            web.post("/pipelines/{name}/reset", self.reset),
        ]

    def unknown(self, request: web.Request) -> web.Response | None:
        """Return a refusal for an unknown pipeline; None for a known one."""
        name = request.match_info["name"]
        if not self._named(name):
            remedy = suggest_name(name, self._control.names)
            return refusal(404, "unknown_pipeline", f"There is no table {name!r}. {remedy}".strip())
        return None

    def _named(self, name: str) -> list[str]:
        """Return the pipelines of a name: itself, or those of all sinks of a table."""
        return [each for each in self._control.names if is_named(each, name)]

    @_guard
    async def pause(self, request: web.Request) -> web.Response:
        """Pause a pipeline; answered when it has stopped."""
        name = request.match_info["name"]
        for each in self._named(name):
            await self._control.pause(each, _caller(request))
        return web.json_response({"table": name, "state": "paused"})

    @_guard
    async def resume(self, request: web.Request) -> web.Response:
        """Resume a pipeline."""
        name = request.match_info["name"]
        for each in self._named(name):
            await self._control.resume(each)
        return web.json_response({"table": name, "state": "starting"})

    @_guard
    async def reset(self, request: web.Request) -> web.Response:
        """Move a pipeline's offset; answered when the new one is saved.

        With `preview` nothing moves; the answer has the new offset and the versions to skip.
        """
        name = request.match_info["name"]
        if name not in self._control.names:
            names = ", ".join(self._named(name))
            raise UsageError(f"{name} has several sinks.", remedy=f"Name one of them: {names}.")
        body = await _body(request)
        to = _location(body)
        if not self._control.can_reset(name):
            return refusal(
                409,
                "offset_not_ours",
                f"The offset of {name} is kept by Spark in its checkpoint, and moving it under a"
                " query would lose or double rows. Stop the daemon and run `tailerd offsets reset"
                f" {name}`, which shows the remedy.",
            )
        move = self._control.preview_reset if body.get("preview") else self._control.reset
        reset = await move(name, to)
        skipped = (
            None if reset.skipped is None else {**asdict(reset.skipped), "text": str(reset.skipped)}
        )
        return web.json_response(
            {"table": name, "offset": json.loads(reset.offset.to_json()), "skipped": skipped}
        )


def _caller(request: web.Request) -> str:
    """Return who sent a request, from its own description; for people to read, not for access."""
    words = request.headers.get(CONTROL_HEADER, "")
    shown = "".join(letter for letter in words if letter.isprintable()).strip()[:_MOST_LETTERS]
    return f"a request from {request.remote}" if shown in ("", "1") else shown


async def _body(request: web.Request) -> dict[str, object]:
    try:
        body = await request.json()
    except (ValueError, LookupError, RecursionError):
        body = None
    if not isinstance(body, dict) or not {"to"} <= set(body) <= {"to", "preview"}:
        raise UsageError(
            "The body is not a JSON object with the field `to`, and perhaps `preview`.",
            remedy='Send {"to": "snapshot"}.',
        )
    return body


def _location(body: dict[str, object]) -> str:
    to = body["to"]
    if isinstance(to, float) or to is None or not isinstance(body.get("preview", False), bool):
        raise UsageError("`to` is not a valid starting point.", remedy='Send {"to": "snapshot"}.')
    try:
        return check_start(str(parse_start(to)))
    except ValueError as error:
        raise UsageError(f"`to` is {str(to)[:80]!r}, but {error}.") from error
