"""A daemon that is killed in the middle of a snapshot whose log is cleaned up while it is down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.daemon.running import (
    daemon,
    delivered_ids,
    file_table,
    run_to_end,
    write_config,
)
from tests.tables.builder import TableBuilder
from tests.waiting import eventually

FILES = 150


@pytest.mark.full
def test_every_row_comes_once_although_the_snapshots_log_is_gone(tmp_path: Path) -> None:
    builder, out = TableBuilder(tmp_path / "t"), tmp_path / "out"
    builder.create()
    for number in range(FILES):
        builder.append([{"id": number}])
    options = {"max_files_per_batch": 1}
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", out, **options))
    with daemon(config) as process:
        eventually(lambda: len(list(out.glob("*.jsonl"))) >= 5)
        process.kill()
        process.wait(10)
    offset = json.loads((tmp_path / "state/offsets/orders.json").read_text())["offset"]
    assert (offset["phase"], offset["version"]) == ("snapshot", FILES)
    assert list((tmp_path / "state/spool/orders").glob(f"{FILES}.*.manifest.json"))

    builder.append([{"id": FILES}])
    builder.checkpoint()
    for version in range(FILES + 1):
        builder.commit_path(version).unlink()
    done = run_to_end("run", "--config", config, "--once")
    assert done.returncode == 0, done.stderr
    assert sorted(delivered_ids(out)) == list(range(FILES + 1))
    assert not (tmp_path / "state/spool/orders").exists()
