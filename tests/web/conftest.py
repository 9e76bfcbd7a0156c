"""A real browser, a real daemon with three live tables, and pages that tell what they must not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.waiting import PATIENCE_SECONDS
from tests.web.living import Living, living_daemon
from tests.web.site import Site

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
]

OpenPage = Callable[..., Page]

expect.set_options(timeout=PATIENCE_SECONDS * 1000)


def chromium_path() -> str | None:
    """Return where the system's Chromium is."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium as the system has it; without it tests skip, in CI they fail.

    Its driver keeps an event loop running in this thread, where no asynchronous test can run then:
    so it goes with its module, and the tests of such a module stay together.
    """
    found = chromium_path()
    if found is None:
        message = "There is no Chromium here; on Debian: apt-get install chromium."
        if os.environ.get("CI"):
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=found, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens an address; afterwards nothing was asked elsewhere and no script has failed."""
    wrong: list[str] = []
    opened: list[Page] = []

    def open_at(address: str, *, path: str = "/", width: int = 1280, **options: object) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 800}, **options)  # type: ignore[arg-type]
        page = context.new_page()
        opened.append(page)
        page.set_default_timeout(PATIENCE_SECONDS * 1000)
        page.on("pageerror", lambda error: wrong.append(f"script: {error}"))
        page.on(
            "console",
            lambda message: (
                wrong.append(message.text) if "Security Policy" in message.text else None
            ),
        )
        page.on(
            "request",
            lambda request: (
                None if request.url.startswith(address) else wrong.append(f"asked {request.url}")
            ),
        )
        page.goto(address + path)
        return page

    yield open_at
    for page in opened:
        # What a test answers itself may be under way.
        page.unroute_all(behavior="ignoreErrors")
        page.context.close()
    assert wrong == []


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Living]:
    """A daemon with three tables that keep changing and one that is not there."""
    with living_daemon(tmp_path_factory.mktemp("living")) as started:
        yield started


@pytest.fixture
def site() -> Iterator[Site]:
    """The page over events that a test makes up: for what no real daemon shows at will."""
    with Site() as started:
        yield started


@pytest.fixture
def shots(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folder for screenshots: `--shots FOLDER`, else a temporary one."""
    requested: str = request.config.getoption("--shots")
    folder = Path(requested) if requested else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    return folder
