"""Makes the pictures of the console for README.md: `python -m tests.web.screenshot FOLDER`.

Watches `tailerd demo --open` for a while; the pictures are `fleet.png` and `changes.png`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.integration.daemon.running import TAILERD
from tests.web.conftest import FLAGS, chromium_path

_WATCHING_SECONDS = 75
_DEMO = ("demo", "--engine", "arrow", "--open", "--seconds", "600")


def take(folder: Path) -> None:
    """Start the demo, watch it, take the pictures, and end it."""
    # Nothing opens by itself: the pages are opened here.
    environment = {**os.environ, "BROWSER": "true"}
    demo = subprocess.Popen(
        [*TAILERD, *_DEMO],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        url = _address(demo)
        time.sleep(_WATCHING_SECONDS)
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=chromium_path(), args=FLAGS)
            light = browser.new_page(viewport={"width": 1340, "height": 400}, color_scheme="light")
            light.goto(f"{url}/#/")
            _shoot(light, ".tile .chart-line", folder / "fleet.png")
            dark = browser.new_page(viewport={"width": 1200, "height": 520}, color_scheme="dark")
            dark.goto(f"{url}/#/tables/payments/changes")
            _shoot(dark, ".changed", folder / "changes.png")
            browser.close()
    finally:
        demo.terminate()
        demo.wait(30)


def _address(demo: subprocess.Popen[str]) -> str:
    """Return where the demo says its page is."""
    assert demo.stderr is not None
    for line in demo.stderr:
        if found := re.search(r"http://[0-9.:]+", line):
            return found[0]
    raise RuntimeError("The demo ended without a page.")


def _shoot(page: Page, what: str, target: Path) -> None:
    page.locator(what).first.wait_for()
    page.wait_for_timeout(1500)
    page.screenshot(path=target)


if __name__ == "__main__":
    take(Path(sys.argv[1]))
