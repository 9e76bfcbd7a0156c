"""Ways to buckets that are learned, used and forgotten."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field

from tailerd.storage.s3.quick_gets import QuickGets
from tailerd.storage.s3.settings import S3Account

NOT_UNDERSTOOD = b"HTTP/1.1 200 OK\r\n\r\nhello"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


@dataclass
class Sent:
    url: str
    headers: dict[str, bytes | str] = field(default_factory=dict)


async def no_keys() -> None:
    return None


async def test_several_answers_at_once_that_are_not_understood_lead_back_to_the_client() -> None:
    requested, answers = [], [NOT_UNDERSTOOD, NOT_UNDERSTOOD, OK]
    both_asked = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requested.append(await reader.readuntil(b"\r\n\r\n"))
        if len(requested) >= 2:
            both_asked.set()
        await both_asked.wait()
        writer.write(answers.pop(0))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    quick = QuickGets(S3Account(is_anonymous=True), no_keys, ssl.create_default_context)
    sent = Sent(f"{address}/bucket/a")
    try:
        assert await quick.get("bucket", "a") is None
        assert not requested
        await quick.learn("bucket", "a", [sent])
        both = tuple(await asyncio.gather(quick.get("bucket", "b"), quick.get("bucket", "c")))
        assert both == (None, None)
        assert await quick.get("bucket", "d") is None
        assert len(requested) == 2
        await quick.learn("bucket", "a", [sent])
        answer = await quick.get("bucket", "e")
        assert answer is not None
        assert bytes(answer.body) == b"hello"
        assert requested[-1].startswith(b"GET /bucket/e HTTP/1.1\r\n")
    finally:
        await quick.close()
        server.close()
