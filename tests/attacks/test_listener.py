"""Attacks on the listener: stalled requests, unread answers, guessed tokens."""

from __future__ import annotations

import aiohttp
import pytest
from pydantic import SecretStr

from tailerd.web.access import Access
from tests.web.test_security import DELIBERATE, KNOWN, TOKEN, Steered, ask, server

# Tokens


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_wrong_tokens_do_not_lock_out_the_right_one(method: str) -> None:
    steered = Steered()
    path = "/status" if method == "GET" else "/pipelines/orders/pause"
    access = Access(token=SecretStr(TOKEN), read="token")
    async with server(steered, access=access) as listener:
        found = []
        for number in range(12):
            headers = {**DELIBERATE, "Authorization": f"Bearer guess-{number}"}
            found.append((await ask(listener, path, method, headers)).status)
            right = await ask(listener, path, method, {**DELIBERATE, **KNOWN})
            assert right.status == 200, f"after {number + 1} wrong tokens: {right.text}"
    assert found == [401] * 10 + [429] * 2


async def test_requests_without_the_token_do_not_use_up_those_with_it() -> None:
    access = Access(token=SecretStr(TOKEN), read="token")
    async with server(access=access) as listener, aiohttp.ClientSession() as session:
        found = set()
        for _ in range(600):
            async with session.get(f"{listener.url}/status") as answer:
                found.add(answer.status)
        assert found == {401, 429}
        for _ in range(50):
            async with session.get(f"{listener.url}/status", headers=KNOWN) as answer:
                assert answer.status == 200
