"""Attacks on the listener: stalled requests, unread answers, guessed tokens."""

from __future__ import annotations

import asyncio
import json
import socket
import tracemalloc
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import aiohttp
import aiohttp.web
import pytest

from tailerd.clock import SystemClock
from tailerd.formats.delta.demo import DEMO
from tailerd.formats.parts import make_demo_table
from tailerd.telemetry import events
from tailerd.telemetry.history import HistoryBoard
from tailerd.telemetry.metrics import Metrics
from tailerd.telemetry.status import StatusBoard
from tailerd.web import answers, connections
from tailerd.web.live import LiveUpdates
from tailerd.web.pages import Pages
from tailerd.web.server import WebServer
from tests.integration.daemon.running import (
    address,
    daemon,
    file_table,
    page,
    write_config,
)
from tests.waiting import PATIENCE_SECONDS, eventually
from tests.web.test_control import LOOPBACK, Steered
from tests.web.test_security import (
    ask,
    send,
    server,
)

pytestmark = pytest.mark.attack


# Large answers


class CountingBoard(StatusBoard):
    """Counts how often its tables are written down."""

    renders = 0

    def to_json(self) -> dict[str, object]:
        self.renders += 1
        return super().to_json()

    def table_json(self, name: str) -> dict[str, object] | None:
        self.renders += 1
        return super().table_json(name)


def board_of(count: int) -> CountingBoard:
    """Return a board with tables whose errors are long."""
    board = CountingBoard([(f"table-{number:04}", "arrow") for number in range(count)], CLOCK)
    for table in board.tables:
        board.handle(failed(table.table, "x" * 4000))
    return board


def failed(table: str, text: str) -> events.PipelineFailed:
    return events.PipelineFailed(table=table, engine="arrow", error_code="table", error=text)


