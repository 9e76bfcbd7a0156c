"""A real daemon that shows its tables only to who has the token."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from tests.integration.daemon.running import (
    address,
    daemon,
    file_table,
    run_to_end,
    write_config,
)
from tests.tables.builder import TableBuilder
from tests.waiting import eventually

TOKEN = "a-long-random-text"
OPEN = ["/", "/static/app.js", "/static/style.css", "/healthz", "/readyz"]
CLOSED = ["/status", "/metrics", "/events", "/tables/orders", "/tables/nothing"]


def get(url: str, token: str = "") -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5) as it:
            # The stream of events has no end.
            return it.status, it.read1(200_000).decode() if "/events" in url else it.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.full
def test_without_the_token_no_path_tells_of_a_table_and_with_it_none_tells_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = TableBuilder(tmp_path / "t", start_ms=None)
    builder.append([{"id": 1, "name": "a"}])
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", tmp_path / "out"))
    content = yaml.safe_load(config.read_text())
    content["http"] |= {"read": "token", "token": TOKEN}
    config.write_text(yaml.safe_dump(content))
    with daemon(config):
        url = address(config)
        eventually(lambda: get(f"{url}/readyz")[0] == 200)
        for path in OPEN:
            status, text = get(url + path)
            assert (status, "orders" in text) == (200, False)
        for path in CLOSED:
            status, text = get(url + path)
            assert status == 401
            assert "orders" not in text
        for path in [*OPEN, *CLOSED[:4]]:
            status, text = get(url + path, TOKEN)
            assert (status, TOKEN in text) == (200, False)
        # Commands show the token that the configuration or the environment has.
        refused = run_to_end("status", "--http", url)
        assert (refused.returncode, "TAILERD__HTTP__TOKEN" in refused.stderr) == (1, True)
        assert run_to_end("status", "--http", url, "--config", config).returncode == 0
        monkeypatch.setenv("TAILERD__HTTP__TOKEN", TOKEN)
        assert run_to_end("status", "--http", url).returncode == 0
