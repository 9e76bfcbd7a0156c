"""What executors on other machines get."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tailerd
from tailerd.spark.remote import is_local, write_archive


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[2,4]"])
def test_a_local_master_has_no_executors_elsewhere(master: str) -> None:
    assert is_local(master)


@pytest.mark.parametrize("master", ["spark://local:7077", "yarn", "k8s://https://local"])
def test_other_masters_have(master: str) -> None:
    assert not is_local(master)


def test_python_imports_what_executors_need_from_the_archive_alone(tmp_path: Path) -> None:
    archive = write_archive(tmp_path)
    program = (
        "import tailerd.spark.task_runner, tailerd.spark.stream_reader;"
        "import tailerd.sinks.file.delivery_files, tailerd.sinks.kafka.remote_writer;"
        "print(tailerd.spark.task_runner.__file__, tailerd.__version__)"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-c",
            f"import sys; sys.path.insert(0, {str(archive)!r}); {program}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        str(archive / "tailerd/spark/task_runner.py"),
        tailerd.__version__,
    ]


def test_the_same_package_makes_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    first, second = write_archive(tmp_path), write_archive(tmp_path / "again")
    assert first.read_bytes() == second.read_bytes()


def test_folders_of_a_session_are_gone_when_its_process_has_ended(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from tailerd.spark import remote, session;"
        "session._settings('local[1]'); remote.write_archive(remote.temporary_folder('a-'));"
        "print(len(list(Path.cwd().iterdir())))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == ["2"]
    assert list(tmp_path.iterdir()) == []
