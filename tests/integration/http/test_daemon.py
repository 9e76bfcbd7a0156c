"""Commands with the sink `http`: run, status, doctor, and the example that users start with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.http.receiver import ACCEPT, HANG, Receiver, Request, running_receiver
from tests.integration.daemon.running import (
    address,
    daemon,
    make_table,
    page,
    run_to_end,
    write_config,
)
from tests.waiting import PATIENCE_SECONDS, eventually


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with running_receiver() as made:
        yield made


def http_table(tmp_path: Path, receiver: Receiver, **sink: Any) -> dict[str, object]:
    section = {"kind": "http", "url": receiver.url, "key": ["id"], **sink}
    return {"path": str(tmp_path / "table"), "from": "snapshot", "sink": section}


def ids(receiver: Receiver) -> list[int]:
    return sorted(event["data"]["id"] for event in receiver.events)


def reject_two(request: Request) -> int:
    return 422 if any(event["data"]["id"] == 2 for event in request.events) else ACCEPT


def test_a_table_arrives_once_and_a_rejected_event_is_shown(
    tmp_path: Path, receiver: Receiver
) -> None:
    table = make_table(tmp_path / "table", 1, 2, 3)
    receiver.rule = reject_two
    config = write_config(tmp_path, orders=http_table(tmp_path, receiver))
    with daemon(config):
        eventually(lambda: ids(receiver) == [1, 3])
        path = tmp_path / "state/dead_letters/orders.jsonl"
        eventually(lambda: json.loads(page(config, "/status"))["tables"][0]["dead_letters"] != {})
        status = json.loads(page(config, "/status"))["tables"][0]
        assert status["dead_letters"] == {str(path): 1}
        assert 'tailerd_dead_letter_records_total{error_code="event_rejected"' in page(
            config, "/metrics"
        )
        table.append([{"id": 4}])
        eventually(lambda: ids(receiver) == [1, 3, 4])
        assert address(config)
    [letter] = [json.loads(line) for line in path.read_text().splitlines()]
    assert letter["event"]["data"]["id"] == 2


def test_a_restart_sends_only_later_changes(tmp_path: Path, receiver: Receiver) -> None:
    table = make_table(tmp_path / "table", 1, 2)
    config = write_config(tmp_path, orders=http_table(tmp_path, receiver, hmac_key="a-key"))
    for _ in range(2):
        done = run_to_end("run", "--config", config, "--once")
        assert done.returncode == 0, done.stderr
        assert ids(receiver) == [1, 2]
    table.append([{"id": 3}])
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    assert ids(receiver) == [1, 2, 3]


def test_an_endpoint_that_refuses_stops_the_pipeline_with_a_remedy(
    tmp_path: Path, receiver: Receiver
) -> None:
    make_table(tmp_path / "table", 1)
    receiver.rule = lambda _: 403
    sink = {"bearer_token": "s3cr3t-Value"}
    config = write_config(tmp_path, orders=http_table(tmp_path, receiver, **sink))
    done = run_to_end("run", "--config", config, "--once")
    assert done.returncode == 1
    assert "answered 403 Forbidden" in done.stderr
    assert "`stop_on`" in done.stderr
    assert "s3cr3t" not in done.stderr
    assert not (tmp_path / "state/dead_letters").exists()
    receiver.rule = lambda _: ACCEPT
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    assert ids(receiver) == [1]


def test_a_daemon_ends_in_time_while_the_endpoint_hangs(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILERD__SHUTDOWN_TIMEOUT", "4s")
    make_table(tmp_path / "table", 1)
    receiver.rule = lambda _: HANG
    config = write_config(tmp_path, orders=http_table(tmp_path, receiver))
    with daemon(config) as process:
        eventually(lambda: len(receiver.posts) == 1)
        process.send_signal(signal.SIGTERM)
        process.wait(15)


def test_doctor_asks_the_endpoint_and_checks_the_key(tmp_path: Path, receiver: Receiver) -> None:
    make_table(tmp_path / "table", 1)
    config = write_config(tmp_path, orders=http_table(tmp_path, receiver))
    done = run_to_end("doctor", config)
    assert done.returncode == 0, done.stdout
    assert [request.method for request in receiver.requests] == ["OPTIONS"]
    receiver.rule = lambda _: 404
    config = write_config(tmp_path, orders=http_table(tmp_path, receiver, key=["order_id"]))
    rows = run_to_end("doctor", config, "--json").stdout.splitlines()
    found = [row for row in map(json.loads, rows) if row["outcome"] == "problem"]
    assert {row["code"] for row in found} == {"config", "sink_refused"}
    assert "answered 404 Not Found" in " ".join(row["message"] for row in found)
    assert "sink.key names the column order_id" in " ".join(row["message"] for row in found)


def test_verify_says_that_an_endpoint_cannot_be_read(tmp_path: Path, receiver: Receiver) -> None:
    make_table(tmp_path / "table", 1)
    config = write_config(tmp_path, orders=http_table(tmp_path, receiver))
    done = run_to_end("verify", "orders", "--config", config)
    assert done.returncode == 2
    assert "http" in done.stderr


def test_the_example_delivers_to_the_endpoint_of_the_tests(tmp_path: Path) -> None:
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.http", "--port", "0"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        url = server.stdout.readline().removeprefix("POST ").strip()
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "tailerd",
                "run",
                "--config",
                ROOT / "config/http.yaml",
                "--once",
            ],
            cwd=tmp_path,
            env={**os.environ, "TAILERD__TABLES__ORDERS__SINK__URL": url, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "'order_id'" in server.stdout.readline()
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(10) == 0