def share_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is with thousands of tables."""
    monkeypatch.setattr(answers, "SERIALIZING_SHARE", 1e-6)


def listener_of(board: StatusBoard) -> WebServer:
    return WebServer(LOOPBACK, Pages(metrics=Metrics(CLOCK), status=board).routes())


CLOCK = SystemClock()


@contextmanager
def unread(listener: WebServer, path: str, count: int) -> Iterator[list[socket.socket]]:
    """Ask for a path over many connections, and read none of the answers."""
    with ExitStack() as stack:
        opened = []
        for _ in range(count):
            each = stack.enter_context(closing(socket.socket()))
            each.connect(("127.0.0.1", listener.address.port))
            each.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            opened.append(each)
        yield opened


@pytest.mark.parametrize(
    ("took", "fresh"), [(0.001, 0.02), (0.01, 0.2), (0.05, 1.0), (0.4, 1.0), (2.0, 4.0)]
)
async def test_what_costs_more_to_write_down_is_shared_for_longer(
    took: float, fresh: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, count = 100.0, 0

    def render() -> bytes:
        nonlocal now, count
        now += took
        count += 1
        return b"%d" % count

    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    body = answers.SharedBody(render)
    assert (await body.get()).body == b"1"
    now = 100.0 + fresh * 0.99
    assert (await body.get()).body == b"1"
    now = 100.0 + fresh * 1.01
    assert (await body.get()).body == b"2"
    body.expire()
    assert (await body.get()).body == b"3"


async def test_many_callers_of_one_second_get_what_was_written_down_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    share_for_a_second(monkeypatch)
    board = board_of(20)
    async with listener_of(board) as listener, aiohttp.ClientSession() as session:

        async def status() -> object:
            async with session.get(f"{listener.url}/status") as answer:
                assert answer.status == 200
                return await answer.json()

        loop = asyncio.get_running_loop()
        began = loop.time()
        found = await asyncio.gather(*(status() for _ in range(200)))
        assert board.renders <= 1 + (loop.time() - began)
    assert all(each == found[0] for each in found)


async def test_the_status_has_a_line_for_each_table_and_says_what_it_said() -> None:
    board = board_of(3)
    async with listener_of(board) as listener:
        answer = await ask(listener, "/status")
    lines = answer.text.splitlines()
    assert len(lines) == 5
    shown = json.loads(answer.text)
    assert shown == json.loads(json.dumps(board.to_json()))
    assert [each["table"] for each in shown["tables"]] == [each.table for each in board.tables]


async def test_answers_that_nobody_reads_take_no_memory_of_their_own() -> None:
    board = board_of(500)
    size_bytes = len(json.dumps(board.to_json()))
    async with listener_of(board) as listener:
        tracemalloc.start()
        try:
            with unread(listener, "/status", 60):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while board.renders < 2:  # noqa: ASYNC110 - a count, not an event
                        await asyncio.sleep(0.05)
                    # All are served in the time of one that reads.
                    answer = await ask(listener, "/status")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert len(answer.text) >= size_bytes
    assert size_bytes > 2_000_000
    assert peak < 12 * size_bytes, "60 readers, each with a copy of its own"


async def test_a_head_of_a_large_answer_has_its_length_and_no_body() -> None:
    async with listener_of(board_of(20)) as listener:
        answer = await ask(listener, "/status", "HEAD")
        assert (answer.status, answer.text) == (200, "")
        assert int(answer.headers["Content-Length"]) > 80_000


@pytest.mark.full
def test_the_status_after_an_action_is_never_from_before_it(tmp_path: Path) -> None:
    make_demo_table(DEMO, tmp_path / "orders")
    config = write_config(tmp_path, orders=file_table(tmp_path / "orders", tmp_path / "out"))
    with daemon(config):
        eventually(lambda: "running" in page(config, "/status"))
        url = f"{address(config)}/pipelines/orders"
        for action, state in (("pause", "paused"), ("resume", ""), ("pause", "paused")):
            before = page(config, "/status")
            request = urllib.request.Request(
                f"{url}/{action}", method="POST", headers={"X-Tailerd": "1"}
            )
            with urllib.request.urlopen(request, timeout=20):
                pass
            after = json.loads(page(config, "/status"))["tables"][0]["state"]
            assert after != json.loads(before)["tables"][0]["state"]
            assert after == state or not state


async def test_pages_that_open_together_share_what_they_begin_with_and_miss_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    share_for_a_second(monkeypatch)
    board = board_of(30)
    live = LiveUpdates(board, HistoryBoard(CLOCK), CLOCK)
    routes = [aiohttp.web.get("/events", live.stream)]
    async with WebServer(LOOPBACK, routes) as listener, aiohttp.ClientSession() as session:
        running = asyncio.ensure_future(live.run())
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                first = await session.get(f"{listener.url}/events")
                await first.content.readuntil(b"\n\n")
                rendered = board.renders
                # Told to those who are there, and after what the next one begins with.
                event = failed("table-0007", "news")
                board.handle(event)
                live.handle(event)
                assert b"news" in await first.content.readuntil(b"\n\n")
                later = [await session.get(f"{listener.url}/events") for _ in range(8)]
                for each in later:
                    text = b""
                    while b"news" not in text:
                        text += await each.content.readuntil(b"\n\n")
        finally:
            running.cancel()
            live.end_pages()
    assert board.renders <= rendered + 30 + 10, "each page had all tables written down"


async def test_the_end_waits_for_no_open_page() -> None:
    live = LiveUpdates(board_of(1), HistoryBoard(CLOCK), CLOCK)
    routes = [aiohttp.web.get("/events", live.stream)]
    async with WebServer(LOOPBACK, routes) as listener, aiohttp.ClientSession() as session:
        page = await session.get(f"{listener.url}/events")
        await page.content.readuntil(b"\n\n")
        assert live.pages == 1
        live.end_pages()
        # No further message is sent: its stream ends without one.
        async with asyncio.timeout(PATIENCE_SECONDS):
            while live.pages:  # noqa: ASYNC110 - a count, not an event
                await asyncio.sleep(0.01)


# Stalled requests, and descriptors

STALLED = (
    b"POST /pipelines/orders/reset HTTP/1.1\r\nHost: localhost\r\nX-Tailerd: 1\r\n"
    b"Content-Length: 100\r\n\r\n{"
)


@pytest.mark.parametrize(
    "request_bytes",
    [
        STALLED,
        STALLED.replace(b"Content-Length: 100", b"Transfer-Encoding: chunked").replace(b"{", b"4"),
        STALLED.replace(b"POST /pipelines/orders/reset", b"GET /status"),
    ],
    ids=["length", "chunks", "get"],
)
async def test_a_body_that_does_not_come_has_a_deadline(
    request_bytes: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "BODY_SECONDS", 0.3)
    steered = Steered()
    async with server(steered) as listener, asyncio.timeout(PATIENCE_SECONDS):
        answers = await asyncio.gather(*(send(listener, request_bytes) for _ in range(20)))
    assert {answer.split(b"\r\n")[0] for answer in answers} == {b"HTTP/1.1 408 Request Timeout"}
    assert steered.requested == []
    assert caplog.records == []


async def test_a_body_that_comes_in_time_is_read_whole() -> None:
    steered = Steered()
    body = b'{"to": "snapshot"}'
    head = STALLED.split(b"Content-Length")[0] + b"Connection: close\r\n"
    async with server(steered) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.address.port)
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body))
        for at in range(len(body)):
            writer.write(body[at : at + 1])
            await writer.drain()
            await asyncio.sleep(0.01)
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert steered.requested == [("reset", "orders", "snapshot")]


@pytest.mark.parametrize("leaves", ["in-its-body", "before-its-answer", "in-its-answer"])
async def test_a_client_that_leaves_is_not_logged(
    leaves: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = b"/status" if leaves == "in-its-answer" else b"/metrics"
    request = b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with listener_of(board_of(1500)) as listener:
        for _ in range(5):
            _, writer = await asyncio.open_connection("127.0.0.1", listener.address.port)
            writer.write(STALLED if leaves == "in-its-body" else request)
            await writer.drain()
            await asyncio.sleep(0.3 if leaves == "in-its-answer" else 0.02)
            writer.transport.abort()
        assert (await ask(listener, "/healthz")).status == 200
    assert caplog.records == []
