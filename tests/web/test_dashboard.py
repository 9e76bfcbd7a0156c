"""What the page asks for, over real sockets."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from click.testing import CliRunner

from tailerd.clock import SystemClock
from tailerd.config import Address, Config
from tailerd.config.shown import HIDDEN
from tailerd.docs import __main__ as docs_program
from tailerd.docs.topics import TOPICS
from tailerd.telemetry import Telemetry, events
from tailerd.telemetry.status import StatusBoard
from tailerd.web import docs_pages, live
from tailerd.web.daemon_page import Settings
from tailerd.web.dashboard import Dashboard, page_files
from tailerd.web.server import WebServer
from tests.doubles.owned_state import owned_state
from tests.telemetry.test_telemetry import DELIVERED, FAILED, STARTED, backlog
from tests.waiting import PATIENCE_SECONDS


class Served:
    """A dashboard that serves, with what it was asked to maintain."""

    def __init__(self, folder: Path) -> None:
        self.maintained: list[str] = []
        self.status = StatusBoard([("orders", "arrow"), ("kept", "none")], SystemClock())
        self.dashboard = Dashboard(
            self.status, owned_state(folder).history, clock=SystemClock(), maintain=self.maintain
        )
        self.telemetry = Telemetry([self.status.handle, *self.dashboard.handlers()])
        self.url = ""

    def maintain(self, name: str) -> bool:
        self.maintained.append(name)
        return name == "kept"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[aiohttp.ClientSession]:
        address = Address(host="127.0.0.1", port=0)
        async with WebServer(address, self.dashboard.routes()) as server:
            self.url = server.url
            running = self.running = asyncio.create_task(self.dashboard.run())
            try:
                async with aiohttp.ClientSession(server.url) as session:
                    yield session
            finally:
                running.cancel()
                await asyncio.wait([running])


async def next_message(answer: aiohttp.ClientResponse) -> tuple[str, dict[str, object]]:
    """Return name and body of the next message of a stream."""
    name = (await answer.content.readline()).decode().removeprefix("event: ").strip()
    data = (await answer.content.readuntil(b"\n\n")).decode().removeprefix("data: ")
    return name, json.loads(data)


async def test_the_page_and_its_files_are_served_with_their_types(tmp_path: Path) -> None:
    served = Served(tmp_path)
    async with served.serving() as session:
        async with session.get("/") as answer:
            assert (answer.status, answer.content_type) == (200, "text/html")
            assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
        async with session.get("/static/app.js") as answer:
            assert answer.content_type == "text/javascript"
            tag = answer.headers["ETag"]
        async with session.get("/static/app.js", headers={"If-None-Match": tag}) as answer:
            assert answer.status == 304
        for name in ("nothing.js", "..%2Findex.html", "%2e%2e%2fdashboard.py", "__init__.py"):
            async with session.get(f"/static/{name}") as answer:
                assert answer.status == 404


def test_the_page_is_small_and_has_nothing_inline_or_from_elsewhere() -> None:
    files = page_files()
    assert {"index.html", "app.js", "style.css"} <= files.keys()
    assert sum(map(len, files.values())) < 150_000
    text = files["index.html"].decode()
    assert "<style" not in text
    assert " style=" not in text
    assert text.count("<script") == text.count('src="/static/')
    for name, body in files.items():
        code = body.decode()
        assert "innerHTML" not in code, name
        assert "insertAdjacentHTML" not in code, name
        assert "://" not in code.replace("http://www.w3.org/", ""), name


async def test_a_table_shows_its_state_and_its_past(tmp_path: Path) -> None:
    served = Served(tmp_path)
    async with served.serving() as session:
        served.telemetry.emit(STARTED)
        served.telemetry.emit(backlog(0, None))
        served.telemetry.emit(DELIVERED)
        served.telemetry.emit(FAILED)
        async with session.get("/tables/orders") as answer:
            shown = await answer.json()
        stated = served.status.table_json("orders")
        assert stated is not None
        # Times aside, the page has of a table what `/status` has.
        assert {key: shown[key] for key in stated if "per_second" not in key} == {
            key: value for key, value in stated.items() if "per_second" not in key
        }
        assert shown["history"]["errors"][0]["message"] == "Version 3 is no JSON."
        assert shown["rows"] is None
        async with session.get("/tables/nothing") as answer:
            assert answer.status == 404
            assert "unknown_table" in await answer.text()


async def test_maintenance_is_asked_for_where_it_is_configured(tmp_path: Path) -> None:
    served = Served(tmp_path)
    async with served.serving() as session:
        deliberate = {"X-Tailerd": "1"}
        for name, status in (("kept", 202), ("orders", 409), ("nothing", 404)):
            async with session.post(f"/pipelines/{name}/maintain", headers=deliberate) as answer:
                assert answer.status == status
        async with session.post("/pipelines/kept/maintain") as answer:
            assert answer.status == 403
    assert served.maintained == ["kept", "orders"]


async def test_events_begin_with_everything_and_go_on_with_what_changes(tmp_path: Path) -> None:
    served = Served(tmp_path)
    async with served.serving() as session, session.get("/events") as answer:
        assert answer.content_type == "text/event-stream"
        name, first = await next_message(answer)
        assert (name, first["is_all"]) == ("tables", True)
        assert isinstance(first["tables"], dict)
        assert sorted(first["tables"]) == ["kept", "orders"]
        assert first["rates"] == {}
        served.telemetry.emit(STARTED)
        served.telemetry.emit(backlog(2, 1))
        name, second = await next_message(answer)
        assert name == "tables"
        assert isinstance(second["tables"], dict)
        assert list(second["tables"]) == ["orders"]
        assert second["tables"]["orders"]["lag_versions"] == 2


async def test_many_events_are_few_messages(tmp_path: Path) -> None:
    served = Served(tmp_path)
    async with served.serving() as session, session.get("/events") as answer:
        await next_message(answer)
        began = time.monotonic()
        messages = 0
        while time.monotonic() < began + 2:
            for _ in range(100):
                served.telemetry.emit(DELIVERED)
            try:
                async with asyncio.timeout(0.01):
                    await answer.content.readuntil(b"\n\n")
                    messages += 1
            except TimeoutError:
                pass
        assert 1 <= messages <= (time.monotonic() - began) / live.SNAPSHOT_SECONDS + 1


async def test_a_page_that_never_reads_is_dropped_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(live, "SNAPSHOT_SECONDS", 0.01)
    served = Served(tmp_path)
    long = "x" * 300
    names = [f"{long}{number}" for number in range(400)]
    for name in names:
        served.telemetry.emit(events.TableAdded(table=name, engine="arrow", path="/lake"))
    async with served.serving() as session:
        host, port = served.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        writer.write(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        await writer.drain()
        pages = served.dashboard._live
        async with asyncio.timeout(PATIENCE_SECONDS):
            await reader.readuntil(b"event: tables")
            assert pages.pages == 1
            while pages.pages:
                for name in names:
                    served.telemetry.emit(
                        events.TableAltered(table=name, engine="arrow", path="/lake")
                    )
                await asyncio.sleep(0.01)
        async with session.get("/events") as answer:
            assert (await next_message(answer))[0] == "tables"
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await reader.readexactly(1 << 30)
        writer.close()


async def test_so_many_pages_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_PAGES", 1)
    served = Served(tmp_path)
    async with served.serving() as session, session.get("/events") as first:
        await next_message(first)
        async with session.get("/events") as second:
            assert second.status == 503
            assert "too_many_pages" in await second.text()


async def test_a_page_that_is_closed_is_forgotten(tmp_path: Path) -> None:
    served = Served(tmp_path)
    async with served.serving() as session:
        async with session.get("/events") as answer:
            await next_message(answer)
        pages = served.dashboard._live
        async with asyncio.timeout(live.SNAPSHOT_SECONDS * 10):
            while pages.pages:
                served.telemetry.emit(DELIVERED)
                await asyncio.sleep(0.05)


async def test_open_pages_do_not_hold_up_the_end(tmp_path: Path) -> None:
    served = Served(tmp_path)
    async with served.serving() as session, session.get("/events") as answer:
        await next_message(answer)
        served.running.cancel()
        async with asyncio.timeout(1):
            with pytest.raises(aiohttp.ClientError):
                await answer.content.readexactly(1 << 20)


async def test_a_quiet_daemon_says_now_and_then_that_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "BEAT_SECONDS", 0.2)
    monkeypatch.setattr(live, "SNAPSHOT_SECONDS", 0.1)
    served = Served(tmp_path)
    async with served.serving() as session, session.get("/events") as answer:
        _, first = await next_message(answer)
        _, second = await next_message(answer)
        assert second["tables"] == {}
        assert int(str(second["at_ms"])) > int(str(first["at_ms"]))


async def test_who_looks_at_one_table_shares_what_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(tmp_path)
    written: list[str] = []
    plain = served.dashboard._table_text

    def counted(name: str) -> bytes:
        written.append(name)
        return plain(name)

    monkeypatch.setattr(served.dashboard, "_table_text", counted)
    async with served.serving() as session:

        async def look() -> str:
            async with session.get("/tables/orders") as answer:
                return await answer.text()

        assert len(set(await asyncio.gather(*(look() for _ in range(20))))) == 1
        assert written == ["orders"]
        served.dashboard.expire()
        await look()
        assert written == ["orders", "orders"]


@pytest.mark.parametrize("seconds", ["0", "x", "-1", "99999999999", "\u0663"])
async def test_a_time_range_that_is_none_is_refused(tmp_path: Path, seconds: str) -> None:
    served = Served(tmp_path)
    async with served.serving() as session:
        async with session.get("/series", params={"seconds": seconds}) as answer:
            assert answer.status == 400
        async with session.get("/tables/nothing/series") as answer:
            assert answer.status == 404
        async with session.get("/tables/orders/series", params={"seconds": "3600"}) as answer:
            assert (await answer.json())["width_seconds"] == 60


async def test_the_daemon_shows_itself_without_secrets(tmp_path: Path) -> None:
    served = Served(tmp_path)
    secret = "a-very-long-secret-token"
    config = Config.model_validate(
        {
            "engine": "arrow",
            "http": {"token": secret},
            "tables": {"orders": {"path": "/lake/orders", "sink": {"kind": "console"}}},
        }
    )
    served.dashboard.daemon.settings = Settings(
        config=config, memory_bytes=100, memory_used_bytes=lambda: 7
    )
    served.telemetry.emit(FAILED)
    async with served.serving() as session:
        async with session.get("/daemon") as answer:
            text = await answer.text()
        shown = json.loads(text)
        assert secret not in text
        assert shown["configuration"]["http"]["token"] == HIDDEN
        assert (shown["budget_bytes"], shown["budget_used_bytes"]) == (100, 7)
        assert shown["threads"] >= 1
        assert [event["table"] for event in shown["events"]] == ["orders"]
        async with session.get("/tables/orders/configuration") as answer:
            assert (await answer.json())["path"] == "/lake/orders"
        async with session.get("/tables/nothing/configuration") as answer:
            assert answer.status == 404


@pytest.mark.parametrize("name", [None, *TOPICS])
async def test_every_topic_is_a_page_with_nothing_inline(tmp_path: Path, name: str | None) -> None:
    text = docs_pages.page(name or "operating")
    assert " style=" not in text
    assert text.count("<script") == text.count("<script src=")
    served = Served(tmp_path)
    async with served.serving() as session:
        path = "/docs" if name is None else f"/docs/{name}"
        async with session.get(path) as answer:
            assert (answer.status, answer.content_type) == (200, "text/html")
            assert await answer.text() == text


async def test_a_topic_that_is_none_is_not_found(tmp_path: Path) -> None:
    served = Served(tmp_path)
    async with served.serving() as session, session.get("/docs/kafak") as answer:
        assert answer.status == 404
        assert "kafka" in await answer.text()


async def test_a_search_leads_to_the_sections_that_have_all_words(tmp_path: Path) -> None:
    served = Served(tmp_path)
    async with served.serving() as session:
        async with session.get("/docs", params={"q": "Exactly ONCE"}) as answer:
            found = re.findall(r'<li><a href="/docs/(\w+)#([^"]*)">', await answer.text())
        async with session.get("/docs", params={"q": "<script> zebra"}) as answer:
            nothing = await answer.text()
    assert {"kafka", "semantics"} <= {name for name, _ in found}
    for name, anchor in found:
        assert f'id="{anchor}"' in docs_pages.page(name) or not anchor
    assert "No section has all of these words." in nothing
    assert "<script> zebra" not in nothing


def test_the_pages_are_written_as_files_whose_links_lead_somewhere(tmp_path: Path) -> None:
    done = CliRunner().invoke(docs_program.main, ["build", str(tmp_path / "site")])
    assert done.exit_code == 0, done.output
    for file in (tmp_path / "site").glob("*.html"):
        targets = re.findall(r'(?:href|src)="([^"#]+)', file.read_text())
        assert targets
        for target in targets:
            assert target.startswith("http") or (file.parent / target).exists(), target
    assert len(list((tmp_path / "site").glob("*.html"))) == len(TOPICS) + 1


def test_an_error_links_to_its_section_in_the_documentation() -> None:
    assert '<h2 id="missing_version">missing_version</h2>' in docs_pages.page("errors")
