"""The listener over real sockets."""

from __future__ import annotations

import aiohttp
import pytest

from tailerd.config import Address
from tailerd.errors import ConfigError
from tailerd.telemetry import events
from tailerd.telemetry.metrics import Metrics
from tailerd.telemetry.status import StatusBoard
from tailerd.web.pages import Pages
from tailerd.web.server import WebServer
from tests.doubles.sim_clock import SimClock
from tests.telemetry.test_telemetry import DELIVERED, FAILED, STARTED, backlog

LOOPBACK = Address(host="127.0.0.1", port=0)


class Board:
    """Metrics and status that hear the same events."""

    def __init__(self) -> None:
        self.metrics = Metrics(SimClock())
        self.status = StatusBoard([("orders", "arrow")], SimClock())

    def tell(self, *reported: events.Event) -> None:
        for event in reported:
            self.metrics.handle(event)
            self.status.handle(event)

    def server(self, address: Address = LOOPBACK) -> WebServer:
        return WebServer(address, Pages(metrics=self.metrics, status=self.status).routes())


async def get(server: WebServer, path: str, host: str = "") -> tuple[int, str]:
    headers = {"Host": host} if host else {}
    url = f"http://{server.address}{path}"
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return answer.status, await answer.text()


async def test_pages_show_what_was_told() -> None:
    board = Board()
    async with board.server() as server:
        assert await get(server, "/healthz") == (200, "ok\n")
        assert (await get(server, "/readyz"))[0] == 503
        board.tell(STARTED, backlog(0, None), DELIVERED)
        assert await get(server, "/readyz") == (200, "ready\n")
        status, text = await get(server, "/metrics")
        assert status == 200
        assert "tailerd_changes_delivered_rows_total{" in text
        status, text = await get(server, "/status")
        assert (status, '"insert": 5' in text) == (200, True)
        board.tell(FAILED)
        assert await get(server, "/readyz") == (503, "orders: failed\n")
        assert (await get(server, "/nothing"))[0] == 404


async def test_a_port_of_choice_zero_is_a_free_one() -> None:
    async with Board().server() as one, Board().server() as two:
        assert 0 not in (one.address.port, two.address.port)
        assert one.address.port != two.address.port


async def test_a_port_that_is_taken_is_named() -> None:
    async with Board().server() as first:
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{first.address.port}.*free port"):
            async with Board().server(first.address):
                pass


async def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        async with Board().server(Address(host="192.0.2.1", port=0)):
            pass
