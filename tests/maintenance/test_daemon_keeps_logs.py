"""The daemon as a process of its own, with `maintenance`: alone, and beside all sorts of others."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
import yaml

from tests.formats.delta.log_bodies import add
from tests.integration.daemon.running import (
    address,
    daemon,
    delivered_ids,
    file_table,
    page,
    read_log,
    run_to_end,
    write_config,
)
from tests.maintenance.test_cleanup import commits_of
from tests.tables.builder import TableBuilder
from tests.waiting import eventually

NO_CHECKPOINT = deltalake.PostCommitHookProperties(create_checkpoint=False)


def kept(table: Path, **maintenance: object) -> dict[str, object]:
    return {"path": str(table), "maintenance": maintenance}


def often(commits: int = 3) -> dict[str, object]:
    return {"every_commits": commits, "min_interval": "0s"}


def make_table(folder: Path, ids: int) -> TableBuilder:
    table = TableBuilder(folder, reader_features=[], writer_features=["appendOnly", "invariants"])
    table.create()
    for number in range(1, ids + 1):
        table.append([{"id": number}])
    return table


def checkpoints(table: Path) -> list[int]:
    names = [path.name for path in (table / "_delta_log").glob("*.checkpoint*")]
    return sorted(int(name.partition(".")[0]) for name in names)


def status_of(config: Path, table: str) -> dict[str, Any]:
    [found] = [t for t in json.loads(page(config, "/status"))["tables"] if t["table"] == table]
    return dict(found)


def done_version(config: Path, table: str, job: str) -> int:
    """The version a job was last done for; -1 before the first."""
    jobs = (status_of(config, table)["maintenance"] or {"jobs": {}})["jobs"]
    return int(jobs.get(job, {"version": -1})["version"])


def jobs_done(config: Path) -> Counter[str]:
    return Counter(line["job"] for line in lines_of(config, "Maintenance job completed"))


def lines_of(config: Path, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in read_log(config).splitlines()]
    return [line for line in lines if line["event"] == event]


def test_a_service_without_sinks_keeps_a_log_short_and_tells_what_it_did(tmp_path: Path) -> None:
    table = make_table(tmp_path / "orders", 4)
    config = write_config(tmp_path, orders=kept(table.folder, checkpoint=often(3), checksum=True))
    with daemon(config) as process:
        eventually(lambda: checkpoints(table.folder) == [4])
        for number in range(5, 9):
            table.append([{"id": number}])
        eventually(lambda: checkpoints(table.folder)[-1] >= 7)
        eventually(lambda: (table.log / f"{8:020}.crc").exists())
        eventually(lambda: status_of(config, "orders")["head_version"] == 8)
        # The file is there a moment before its job is told of.
        eventually(lambda: status_of(config, "orders")["maintenance"]["due"] == [])
        eventually(lambda: (status_of(config, "orders")["size"] or {}).get("version") == 8)
        found = status_of(config, "orders")
        assert (found["state"], found["engine"], found["sink"]) == ("running", "none", "")
        jobs = found["maintenance"]["jobs"]
        assert jobs["checkpoint"]["result"] == jobs["checksum"]["result"] == "written"
        assert "reach the limit of 3." in jobs["checkpoint"]["reason"]
        assert found["maintenance"]["due"] == []
        assert page(config, "/readyz") == "ready\n"
        metrics = page(config, "/metrics")
        for sample in (
            'tailerd_checkpoint_total{result="written",table="orders"}',
            'tailerd_maintenance_job_seconds_count{job="checkpoint",table="orders"}',
            'tailerd_version_checksum_total{result="written",table="orders"}',
            'tailerd_table_files{table="orders"} ',
            'tailerd_table_rows{table="orders"} ',
            'tailerd_log_commits_since_checkpoint{table="orders"} ',
        ):
            assert sample in metrics
        # It has no reader to be behind.
        for sample in ("tailerd_lag_files{", "tailerd_retention_headroom_seconds{"):
            assert sample not in metrics
        assert found["size"]["files"] == 8
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    done = lines_of(config, "Maintenance job completed")
    assert {line["job"] for line in done} == {"checkpoint", "checksum"}
    assert deltalake.DeltaTable(table.folder).to_pyarrow_table().num_rows == 8
    assert table.rows() == sorted(table.rows(), key=lambda row: row["id"])


@pytest.mark.full
def test_once_does_what_is_due_and_ends(tmp_path: Path) -> None:
    delivered, alone = make_table(tmp_path / "delivered", 4), make_table(tmp_path / "alone", 4)
    both = file_table(delivered.folder, tmp_path / "out", maintenance={"checkpoint": often()})
    config = write_config(tmp_path, delivered=both, alone=kept(alone.folder, checkpoint=often()))
    ended = run_to_end("run", "--config", config, "--once")
    assert ended.returncode == 0, ended.stderr
    assert sorted(delivered_ids(tmp_path / "out")) == [1, 2, 3, 4]
    assert checkpoints(delivered.folder) == checkpoints(alone.folder) == [4]


@pytest.mark.full
def test_deliveries_and_maintenance_of_one_table_go_on_together(tmp_path: Path) -> None:
    table = make_table(tmp_path / "orders", 1)
    orders = file_table(
        table.folder, tmp_path / "out", maintenance={"checkpoint": often(5), "checksum": True}
    )
    config = write_config(tmp_path, orders=orders)
    with daemon(config):
        for number in range(2, 41):
            table.append([{"id": number}])
        eventually(lambda: len(delivered_ids(tmp_path / "out")) == 40)
        eventually(lambda: bool(checkpoints(table.folder)) and checkpoints(table.folder)[-1] >= 36)
        assert sorted(delivered_ids(tmp_path / "out")) == list(range(1, 41))
        # The file is there a moment before its job is told of.
        eventually(lambda: done_version(config, "orders", "checkpoint") >= 36)
    assert not lines_of(config, "Pipeline failed")
    assert not lines_of(config, "Maintenance job failed, retrying")


@pytest.mark.full
@pytest.mark.parametrize("feature", ["somethingNew", "inCommitTimestampOfTomorrow"])
def test_a_log_that_must_be_left_alone_is_tailed_all_the_same(tmp_path: Path, feature: str) -> None:
    table = TableBuilder(tmp_path / "orders", reader_features=[], writer_features=[feature])
    table.create()
    for number in range(1, 8):
        table.append([{"id": number}])
    orders = file_table(table.folder, tmp_path / "out", maintenance={"checkpoint": often()})
    config = write_config(tmp_path, orders=orders)
    with daemon(config) as process:
        eventually(lambda: len(delivered_ids(tmp_path / "out")) == 7)
        eventually(lambda: bool((status_of(config, "orders")["maintenance"] or {}).get("refused")))
        refused = status_of(config, "orders")["maintenance"]["refused"]
        assert refused["code"] == "unsupported_feature"
        assert feature in refused["message"]
        table.append([{"id": 8}])
        eventually(lambda: len(delivered_ids(tmp_path / "out")) == 8)
        assert page(config, "/readyz") == "ready\n"
        assert 'tailerd_maintenance_refused{table="orders"} 1.0' in page(config, "/metrics")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert len(lines_of(config, "Maintenance skipped")) == 1
    assert checkpoints(table.folder) == []


@pytest.mark.full
def test_what_is_not_delivered_is_not_deleted(tmp_path: Path) -> None:
    """All its commits have expired; a held pipeline stands in the way, a delivered one does not."""
    table = make_table(tmp_path / "orders", 39)
    table.checkpoint(12)
    table.checkpoint(30)
    for path in table.log.iterdir():
        os.utime(path, (1_600_000_000, 1_600_000_000))
    maintenance = {"checkpoint": {"every_commits": 1000}, "cleanup": {"enabled": True}}
    orders = {**file_table(table.folder, tmp_path / "out", maintenance=maintenance), "from": "15"}
    config = write_config(tmp_path, orders=orders)
    (tmp_path / "state/paused").mkdir(parents=True)
    (tmp_path / "state/paused/names.json").write_text('{"format": 1, "paused": {"orders": ""}}')
    with daemon(config):
        eventually(lambda: status_of(config, "orders")["state"] == "paused")
        eventually(lambda: status_of(config, "orders")["maintenance"] is not None)
        time.sleep(1)
        assert commits_of(table)[0] == 0
        assert run_to_end("resume", "orders", "--http", address(config)).returncode == 0
        eventually(lambda: len(delivered_ids(tmp_path / "out")) == 39 - 14)
        eventually(lambda: commits_of(table)[0] in (12, 30))
    assert not lines_of(config, "Pipeline failed")


@pytest.mark.full
def test_a_changed_configuration_changes_the_policy(tmp_path: Path) -> None:
    table = make_table(tmp_path / "orders", 4)
    config = write_config(tmp_path, orders=kept(table.folder, checkpoint=often(100)))
    content = yaml.safe_load(config.read_text())

    def reload(process: Any, **tables: object) -> None:
        config.write_text(yaml.safe_dump({**content, "tables": tables}))
        process.send_signal(signal.SIGHUP)

    with daemon(config) as process:
        eventually(lambda: status_of(config, "orders")["maintenance"] is not None)
        assert checkpoints(table.folder) == []
        reload(process, orders=kept(table.folder, checkpoint=often(2)))
        eventually(lambda: checkpoints(table.folder) == [4])
        # With a sink it is a pipeline; the log goes on being kept.
        both = file_table(table.folder, tmp_path / "out", maintenance={"checkpoint": often(2)})
        reload(process, orders=both)
        eventually(lambda: sorted(delivered_ids(tmp_path / "out")) == [1, 2, 3, 4])
        table.append([{"id": 5}])
        table.append([{"id": 6}])
        eventually(lambda: checkpoints(table.folder)[-1] >= 6)
        assert status_of(config, "orders")["engine"] == "arrow"
        # Without the section nothing is done any more.
        reload(process, orders=file_table(table.folder, tmp_path / "out"))
        eventually(lambda: len(lines_of(config, "Configuration reloaded")) == 3)
        time.sleep(0.5)
        before = checkpoints(table.folder)
        for number in range(7, 12):
            table.append([{"id": number}])
        eventually(lambda: len(delivered_ids(tmp_path / "out")) == 11)
        time.sleep(1.5)
        assert checkpoints(table.folder) == before
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


@pytest.mark.full
def test_two_daemons_share_a_table_without_doing_anything_twice(tmp_path: Path) -> None:
    table = make_table(tmp_path / "orders", 2)
    configs = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        keep = kept(table.folder, checkpoint=often(4), checksum=True)
        configs.append(write_config(tmp_path / name, orders=keep))
    with daemon(configs[0]) as one, daemon(configs[1]) as two:
        for config in configs:
            eventually(lambda config=config: status_of(config, "orders")["state"] == "running")  # type: ignore[misc]
        for number in range(3, 60):
            table.append([{"id": number}])
            time.sleep(0.05)
        eventually(lambda: max(checkpoints(table.folder), default=0) >= 55)
        for process in (one, two):
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
    written: Counter[int] = Counter()
    for config in configs:
        done = lines_of(config, "Maintenance job completed")
        written.update(line["version"] for line in done if line["job"] == "checkpoint")
        assert not lines_of(config, "Maintenance job failed, retrying")
    found = Counter(checkpoints(table.folder))
    assert set(found.values()) == {1}
    assert found.keys() <= written.keys()
    assert len(list((table.folder / "_tailerd/maintenance").iterdir())) == 1
    assert deltalake.DeltaTable(table.folder).to_pyarrow_table().num_rows == 59


def big_table(folder: Path, commits: int = 4, files: int = 15_000) -> TableBuilder:
    """A table whose checkpoint takes long enough to be interrupted."""
    table = TableBuilder(folder, reader_features=[], writer_features=["appendOnly", "invariants"])
    table.create()
    for version in range(commits):
        table.commit(*(add(f"part-{version}-{number}.parquet") for number in range(files)))
    return table


@pytest.mark.full
def test_a_daemon_that_is_killed_leaves_nothing_that_readers_trip_over(tmp_path: Path) -> None:
    table = big_table(tmp_path / "orders")
    config = write_config(tmp_path, orders=kept(table.folder, checkpoint=often(), checksum=True))
    wanted = 4 * 15_000
    for seconds in (0.1, 0.3, 0.6, 0.9):
        with daemon(config) as process:
            eventually(lambda: "Daemon started" in read_log(config))
            time.sleep(seconds)
            process.kill()
            process.wait(10)
        assert len(deltalake.DeltaTable(table.folder).file_uris()) == wanted
        (config.parent / "daemon.log").unlink()
    with daemon(config) as process:
        eventually(lambda: "Daemon started" in read_log(config))
        # The lease of the dead process is not waited for.
        eventually(lambda: checkpoints(table.folder) == [table.version])
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    hidden = table.folder / "hidden"
    hidden.mkdir()
    for version in range(table.version):
        shutil.move(table.commit_path(version), hidden)
    assert len(deltalake.DeltaTable(table.folder).file_uris()) == wanted


@pytest.mark.full
@pytest.mark.parametrize("timeout", ["0s", "30s"])
def test_the_end_waits_for_a_job_or_gives_it_up_without_a_trace(
    tmp_path: Path, timeout: str
) -> None:
    table = big_table(tmp_path / "orders")
    before = set(table.log.iterdir())
    config = write_config(tmp_path, orders=kept(table.folder, checkpoint=often()))
    config.write_text(config.read_text() + f"shutdown_timeout: {timeout}\n")
    with daemon(config) as process:
        eventually(lambda: bool(set(table.log.iterdir()) - before))
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == 0
        assert time.monotonic() - began < 20
    left = {path.name for path in set(table.log.iterdir()) - before}
    whole = {f"{table.version:020}.checkpoint.parquet", "_last_checkpoint"}
    assert left == whole or (timeout == "0s" and left == set())
    [paper] = (table.folder / "_tailerd/maintenance").iterdir()
    assert json.loads(paper.read_text())["is_released"]


@pytest.mark.full
def test_deltalake_writes_and_reads_in_a_loop_beside_the_daemon(tmp_path: Path) -> None:
    """Appends, deletes, checkpoints of its own; every version has the rows its writer gave it."""
    location = tmp_path / "orders"
    deltalake.write_deltalake(location, pa.table({"id": pa.array([0], pa.int64())}))
    keep = kept(
        location,
        checkpoint=often(3),
        checksum=True,
        log_compaction={"every_commits": 2},
        cleanup={"enabled": True},
    )
    config = write_config(tmp_path, orders=keep)
    expected, ids, wrong = {0: 1}, {0}, list[str]()
    is_over = threading.Event()
    # deltalake replaces a checkpoint that lies there, ours too; one that reads it beside that
    # takes the size it had before. Of the daemon no file is ever replaced.
    replacing = threading.Lock()

    def read() -> None:
        while not is_over.is_set():
            try:
                with replacing:
                    found = deltalake.DeltaTable(location)
                rows = found.to_pyarrow_table().num_rows
            except Exception as error:  # noqa: BLE001 - whatever a reader meets is wrong
                wrong.append(repr(error))
                continue
            # Its writer may not have noted the newest version yet.
            while found.version() not in expected and not is_over.is_set():
                time.sleep(0.001)
            if expected.get(found.version(), rows) != rows:
                wrong.append(f"version {found.version()}: {rows}, not {expected[found.version()]}")

    reader = threading.Thread(target=read)
    with daemon(config) as process:
        eventually(lambda: status_of(config, "orders")["state"] == "running")
        reader.start()
        deadline, number = time.monotonic() + 6, 0

        def is_done() -> bool:
            done = jobs_done(config)
            is_late = time.monotonic() > deadline + 40
            return is_late or min(done[job] for job in ("checkpoint", "checksum")) >= 2

        while time.monotonic() < deadline or not is_done():
            number += 1
            table = deltalake.DeltaTable(location)
            if number % 7 == 0 and len(ids) > 3:
                gone = min(ids)
                table.delete(f"id = {gone}")
                ids.discard(gone)
                expected[deltalake.DeltaTable(location).version()] = len(ids)
            else:
                row = pa.table({"id": pa.array([number], pa.int64())})
                deltalake.write_deltalake(
                    table, row, mode="append", post_commithook_properties=NO_CHECKPOINT
                )
                ids.add(number)
                expected[table.version()] = len(ids)
            if number % 11 == 0:
                with replacing:
                    deltalake.DeltaTable(location).create_checkpoint()
        is_over.set()
        reader.join(20)
        assert min(jobs_done(config)[job] for job in ("checkpoint", "checksum")) >= 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert wrong == []
    assert not lines_of(config, "Maintenance job failed, retrying")
    table = deltalake.DeltaTable(location)
    assert sorted(table.to_pyarrow_table().column("id").to_pylist()) == sorted(ids)
    shown = run_to_end("tail", location, "--from", "snapshot", "--once", "--format", "jsonl")
    assert sorted(json.loads(line)["id"] for line in shown.stdout.splitlines()) == sorted(ids)
    for version, rows in expected.items():
        assert deltalake.DeltaTable(location, version=version).to_pyarrow_table().num_rows == rows
