"""A daemon that is killed while somebody looks, and comes back."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.integration.daemon.running import daemon
from tests.web.conftest import OpenPage
from tests.web.living import living_daemon
from tests.web.test_page import row_of

pytestmark = pytest.mark.xdist_group("page")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.full
def test_the_page_says_that_it_is_gone_and_goes_on_when_it_is_back(
    tmp_path: Path, open_page: OpenPage
) -> None:
    listen = f"127.0.0.1:{free_port()}"
    with living_daemon(tmp_path, has_writer=False, has_missing=False, listen=listen) as living:
        page = open_page(living.url, path="/#/tables/orders/events")
        expect(page.locator("#s-events")).to_contain_text("Starts without a saved offset")
        expect(page.locator("#link")).to_have_text("live")
    banner = page.locator("#banner")
    expect(banner).to_contain_text("Everything below is as of")
    expect(page.locator("#s-events")).to_contain_text("Starts without a saved offset")
    with daemon(tmp_path / "tailerd.yaml"):
        page.get_by_role("button", name="Retry now").click()
        expect(page.locator("#link")).to_have_text("live")
        expect(banner).to_be_hidden()
        expect(page.locator("#s-events")).to_contain_text("Resumed at its saved offset")
        living.tables["orders"].change()
        page.goto(f"{living.url}/#/")
        head = f"head {living.tables['orders'].version}"
        expect(row_of(page, "orders").locator(".c-version")).to_have_attribute("title", head)
