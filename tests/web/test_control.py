"""Who may steer, with what, and what is answered, over real sockets."""

from __future__ import annotations

import json
from collections.abc import Mapping

import aiohttp
import pytest
from pydantic import SecretStr

from tailerd.changefeed.offset import Offset, Version
from tailerd.config import Address
from tailerd.errors import MissingVersionError, StorageError, TailerdError
from tailerd.pipeline.reset import Reset, Skipped
from tailerd.web.access import Access
from tailerd.web.control import ControlRoutes
from tailerd.web.server import WebServer

LOOPBACK = Address(host="127.0.0.1", port=0)
EVERYWHERE = Address(host="0.0.0.0", port=0)
TOKEN = "correct horse battery"
DELIBERATE = {"X-Tailerd": "1"}


class Steered:
    """Notes what it was asked for."""

    names = ("orders", "of spark")

    def __init__(self, error: TailerdError | None = None) -> None:
        self.requested: list[tuple[str, ...]] = []
        self.error = error
        self.paused_by: str | None = None

    def can_reset(self, name: str) -> bool:
        return name == "orders"

    async def pause(self, name: str, by: str = "") -> None:
        self._note("pause", name)
        self.paused_by = by

    async def resume(self, name: str) -> None:
        self._note("resume", name)

    async def preview_reset(self, name: str, to: str) -> Reset:
        skipped = Skipped(first=Version(4), last=Version(6), versions=3, min_rows=20, max_rows=None)
        return Reset(offset=Offset(table_id="t", version=Version(7)), skipped=skipped)

    async def reset(self, name: str, to: str) -> Reset:
        self._note("reset", name, to)
        return await self.preview_reset(name, to)

    def _note(self, *requested: str) -> None:
        if self.error is not None:
            raise self.error
        self.requested.append(requested)


def server(steered: Steered, address: Address = LOOPBACK, token: str | None = None) -> WebServer:
    secret = None if token is None else SecretStr(token)
    return WebServer(address, ControlRoutes(steered).routes(), access=Access(token=secret))


async def post(
    listener: WebServer,
    path: str,
    body: str | bytes | None = None,
    headers: Mapping[str, str] = DELIBERATE,
) -> tuple[int, str]:
    url = f"http://127.0.0.1:{listener.address.port}{path}"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=body, headers=dict(headers)) as answer,
    ):
        return answer.status, await answer.text()


async def test_pause_resume_and_reset_reach_the_pipeline() -> None:
    steered = Steered()
    async with server(steered) as listener:
        assert await post(listener, "/pipelines/orders/pause") == (
            200,
            '{"table": "orders", "state": "paused"}',
        )
        assert (await post(listener, "/pipelines/orders/resume"))[0] == 200
        status, text = await post(listener, "/pipelines/orders/reset", '{"to": "snapshot"}')
    assert (status, json.loads(text)["offset"]["version"]) == (200, 7)
    assert steered.requested == [
        ("pause", "orders"),
        ("resume", "orders"),
        ("reset", "orders", "snapshot"),
    ]


@pytest.mark.parametrize(
    ("sent", "by"),
    [
        ("ann on the command line", "ann on the command line"),
        ("1", "a request from 127.0.0.1"),
        (f"x\t{'y' * 99}", f"x{'y' * 63}"),
    ],
)
async def test_a_pause_says_who_asked_for_it(sent: str, by: str) -> None:
    steered = Steered()
    async with server(steered) as listener:
        await post(listener, "/pipelines/orders/pause", headers={"X-Tailerd": sent})
    assert steered.paused_by == by


async def test_a_preview_of_a_reset_counts_what_is_skipped_and_changes_nothing() -> None:
    steered = Steered()
    async with server(steered) as listener:
        body = '{"to": "latest", "preview": true}'
        status, text = await post(listener, "/pipelines/orders/reset", body)
    assert (status, steered.requested) == (200, [])
    assert json.loads(text)["skipped"] == {
        "first": 4,
        "last": 6,
        "versions": 3,
        "min_rows": 20,
        "max_rows": None,
        "text": "versions 4 to 6 (3 versions, at least 20 rows)",
    }


@pytest.mark.parametrize(
    ("to", "location"),
    [
        ('"latest"', "latest"),
        ("12", "12"),
        ('"12"', "12"),
        ('"2024-02-29T12:00:00Z"', "2024-02-29T12:00:00Z"),
    ],
)
async def test_every_form_of_a_starting_point_is_accepted(to: str, location: str) -> None:
    steered = Steered()
    async with server(steered) as listener:
        assert (await post(listener, "/pipelines/orders/reset", f'{{"to": {to}}}'))[0] == 200
    assert steered.requested == [("reset", "orders", location)]


