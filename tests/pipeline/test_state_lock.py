"""Two daemons, one state folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tailerd.errors import ConfigError
from tailerd.pipeline.state_lock import LOCK_NAME, state_lock

HOLD = """
import sys, time
from pathlib import Path
from tailerd.pipeline.state_lock import state_lock
with state_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_second_one_is_told_who_holds_the_folder(tmp_path: Path) -> None:
    with (
        state_lock(tmp_path),
        pytest.raises(ConfigError, match=rf"process {os.getpid()} on "),
        state_lock(tmp_path),
    ):
        pytest.fail("two holders")


def test_the_folder_is_free_again_afterwards(tmp_path: Path) -> None:
    for _ in range(2):
        with state_lock(tmp_path / "new" / "state"):
            pass


def test_a_killed_holder_leaves_no_lock_behind(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=rf"process {holder.pid} on "), state_lock(tmp_path):
            pass
        holder.kill()
    with state_lock(tmp_path):
        pass


def test_a_holder_that_has_not_written_its_name_is_still_a_holder(tmp_path: Path) -> None:
    with state_lock(tmp_path):
        (tmp_path / LOCK_NAME).write_text("")
        with pytest.raises(ConfigError, match="another process"), state_lock(tmp_path):
            pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigError, match=r"file/state cannot be used"),
        state_lock(tmp_path / "file" / "state"),
    ):
        pytest.fail("a lock in a file")
