"""No process of ours forks once the library is in it: a forked child that reads hangs for ever."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.formats.conftest import ROOT
from tests.formats.lance.test_gaps import rows, written
from tests.integration.daemon.running import file_table, write_config
from tests.waiting import PATIENCE_SECONDS

PROGRAM = """
    import os, sys
    def notice(event, arguments):
        if event in ("os.fork", "os.forkpty") and "lance" in sys.modules:
            os.write(2, b"FORKED with the library loaded\\n")
            os._exit(99)
    sys.addaudithook(notice)
    from tailerd.cli import main
    main()
"""


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS, cwd=ROOT
    )


@pytest.mark.full
def test_a_daemon_with_maintenance_never_forks_after_the_library_is_loaded(tmp_path: Path) -> None:
    writer = written(tmp_path / "t", 2)
    maintenance = {"compaction": {"small_fragments": 2}}
    table = file_table(tmp_path / "t", tmp_path / "out", maintenance=maintenance)
    config = write_config(tmp_path, orders=table)
    for _ in range(2):
        done = run("run", "--config", config, "--once")
        assert done.returncode == 0, done.stderr
        writer.append(rows(9))
    done = run("maintain", "orders", "--config", config, "--apply")
    assert done.returncode == 0, done.stderr
    assert "compaction: done" in done.stdout


def test_planning_and_looking_load_no_library(tmp_path: Path) -> None:
    written(tmp_path / "t", 2)
    program = """
        import asyncio, sys
        from tailerd.formats.base import OpenRequest
        from tailerd.formats.detect import open_table
        from tailerd.storage.table_location import locate_table
        from tailerd.cli import main
        async def plan(place):
            source = await open_table(locate_table(place), OpenRequest())
            begin, end = await source.initial_offset("1"), await source.initial_offset("latest")
            return [group async for group in source.plan(begin, end)]
        assert len(asyncio.run(plan(sys.argv[1]))) == 2
        assert "lance" not in sys.modules
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "t")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_hook_of_these_tests_notices_a_fork(tmp_path: Path) -> None:
    program = textwrap.dedent(PROGRAM).split("from tailerd")[0] + "import lance; os.fork()"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 99, done.stderr


@pytest.mark.full
def test_the_demo_on_spark_starts_java_before_the_library_is_loaded() -> None:
    done = run("demo", "--format", "lance", "--engine", "spark", "--seconds", 1)
    assert done.returncode == 0, done.stderr
    assert "fork" not in done.stderr
