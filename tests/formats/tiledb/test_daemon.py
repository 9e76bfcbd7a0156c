"""Arrays through `tailerd run`, `verify`, `validate` and commands, by the file sink."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.formats.conftest import ROOT
from tests.formats.delivering import changes, delivered
from tests.formats.tiledb import arrays
from tests.integration.daemon.running import (
    daemon,
    file_table,
    run_to_end,
    write_config,
)
from tests.waiting import PATIENCE_SECONDS, eventually


@pytest.fixture
def location(tmp_path: Path) -> Path:
    """Rows 1 and 2 at 1000."""
    found = tmp_path / "array"
    arrays.create_named(found)
    arrays.write_named(found, 1000, [1, 2])
    return found


FIRST = Counter([("insert", 1, 1000), ("insert", 2, 1000)])


def test_the_daemon_hears_of_commits_and_delivers_late_ones(location: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path, orders=file_table(location, tmp_path / "out"))
    with daemon(config) as process:
        eventually(lambda: len(delivered(tmp_path / "out")) == 2)
        arrays.write_named(location, 3000, [3])
        eventually(lambda: len(delivered(tmp_path / "out")) == 3)
        arrays.write_named(location, 2000, [4])
        eventually(lambda: len(delivered(tmp_path / "out")) == 4)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    found = delivered(tmp_path / "out")
    assert changes(found) == FIRST + Counter([("insert", 3, 3000), ("insert", 4, 3000)])
    assert found[-1]["_commit_timestamp"] == "1970-01-01T00:00:02.000000Z", "its own time"


NEVER_FORKED = """
    import asyncio, os, sys
    import tailerd.formats.tiledb.library as library
    forked = []
    def count():
        if "tiledb" in sys.modules:
            forked.append(1)
    os.register_at_fork(before=count)
    from tailerd.cli import main
    try:
        main()
    finally:
        os.write(2, f"used {'tiledb' in sys.modules} forked {len(forked)}\\n".encode())
"""


@pytest.mark.parametrize("command", ["tail", "run"])
def test_no_process_that_used_the_library_forks(
    location: Path, tmp_path: Path, command: str
) -> None:
    table = file_table(location, tmp_path / "out", maintenance={"cleanup": {"enabled": True}})
    config = write_config(tmp_path, orders=table)
    words = ["tail", str(location), "--from", "snapshot", "--once"]
    if command == "run":
        words = ["run", "--config", str(config), "--once"]
    program = "\n".join(line.removeprefix("    ") for line in NEVER_FORKED.splitlines())
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
        cwd=ROOT,
        env={**os.environ},
    )
    assert done.returncode == 0, done.stderr
    assert "used True forked 0" in done.stderr


def test_history_and_inspect_show_an_array(location: Path) -> None:
    arrays.delete(location, 2000, "id == 1")
    done = run_to_end("history", location, "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["version"], row["operation"]) for row in found] == [
        (1000, "write"),
        (2000, "delete"),
    ]
    done = run_to_end("inspect", location, "--json", "--version", "1500")
    shown = json.loads(done.stdout)
    assert (shown["num_rows"], shown["format"], shown["kind"]) == (
        2,
        "tiledb",
        "sparse with duplicates",
    )
    assert shown["capabilities"]["ordering"] == "clock"
    assert shown["array_metadata"] == "not tailed"