@pytest.mark.parametrize(
    "body",
    [
        None,
        "",
        "{",
        "[]",
        "{}",
        '{"to": null}',
        '{"to": true}',
        '{"to": 1.5}',
        '{"to": -1}',
        '{"to": "yesterday"}',
        '{"to": {}}',
        '{"to": "0", "more": 1}',
        '{"to": "0", "preview": 1}',
        b'{"to": "\xff"}',
        "[" * 10_000,
        '{"to": ' + "9" * 6_000 + "}",
    ],
    ids=lambda body: repr(body)[:20],
)
async def test_a_body_without_a_starting_point_is_refused(body: str | bytes | None) -> None:
    steered = Steered()
    async with server(steered) as listener:
        status, text = await post(listener, "/pipelines/orders/reset", body)
    assert (status, json.loads(text)["error"]["code"]) == (400, "usage")
    assert steered.requested == []


async def test_an_unknown_charset_is_no_crash() -> None:
    headers = {"Content-Type": "application/json; charset=klingon"}
    async with server(Steered()) as listener:
        assert (await post(listener, "/pipelines/orders/reset", b"{}", headers))[0] == 400


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "text/plain", "Origin": "http://evil.example"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "multipart/form-data; boundary=x"},
    ],
)
@pytest.mark.parametrize("verb", ["pause", "resume", "reset"])
async def test_what_a_foreign_page_can_send_is_refused(verb: str, headers: dict[str, str]) -> None:
    steered = Steered()
    async with server(steered) as listener:
        status, text = await post(listener, f"/pipelines/orders/{verb}", b'{"to":"0"}', headers)
    assert (status, json.loads(text)["error"]["code"]) == (403, "csrf_header_required")
    assert steered.requested == []


async def test_a_json_body_is_deliberate_enough() -> None:
    async with server(Steered()) as listener:
        headers = {"Content-Type": "application/json"}
        assert (await post(listener, "/pipelines/orders/pause", "{}", headers))[0] == 200


async def test_a_listener_for_everybody_has_no_control_without_a_token() -> None:
    steered = Steered()
    async with server(steered, EVERYWHERE) as listener:
        status, text = await post(listener, "/pipelines/orders/pause")
    assert status == 403
    assert "http.token" in json.loads(text)["error"]["message"]
    assert steered.requested == []


@pytest.mark.parametrize("address", [LOOPBACK, EVERYWHERE], ids=["loopback", "everywhere"])
@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (None, 401),
        ("", 401),
        ("Bearer", 401),
        ("Bearer wrong", 401),
        (f"Basic {TOKEN}", 401),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {TOKEN}", 200),
        (f"bearer  {TOKEN} ", 200),
    ],
)
async def test_a_token_must_be_known(
    address: Address, authorization: str | None, status: int
) -> None:
    steered = Steered()
    headers = dict(DELIBERATE)
    if authorization is not None:
        headers["Authorization"] = authorization
    async with server(steered, address, TOKEN) as listener:
        found, text = await post(listener, "/pipelines/orders/pause", None, headers)
    assert found == status
    assert TOKEN not in text
    assert bool(steered.requested) is (status == 200)


async def test_an_unknown_pipeline_is_404_with_the_nearest_name() -> None:
    async with server(Steered()) as listener:
        status, text = await post(listener, "/pipelines/order/pause")
        assert status == 404
        assert "`orders`" in json.loads(text)["error"]["message"]
        assert (await post(listener, "/pipelines/%2e%2e%2fx/pause"))[0] == 404


async def test_who_does_not_know_the_token_learns_no_names() -> None:
    async with server(Steered(), LOOPBACK, TOKEN) as listener:
        assert (await post(listener, "/pipelines/order/pause"))[0] == 401


async def test_an_offset_that_spark_keeps_is_a_conflict_with_a_way_out() -> None:
    steered = Steered()
    async with server(steered) as listener:
        status, text = await post(listener, "/pipelines/of%20spark/reset", '{"to": "0"}')
        assert (await post(listener, "/pipelines/of%20spark/pause"))[0] == 200
    assert status == 409
    assert "tailerd offsets reset of spark" in json.loads(text)["error"]["message"]
    assert steered.requested == [("pause", "of spark")]


@pytest.mark.parametrize(
    ("error", "status"),
    [(StorageError("The disk is full."), 503), (MissingVersionError("Gone."), 409)],
)
async def test_what_the_pipeline_met_is_told(error: TailerdError, status: int) -> None:
    async with server(Steered(error)) as listener:
        found, text = await post(listener, "/pipelines/orders/reset", '{"to": "0"}')
    assert found == status
    assert json.loads(text)["error"] == {"code": error.code, "message": str(error)}
