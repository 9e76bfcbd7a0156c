"""The daemon as users run it: a real process, real tables, real files, real signals."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
from pathlib import Path

import pytest

from tailerd.cli import run
from tests.integration.daemon.running import (
    TAILERD,
    address,
    daemon,
    delivered_ids,
    file_table,
    page,
    read_log,
    run_to_end,
    write_config,
)
from tests.kafka.ports import free_port
from tests.tables.builder import TableBuilder
from tests.waiting import PATIENCE_SECONDS, eventually


def make_table(folder: Path, commits: int = 3, rows: int = 10) -> TableBuilder:
    builder = TableBuilder(folder, start_ms=None)
    builder.create()
    for number in range(commits):
        append(builder, number, rows)
    return builder


def append(builder: TableBuilder, number: int, rows: int = 10) -> None:
    builder.append([{"id": number * rows + n, "name": "x" * 20} for n in range(rows)])


def test_once_gives_up_on_a_dead_broker_after_the_time_that_it_may_retry(
    tmp_path: Path, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_table(tmp_path / "t")
    sink = {"kind": "kafka", "bootstrap_servers": [f"127.0.0.1:{free_port()}"], "topic": "x"}
    table: dict[str, object] = {"path": str(tmp_path / "t"), "sink": sink, "engine": engine}
    config = str(write_config(tmp_path, orders=table))
    assert run(["run", "--config", config, "--once", "--retry-for", "1s"]) == 1
    assert "No attempt succeeded in 1 s." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [(["--retry-for", "1s"], "needs --once"), (["--once", "--retry-for", "5"], "with a unit")],
)
def test_a_time_to_retry_needs_once_and_a_unit(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = str(write_config(tmp_path, orders=file_table(tmp_path / "t", tmp_path / "out")))
    assert run(["run", "--config", config, *options]) == 2
    assert words in capsys.readouterr().err


def test_once_delivers_what_is_there_and_a_second_time_only_what_is_new(tmp_path: Path) -> None:
    builder, out = make_table(tmp_path / "t"), tmp_path / "out"
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", out))
    done = run_to_end("run", "--config", config, "--once")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert sorted(delivered_ids(out)) == list(range(30))
    append(builder, 3)
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    assert sorted(delivered_ids(out)) == list(range(40))
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    assert len(delivered_ids(out)) == 40


@pytest.mark.full
def test_the_console_sink_prints_rows_and_nothing_else(tmp_path: Path) -> None:
    make_table(tmp_path / "t", commits=1)
    config = write_config(
        tmp_path, orders={"path": str(tmp_path / "t"), "from": "0", "sink": {"kind": "console"}}
    )
    done = run_to_end("run", "--config", config, "--once", "--log-level", "debug")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["id"] for row in rows] == list(range(10))
    assert all(json.loads(line)["event"] for line in done.stderr.splitlines())


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["snapshot", "0"])
def test_kill_9_in_the_middle_loses_and_doubles_no_row(tmp_path: Path, mode: str) -> None:
    builder, out = make_table(tmp_path / "t", commits=40), tmp_path / "out"
    options: dict[str, object] = {"from": mode, "max_files_per_batch": 1}
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", out, **options))
    chance = random.Random(1)
    number, kills = 40, 0
    while number < 80:
        with daemon(config) as process:
            before = len(delivered_ids(out)) if out.exists() else 0
            # The killed one may have delivered everything.
            append(builder, number)
            number += 1
            eventually(lambda seen=before: out.exists() and len(delivered_ids(out)) > seen)  # type: ignore[misc]
            for _ in range(3):
                append(builder, number)
                number += 1
                time.sleep(chance.random() * 0.01)
            process.send_signal(signal.SIGKILL)
            kills += 1
    assert kills >= 5
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    ids = delivered_ids(out)
    assert sorted(ids) == list(range(800))


@pytest.mark.full
def test_a_commit_is_delivered_without_waiting_for_the_poll(tmp_path: Path) -> None:
    builder, out = make_table(tmp_path / "t", commits=1), tmp_path / "out"
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", out, poll_interval="1h"))
    with daemon(config):
        eventually(lambda: len(delivered_ids(out)) == 10)
        time.sleep(1.5)
        times = []
        for number in range(1, 8):
            began = time.monotonic()
            append(builder, number)
            eventually(lambda n=number: len(delivered_ids(out)) == 10 * n + 10)  # type: ignore[misc]
            times.append(time.monotonic() - began)
    assert sorted(times)[len(times) // 2] < 0.5


def test_polling_finds_commits_of_a_table_whose_log_was_replaced(tmp_path: Path) -> None:
    builder, out = make_table(tmp_path / "t", commits=1), tmp_path / "out"
    # For a moment there is no log, which may be the moment of a look.
    table = file_table(tmp_path / "t", out, poll_interval="50ms", on_gap="latest")
    config = write_config(tmp_path, orders=table)
    with daemon(config):
        eventually(lambda: len(delivered_ids(out)) == 10)
        moved = tmp_path / "moved"
        shutil.copytree(builder.log, moved)
        builder.log.rename(tmp_path / "old")
        moved.rename(builder.log)
        append(builder, 1)
        eventually(lambda: len(delivered_ids(out)) == 20)


@pytest.mark.full
@pytest.mark.parametrize(("sent", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_with_its_status_and_everything_saved(
    tmp_path: Path, sent: signal.Signals, status: int
) -> None:
    make_table(tmp_path / "t")
    out = tmp_path / "out"
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", out))
    with daemon(config) as process:
        eventually(lambda: out.exists() and len(delivered_ids(out)) == 30)
        process.send_signal(sent)
        assert process.wait(10) == status
    shown = run_to_end("offsets", "--config", config, "--json")
    assert json.loads(shown.stdout)["offset"]["version"] == 4


@pytest.mark.full
@pytest.mark.parametrize("signals", [1, 2])
def test_a_sink_that_hangs_does_not_keep_the_process(tmp_path: Path, signals: int) -> None:
    make_table(tmp_path / "t", commits=1, rows=20_000)
    config = write_config(
        tmp_path, orders={"path": str(tmp_path / "t"), "from": "0", "sink": {"kind": "console"}}
    )
    patience = "1s" if signals == 1 else "1h"
    config.write_text(f"shutdown_timeout: {patience}\n{config.read_text()}")
    with subprocess.Popen(
        [*TAILERD, "run", "--config", str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        # One line is read, then nobody reads on: the pipe fills and the sink's thread hangs.
        assert process.stdout.readline().startswith("{")
        time.sleep(0.5)
        for _ in range(signals):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
        process.wait(15)
        assert process.returncode == 1
        assert "error[stuck]" in process.stderr.read()
    assert (
        json.loads((tmp_path / "state/offsets/orders.json").read_text())["offset"]["version"] == 0
    )


@pytest.mark.full
def test_pages_tell_how_it_goes(tmp_path: Path) -> None:
    make_table(tmp_path / "t")
    out = tmp_path / "out"
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", out))
    with daemon(config):
        eventually(lambda: out.exists() and len(delivered_ids(out)) == 30)
        eventually(
            lambda: (
                'tailerd_offset_version{engine="arrow",table="orders"} 4.0'
                in page(config, "/metrics")
            )
        )
        # What lies ahead is known with the next look, a moment after the offset is saved.
        eventually(lambda: json.loads(page(config, "/status"))["tables"][0]["lag_versions"] == 0)
        seconds = 'tailerd_lag_seconds{engine="arrow",table="orders"} 0.0'
        eventually(lambda: seconds in page(config, "/metrics"))
        assert page(config, "/healthz") == "ok\n"
        assert page(config, "/readyz") == "ready\n"
        (shown,) = json.loads(page(config, "/status"))["tables"]
        metrics = page(config, "/metrics")
    assert (shown["state"], shown["offset_version"], shown["head_version"]) == ("running", 4, 3)
    assert (shown["lag_versions"], shown["lag_seconds"]) == (0, 0.0)
    assert shown["rows_delivered"] == {"insert": 30}
    assert 'op="insert",sink="file",table="orders"} 30.0' in metrics
    assert 'tailerd_storage_requests_total{op="list"}' in metrics
    assert 'tailerd_log_replay_seconds_count{table="orders"}' in metrics


@pytest.mark.full
def test_one_broken_table_fails_by_name_and_the_others_go_on(tmp_path: Path) -> None:
    builder, out = make_table(tmp_path / "good"), tmp_path / "out"
    (tmp_path / "bad").mkdir()
    config = write_config(
        tmp_path,
        bad=file_table(tmp_path / "bad", tmp_path / "bad_out"),
        good=file_table(tmp_path / "good", out),
    )
    with daemon(config) as process:
        eventually(lambda: out.exists() and len(delivered_ids(out)) == 30)
        append(builder, 3)
        eventually(lambda: len(delivered_ids(out)) == 40)
        with pytest.raises(urllib.error.HTTPError, match="503"):
            page(config, "/readyz")
        status = {t["table"]: t for t in json.loads(page(config, "/status"))["tables"]}
        assert status["bad"]["state"] == "failed"
        assert status["bad"]["last_error"]["code"] == "not_a_table"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 3


@pytest.mark.full
def test_when_every_pipeline_has_failed_the_daemon_ends_with_the_tables_status(
    tmp_path: Path,
) -> None:
    config = write_config(tmp_path, bad=file_table(tmp_path / "bad", tmp_path / "out"))
    done = run_to_end("run", "--config", config)
    assert done.returncode == 3
    assert "error[not_a_table]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.full
def test_two_daemons_do_not_share_a_state_folder(tmp_path: Path) -> None:
    make_table(tmp_path / "t")
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", tmp_path / "out"))
    with daemon(config) as process:
        eventually(lambda: "http://" in read_log(config))
        second = run_to_end("run", "--config", config)
        assert second.returncode == 2
        assert f"process {process.pid} on " in second.stderr
        reset = run_to_end("offsets", "reset", "orders", "--to", "0", "--config", config)
        # It would go through the daemon, whose port only its log knows.
        assert (reset.returncode, f"process {process.pid} on " in reset.stderr) == (1, True)
        assert "--http" in reset.stderr


@pytest.mark.full
def test_an_offset_file_that_was_cut_off_is_named(tmp_path: Path) -> None:
    make_table(tmp_path / "t")
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", tmp_path / "out"))
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    offset = tmp_path / "state/offsets/orders.json"
    offset.write_text(offset.read_text()[:50])
    done = run_to_end("run", "--config", config, "--once")
    assert done.returncode == 1
    assert "error[offset]" in done.stderr
    assert str(offset) in done.stderr


@pytest.mark.full
def test_a_listener_whose_port_is_taken_says_so(tmp_path: Path) -> None:
    make_table(tmp_path / "t")
    first = write_config(tmp_path, orders=file_table(tmp_path / "t", tmp_path / "out"))
    with daemon(first):
        port = address(first).removeprefix("http://")
        (tmp_path / "second").mkdir()
        second = write_config(
            tmp_path / "second", orders=file_table(tmp_path / "t", tmp_path / "out2")
        )
        second.write_text(second.read_text().replace("127.0.0.1:0", port))
        done = run_to_end("run", "--config", second)
    assert done.returncode == 2
    assert f"http.listen is {port}" in done.stderr


@pytest.mark.full
def test_an_arrow_daemon_loads_no_pyspark(tmp_path: Path) -> None:
    make_table(tmp_path / "t")
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", tmp_path / "out"))
    code = (
        "import sys; from tailerd.cli import run;"
        f" print(run(['run', '--config', {str(config)!r}, '--once']), 'pyspark' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.stdout == "0 False\n", done.stderr
