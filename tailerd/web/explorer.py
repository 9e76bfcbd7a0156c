"""`/tables/{name}/commits`, `/growth` and `/keys`: queries of a table's log and of its rows."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import wraps
from typing import TYPE_CHECKING

from aiohttp import web

from tailerd.errors import TableError, TailerdError, UsageError
from tailerd.formats.growth import Growth, TableSize
from tailerd.pipeline.table_explorer import TableExplorer
from tailerd.web.answers import refusal, send_body

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_MAX_DIGITS = 18
_JSON = {"Content-Type": "application/json; charset=utf-8"}
_Handler = Callable[["ExplorerRoutes", web.Request], Awaitable["DataclassInstance"]]


def _answer(
    handler: _Handler,
) -> Callable[[ExplorerRoutes, web.Request], Awaitable[web.StreamResponse]]:
    """Write down what `handler` returns, and errors as everywhere."""

    @wraps(handler)
    async def answered(routes: ExplorerRoutes, request: web.Request) -> web.StreamResponse:
        try:
            found = await handler(routes, request)
        except UsageError as error:
            return refusal(400, error.code, str(error))
        except TailerdError as error:
            status = 404 if isinstance(error, TableError) and not error.retryable else 503
            return refusal(status, error.code, str(error))
        return await send_body(request, json.dumps(asdict(found)).encode(), _JSON)

    return answered


class ExplorerRoutes:
    """Answers questions about the commits and rows of tables.

    Attributes:
        explorer: What reads the tables; None before the daemon has its configuration.
    """

    def __init__(
        self, unknown: Callable[[str], web.Response | None], size: Callable[[str], TableSize | None]
    ) -> None:
        """Initialize.

        Args:
            unknown: Returns a refusal for an unknown table.
            size: Returns the size of a table; None before it was measured.
        """
        self.explorer: TableExplorer | None = None
        self._unknown = unknown
        self._size = size

    @property
    def is_showing_rows(self) -> bool:
        """Return whether anybody may see rows."""
        return self.explorer is not None and self.explorer.is_showing_rows

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/tables/{name}/commits", self._require_table(self.commits)),
            web.get("/tables/{name}/commits/{version}", self._require_table(self.commit)),
            web.get("/tables/{name}/growth", self._require_table(self.growth)),
            web.get("/tables/{name}/keys", self._require_table(self.keys)),
        ]

    def _require_table(
        self, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def known(request: web.Request) -> web.StreamResponse:
            if (refused := self._unknown(request.match_info["name"])) is not None:
                return refused
            if self.explorer is None:
                return refusal(503, "starting", "The daemon is still starting; try again.")
            return await handler(request)

        return known

    @_answer
    async def commits(self, request: web.Request) -> DataclassInstance:
        """Show commits of a table's log, newest first, after the newest `skip`."""
        assert self.explorer is not None
        skip = _number(request.query.get("skip", "0"), "skip")
        return await self.explorer.commits(request.match_info["name"], skip)

    @_answer
    async def growth(self, request: web.Request) -> DataclassInstance:
        """Show how a table grew and may go on, as `tailerd growth --json` does."""
        return await self.read_growth(request.match_info["name"])

    async def read_growth(self, name: str) -> Growth:
        """Return how a table grew, from its log.

        Raises:
            UsageError: Its size is not known.
            TailerdError: The log cannot be read.
        """
        assert self.explorer is not None
        size = self._size(name)
        if size is None:
            raise UsageError(
                "The size of this table is not known.",
                remedy="Wait until it was measured, and set `table_metrics: true`.",
            )
        return await self.explorer.growth(name, size)

    @_answer
    async def commit(self, request: web.Request) -> DataclassInstance:
        """Show a commit and its rows after the first `skip`."""
        assert self.explorer is not None
        version = _number(request.match_info["version"], "the version")
        skip = _number(request.query.get("skip", "0"), "skip")
        return await self.explorer.commit(request.match_info["name"], version, skip)

    @_answer
    async def keys(self, request: web.Request) -> DataclassInstance:
        """Show changes of the rows that have `value` in `column`, below the version `before`."""
        assert self.explorer is not None
        column, value = request.query.get("column", ""), request.query.get("value")
        if not column or value is None:
            raise UsageError("`column` and `value` are needed.")
        before = request.query.get("before")
        below = None if before is None else _number(before, "before")
        return await self.explorer.key_history(request.match_info["name"], column, value, below)


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > _MAX_DIGITS:
        raise UsageError(f"{what} is {text[:40]!r}, which is not a number.")
    return int(text)
