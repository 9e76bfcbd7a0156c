"""One request after the other over real sockets, with answers good and bad."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tailerd.storage.s3.connection_pool import (
    ConnectionEndedError,
    Host,
    HttpConnectionPool,
    NotUnderstoodError,
)
from tailerd.storage.s3.hedge import Hedge

ASKED = b"GET /a HTTP/1.1\r\nhost: h\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: x:y\r\n\r\nhello"


class Server:
    """Answers each request with the next of its answers, in the pieces given, then hangs up.

    An answer of None: it only hangs up. `stays`: it does not hang up.
    """

    def __init__(self, answers: list[list[bytes] | None], *, stays: bool) -> None:
        self.connections = 0
        self._answers = answers
        self._stays = stays

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                pieces = self._answers.pop(0)
                for piece in pieces or []:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.005)
                if pieces is None or not self._stays:
                    return
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()


@asynccontextmanager
async def serving(
    *answers: list[bytes] | None,
    stays: bool = True,
    seconds: float = 5.0,
    hedge: float | None = None,
) -> AsyncIterator[tuple[HttpConnectionPool, Server]]:
    server = Server(list(answers), stays=stays)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    wire = HttpConnectionPool(
        Host(name="127.0.0.1", port=port),
        connect_seconds=5,
        read_seconds=seconds,
        hedge_seconds=hedge,
    )
    try:
        yield wire, server
    finally:
        wire.close()
        listening.close()
        await asyncio.sleep(0.02)


async def test_requests_share_a_connection_and_answers_come_in_any_pieces() -> None:
    bytewise = [OK[at : at + 1] for at in range(len(OK))]
    async with serving([OK], bytewise, [OK[:50], OK[50:]]) as (wire, server):
        for _ in range(3):
            answer = await wire.get(ASKED)
            assert (answer.status, bytes(answer.body)) == (200, b"hello")
            assert answer.headers == {"content-length": "5", "etag": "x:y"}
    assert server.connections == 1


async def test_a_body_goes_where_it_is_wanted_if_it_is_as_long() -> None:
    large = bytes(range(256)) * 4000
    head = f"HTTP/1.1 206 Partial Content\r\ncontent-length: {len(large)}\r\n\r\n".encode()
    async with serving([head + large], [head + large], [OK]) as (wire, _):
        location = memoryview(bytearray(len(large)))
        assert (await wire.get(ASKED, location)).body is location
        assert bytes(location) == large
        assert bytes((await wire.get(ASKED)).body) == large
        before = bytes(location)
        assert bytes((await wire.get(ASKED, location)).body) == b"hello"
        assert bytes(location) == before


async def test_an_empty_body_and_one_of_no_length_by_its_status_are_understood() -> None:
    empty = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    unchanged = b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n"
    async with serving([empty], [unchanged], [OK]) as (wire, server):
        assert len((await wire.get(ASKED)).body) == 0
        assert (await wire.get(ASKED)).status == 304
        assert (await wire.get(ASKED)).status == 200
    assert server.connections == 1


async def test_a_connection_that_ended_while_idle_is_replaced_without_a_word() -> None:
    async with serving([OK], [OK], [OK], stays=False) as (wire, server):
        for _ in range(3):
            assert bytes((await wire.get(ASKED)).body) == b"hello"
    assert server.connections == 3


async def test_a_server_that_hangs_up_on_a_kept_connection_is_asked_once_more_only() -> None:
    async with serving([OK], None, None) as (wire, server):
        await wire.get(ASKED)
        with pytest.raises(ConnectionEndedError):
            await wire.get(ASKED)
    assert server.connections == 2


async def test_a_connection_that_says_close_is_not_used_again() -> None:
    last = OK.replace(b"ETag: x:y", b"Connection: close")
    async with serving([last], [OK]) as (wire, server):
        await wire.get(ASKED)
        await wire.get(ASKED)
    assert server.connections == 2


@pytest.mark.parametrize("end", [1, 20, len(OK) - 1])
async def test_an_answer_that_breaks_off_is_a_failed_connection(end: int) -> None:
    async with serving([OK[:end]], [OK], stays=False) as (wire, _):
        with pytest.raises(ConnectionEndedError) as caught:
            await wire.get(ASKED)
        assert not caught.value.is_unanswered
        assert bytes((await wire.get(ASKED)).body) == b"hello"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Encoding: gzip\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
        b"no HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 20_000,
    ],
)
async def test_what_is_not_understood_is_said_and_its_connection_closed(answer: bytes) -> None:
    async with serving([answer], [OK]) as (wire, server):
        with pytest.raises(NotUnderstoodError):
            await wire.get(ASKED)
        assert bytes((await wire.get(ASKED)).body) == b"hello"
    assert server.connections == 2


async def test_silence_ends_after_the_time_given_and_slowness_does_not() -> None:
    slow = [OK[at : at + 10] for at in range(0, len(OK), 10)]
    async with serving(slow, [b"HTTP/1.1 "], seconds=0.2) as (wire, _):
        assert (await wire.get(ASKED)).status == 200
        with pytest.raises(TimeoutError, match=r"0\.2 s"):
            await wire.get(ASKED)


async def test_a_request_given_up_closes_its_connection() -> None:
    async with serving([b"HTTP/1.1 "], [OK]) as (wire, server):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await wire.get(ASKED)
        assert (await wire.get(ASKED)).status == 200
    assert server.connections == 2


SILENT: list[bytes] = []


async def test_a_silent_request_is_asked_again_beside_and_the_other_answer_counts() -> None:
    into = memoryview(bytearray(5))
    async with serving(SILENT, [OK], hedge=0.05) as (wire, server):
        answer = await wire.get(ASKED, into)
    assert bytes(answer.body) == b"hello"
    # What was given up could still have written into it.
    assert answer.body is not into
    assert server.connections == 2


async def test_one_that_has_begun_to_answer_is_waited_for() -> None:
    slow = [OK[at : at + 1] for at in range(len(OK))]
    # All of it takes three times as long, its first byte far less.
    async with serving(slow, hedge=0.1) as (wire, server):
        assert bytes((await wire.get(ASKED)).body) == b"hello"
    assert server.connections == 1


async def test_where_the_second_fails_the_first_is_still_waited_for() -> None:
    async def late() -> str:
        await asyncio.sleep(0.1)
        return "late"

    async def broken() -> str:
        raise OSError("broken")

    hedge = Hedge(0.01)
    assert await hedge.ask(lambda _: late(), broken) == "late"
    with pytest.raises(OSError, match="broken"):
        await hedge.ask(lambda _: broken(), late)


async def test_a_server_that_is_always_slow_is_asked_twice_one_time_in_twenty() -> None:
    seconds: list[None] = []

    async def slow() -> str:
        await asyncio.sleep(0.003)
        return "slow"

    async def again() -> str:
        seconds.append(None)
        return await slow()

    hedge = Hedge(0.001)
    for _ in range(400):
        assert await hedge.ask(lambda _: slow(), again) == "slow"
    # Five that were saved up, and one for every twenty answers.
    assert 15 <= len(seconds) <= 25


async def test_giving_up_ends_both_requests() -> None:
    async with serving(SILENT, SILENT, [OK], hedge=0.02) as (wire, server):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await wire.get(ASKED)
        assert (await wire.get(ASKED)).status == 200
    assert server.connections == 3
