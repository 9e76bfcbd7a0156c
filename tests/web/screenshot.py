"""Makes the picture of the page that README.md shows: `python -m tests.web.screenshot FILE`."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.web.conftest import FLAGS, chromium_path
from tests.web.living import living_daemon

_WATCHING_SECONDS = 45


def take(target: Path) -> None:
    """Watch three tables for a while, then take a picture of one."""
    with (
        _lake() as folder,
        living_daemon(folder, has_missing=False, is_writing_all=True) as living,
        sync_playwright() as driver,
    ):
        time.sleep(_WATCHING_SECONDS)
        browser = driver.chromium.launch(executable_path=chromium_path(), args=FLAGS)
        page = browser.new_page(viewport={"width": 1060, "height": 820})
        page.goto(f"{living.url}/#/tables/payments")
        page.locator("#s-growth .chart-line").first.wait_for()
        page.screenshot(path=target)
        browser.close()


@contextmanager
def _lake() -> Iterator[Path]:
    """Give a folder of a name that looks well in a picture; it must not be there."""
    folder = Path(tempfile.gettempdir()) / "lake"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    take(Path(sys.argv[1]))
