"""What operators do with a running daemon, and what they see."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

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
from tests.integration.daemon.test_run import append, make_table
from tests.waiting import eventually

TOKEN = "a-long-random-text"


def tailerd(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_to_end(*arguments, "--http", address(config))


def status(config: Path, name: str) -> dict[str, object]:
    shown = tailerd(config, "status", name, "--json")
    found: dict[str, object] = json.loads(shown.stdout)
    assert shown.returncode == (found["state"] == "failed"), shown.stderr
    return found


def test_a_paused_pipeline_rests_over_a_restart_and_goes_on_where_it_was(tmp_path: Path) -> None:
    builder, out = make_table(tmp_path / "t"), tmp_path / "out"
    other, other_out = make_table(tmp_path / "u"), tmp_path / "other"
    config = write_config(
        tmp_path,
        orders=file_table(tmp_path / "t", out),
        refunds=file_table(tmp_path / "u", other_out),
    )
    with daemon(config) as process:
        eventually(lambda: out.exists() and len(delivered_ids(out)) == 30)
        assert tailerd(config, "pause", "orders").stdout == "orders is paused.\n"
        append(builder, 3)
        append(other, 3)
        eventually(lambda: len(delivered_ids(other_out)) == 40)
        assert status(config, "orders")["state"] == "paused"
        assert 'tailerd_pipeline_state{engine="arrow",table="orders"} 5.0' in page(
            config, "/metrics"
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    with daemon(config) as process:
        log_before = read_log(config)
        eventually(lambda: read_log(config).count("Daemon started") == 2)
        append(other, 4)
        eventually(lambda: len(delivered_ids(other_out)) == 50)
        assert status(config, "orders")["state"] == "paused"
        assert page(config, "/readyz") == "ready\n"
        assert len(delivered_ids(out)) == 30
        # A command that ends leaves it alone, too.
        assert log_before.count("Batch delivered") > 0
        assert tailerd(config, "resume", "orders").returncode == 0
        eventually(lambda: len(delivered_ids(out)) == 40)
        assert sorted(delivered_ids(out)) == list(range(40))
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    saved = json.loads((tmp_path / "state/paused/names.json").read_text())
    assert saved["paused"] == {}


def test_a_pipeline_that_does_not_run_shows_its_lag(tmp_path: Path, engine: str) -> None:
    builder, out = make_table(tmp_path / "t"), tmp_path / "out"
    options = {"from": "latest", "poll_interval": "50ms", "engine": engine}
    make_table(tmp_path / "u")
    config = write_config(
        tmp_path,
        orders=file_table(tmp_path / "t", out, **options),
        # Without a pipeline that runs, the daemon would end.
        other=file_table(tmp_path / "u", tmp_path / "other"),
    )

    def shows(state: str, *figures: object) -> bool:
        shown = status(config, "orders")
        names = ("delivered_version", "head_version", "lag_versions")
        return (shown["state"], *(shown[name] for name in names)) == (state, *figures)

    with daemon(config) as process:
        eventually(lambda: shows("running", None, 3, 0))
        assert tailerd(config, "pause", "orders").returncode == 0
        append(builder, 3)
        append(builder, 4)
        eventually(lambda: shows("paused", None, 5, 2))
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    with daemon(config):
        eventually(lambda: read_log(config).count("Daemon started") == 2)
        eventually(lambda: shows("paused", None, 5, 2))
        append(builder, 5)
        eventually(lambda: shows("paused", None, 6, 3))
        lines = tailerd(config, "status", "orders").stdout
        assert "nothing yet; the table is at version 6, and version 4 is next" in lines
        # VACUUM removed the files.
        for path in (tmp_path / "t").glob("*.parquet"):
            path.unlink()
        tailerd(config, "resume", "orders")
        eventually(lambda: shows("failed", None, 6, 3))
        append(builder, 6)
        eventually(lambda: shows("failed", None, 7, 4))
        assert status(config, "orders")["retention_headroom_seconds"] == 0
        assert "headroom    none" in tailerd(config, "status", "orders").stdout


@pytest.mark.full
def test_once_leaves_a_paused_pipeline_alone_and_ends(tmp_path: Path) -> None:
    make_table(tmp_path / "t")
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", tmp_path / "out"))
    (tmp_path / "state/paused").mkdir(parents=True)
    (tmp_path / "state/paused/names.json").write_text('{"format": 1, "paused": {"orders": ""}}')
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    assert not (tmp_path / "out").exists() or delivered_ids(tmp_path / "out") == []


def test_offsets_reset_goes_through_the_daemon_that_runs(tmp_path: Path) -> None:
    make_table(tmp_path / "t")
    out = tmp_path / "out"
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", out, **{"from": "0"}))
    with daemon(config) as process:
        eventually(lambda: out.exists() and len(delivered_ids(out)) == 30)
        before = tailerd(config, "offsets", "reset", "orders", "--to", "0", "--config", str(config))
        assert (before.returncode, before.stdout) == (
            0,
            "orders reset: begins at version 0.\n",
        )
        eventually(lambda: status(config, "orders")["offset_version"] == 4)
        # The file sink took back what lies at or after version 0, so no row is there twice.
        eventually(lambda: sorted(delivered_ids(out)) == list(range(30)))
        wrong = tailerd(config, "offsets", "reset", "orders", "--to", "99", "--config", str(config))
        assert (wrong.returncode, "error[missing_version]" in wrong.stderr) == (3, True)
        assert status(config, "orders")["state"] in ("starting", "running")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_versions_that_a_reset_skips_are_a_gap_in_the_status(tmp_path: Path) -> None:
    builder, out = make_table(tmp_path / "t"), tmp_path / "out"
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", out))
    with daemon(config) as process:
        eventually(lambda: out.exists() and len(delivered_ids(out)) == 30)
        assert tailerd(config, "pause", "orders").returncode == 0
        append(builder, 3)
        reset = ("offsets", "reset", "orders", "--to", "latest", "--config", str(config))
        assert tailerd(config, *reset).returncode == 2
        assert status(config, "orders")["gaps"] == 0
        done = tailerd(config, *reset, "--yes")
        assert (done.returncode, done.stderr) == (0, "")
        assert "Skipped version 4 (10 rows); the gap is recorded." in done.stdout
        for command in ("pause", "resume"):
            shown = status(config, "orders")
            assert shown["gaps"] == 1
            assert "skipped version 4 (10 rows)" in str(shown["last_gap"])
            assert tailerd(config, command, "orders").returncode == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    assert len(list(out.glob("*.gap.json"))) == 1


@pytest.mark.full
def test_a_failed_pipeline_is_mended_and_resumed_without_a_restart(tmp_path: Path) -> None:
    make_table(tmp_path / "good")
    config = write_config(
        tmp_path,
        good=file_table(tmp_path / "good", tmp_path / "out"),
        late=file_table(tmp_path / "late", tmp_path / "late_out"),
    )
    with daemon(config):
        eventually(lambda: "not_a_table" in read_log(config))
        failed = status(config, "late")
        error = failed["last_error"]
        assert isinstance(error, dict)
        assert (failed["state"], error["code"]) == ("failed", "not_a_table")
        make_table(tmp_path / "late")
        assert tailerd(config, "resume", "late").returncode == 0
        eventually(
            lambda: (
                (tmp_path / "late_out").exists() and len(delivered_ids(tmp_path / "late_out")) == 30
            )
        )


@pytest.mark.full
def test_growth_and_backlog_are_in_status_and_metrics(tmp_path: Path) -> None:
    builder, out = make_table(tmp_path / "t"), tmp_path / "out"
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", out))
    with daemon(config):
        eventually(lambda: out.exists() and len(delivered_ids(out)) == 30)
        eventually(lambda: "tailerd_table_files" in page(config, "/metrics"))
        for number in range(3, 6):
            append(builder, number)
        eventually(lambda: 'tailerd_table_rows{table="orders"} 60.0' in page(config, "/metrics"))
        metrics, shown = page(config, "/metrics"), status(config, "orders")
    size = shown["size"]
    assert isinstance(size, dict)
    assert (size["files"], size["rows"], size["commits_since_checkpoint"]) == (6, 60, 7)
    assert size["growth_per_day"]["rows"] == 30
    assert (shown["lag_files"], shown["lag_bytes"]) == (0, 0)
    assert shown["retention_headroom_seconds"] == 7 * 86_400
    for sample in (
        'tailerd_log_files{table="orders"} 7.0',
        'tailerd_table_file_size_bytes_count{table="orders"} 6.0',
        'tailerd_commits_total{engine="arrow",mode="files",table="orders"} 3.0',
        'tailerd_retention_headroom_seconds{engine="arrow",table="orders"} 604800.0',
    ):
        assert sample in metrics


@pytest.mark.full
def test_growth_can_be_switched_off(tmp_path: Path) -> None:
    make_table(tmp_path / "t")
    out = tmp_path / "out"
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", out))
    config.write_text(f"table_metrics: false\n{config.read_text()}")
    with daemon(config):
        eventually(lambda: out.exists() and len(delivered_ids(out)) == 30)
        time.sleep(1.5)
        assert "tailerd_table_files{" not in page(config, "/metrics")
        assert status(config, "orders")["size"] is None


@pytest.mark.full
def test_a_token_guards_control_and_appears_nowhere(tmp_path: Path) -> None:
    make_table(tmp_path / "t")
    out = tmp_path / "out"
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", out))
    content = yaml.safe_load(config.read_text())
    content["http"] = {"listen": "0.0.0.0:0", "token": TOKEN}
    config.write_text(yaml.safe_dump(content))
    with daemon(config, "--log-level", "debug"):
        eventually(lambda: out.exists() and len(delivered_ids(out)) == 30)
        refused = tailerd(config, "pause", "orders")
        assert (refused.returncode, "TAILERD__HTTP__TOKEN" in refused.stderr) == (1, True)
        assert status(config, "orders")["state"] == "running"
        paused = tailerd(config, "pause", "orders", "--config", str(config))
        assert paused.returncode == 0, paused.stderr
        shown = page(config, "/status") + page(config, "/metrics") + read_log(config)
    assert TOKEN not in shown + refused.stderr + paused.stdout


@pytest.mark.full
def test_a_listener_for_everyone_without_a_token_shows_only_metrics(tmp_path: Path) -> None:
    make_table(tmp_path / "t")
    out = tmp_path / "out"
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", out))
    config.write_text(config.read_text().replace("127.0.0.1:0", "0.0.0.0:0"))
    with daemon(config):
        eventually(lambda: out.exists() and len(delivered_ids(out)) == 30)
        for command in ("status", "pause"):
            refused = tailerd(config, command, "orders")
            assert (refused.returncode, "http.token is not set" in refused.stderr) == (1, True)
        assert "tailerd_lag_versions" in page(config, "/metrics")


@pytest.mark.full
def test_watching_shows_again_and_again_until_ctrl_c(tmp_path: Path) -> None:
    make_table(tmp_path / "t")
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", tmp_path / "out"))
    with daemon(config):
        url = address(config)
        arguments = [*TAILERD, "status", "--watch", "--interval", "0.1", "--json", "--http", url]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as watching:
            assert watching.stdout is not None
            lines = [json.loads(watching.stdout.readline()) for _ in range(3)]
            watching.send_signal(signal.SIGINT)
            assert watching.wait(10) == 130
    assert [line["table"] for line in lines] == ["orders"] * 3
