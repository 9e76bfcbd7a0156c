"""What the daemon stands on gives way under it, and comes back."""

from __future__ import annotations

import json
import resource
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.daemon.running import (
    daemon,
    delivered_ids,
    file_table,
    make_table,
    page,
    read_log,
    run_to_end,
    write_config,
)
from tests.waiting import eventually


def status(config: Path) -> dict[str, Any]:
    (shown,) = json.loads(page(config, "/status"))["tables"]
    assert isinstance(shown, dict)
    return shown


FILE_BYTES = 200


def stop(process: Any) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0


@pytest.mark.full
def test_a_disk_that_takes_no_offset_is_waited_for(tmp_path: Path) -> None:
    builder, out = make_table(tmp_path / "t", 1, start_ms=None), tmp_path / "out"
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", out))
    saved = tmp_path / "state/offsets/orders.json"
    with daemon(config) as process:
        eventually(lambda: out.exists() and delivered_ids(out) == [1])
        eventually(lambda: json.loads(saved.read_text())["offset"]["version"] == 2)
        # The row fits into a file of this size, its offset does not.
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (FILE_BYTES, resource.RLIM_INFINITY))
        builder.append([{"id": 2}])
        eventually(lambda: status(config)["state"] == "retrying")
        assert "File too large" in status(config)["last_error"]["message"]
        assert json.loads(saved.read_text())["offset"]["version"] == 2
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, unlimited)
        builder.append([{"id": 3}])
        eventually(lambda: json.loads(saved.read_text())["offset"]["version"] == 4)
        assert delivered_ids(out) == [1, 2, 3]
        eventually(lambda: status(config)["state"] == "running")
        stop(process)


@pytest.mark.full
def test_a_table_that_disappears_is_waited_for_where_policy_says_so(tmp_path: Path) -> None:
    builder, out = make_table(tmp_path / "t", 1, start_ms=None), tmp_path / "out"
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", out, on_gap="snapshot"))
    with daemon(config) as process:
        eventually(lambda: out.exists() and delivered_ids(out) == [1])
        shutil.move(tmp_path / "t", tmp_path / "away")
        eventually(lambda: status(config)["state"] == "retrying")
        assert status(config)["last_error"]["code"] == "not_a_table"
        shutil.move(tmp_path / "away", tmp_path / "t")
        builder.append([{"id": 2}])
        eventually(lambda: delivered_ids(out) == [1, 2])
        # It was the same table all the time: nothing is missing.
        assert not list(out.glob("*gap.json"))
        stop(process)


@pytest.mark.full
def test_a_table_that_disappears_stops_and_goes_on_with_the_next_run(tmp_path: Path) -> None:
    builder, out = make_table(tmp_path / "t", 1, start_ms=None), tmp_path / "out"
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", out))
    with daemon(config) as process:
        eventually(lambda: out.exists() and delivered_ids(out) == [1])
        shutil.move(tmp_path / "t", tmp_path / "away")
        # The only table has failed, so the daemon ends and its status says why.
        assert process.wait(60) == 3
    assert "not_a_table" in read_log(config)
    shutil.move(tmp_path / "away", tmp_path / "t")
    builder.append([{"id": 2}])
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    assert delivered_ids(out) == [1, 2]
