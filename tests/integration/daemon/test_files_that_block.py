"""Files that would block their reader: pipes in a table's folder, and reads that never return.

One such table must stop alone: others are delivered, pages answer, and SIGTERM ends the daemon
within `shutdown_timeout`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tailerd.changefeed.limits import DEFAULT_READ_LIMIT
from tailerd.errors import NotAFileError, TailerdError
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.storage.local import LocalStore
from tests.integration.daemon.running import (
    daemon,
    delivered_ids,
    file_table,
    page,
    read_log,
    run_to_end,
    write_config,
)
from tests.tables.builder import TableBuilder
from tests.tables.opened import open_delta
from tests.waiting import eventually

pytestmark = pytest.mark.attack


PATIENCE_SECONDS = 2

READS: dict[str, Callable[[LocalStore, str], Awaitable[object]]] = {
    "get": lambda store, path: store.get(path),
    "get_part": lambda store, path: store.get(path, 1, 2),
    "fetch": lambda store, path: store.fetch(path),
    "fetch_part": lambda store, path: store.fetch(path, 1, 2),
    "get_many": lambda store, path: store.get_many([path]),
    "head": lambda store, path: store.head(path),
    "open_input": lambda store, path: asyncio.to_thread(store.open_input, path),
}


def pipe_at(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


def socket_at(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    return path


def device_at(path: Path) -> Path:
    path.symlink_to("/dev/zero")
    return path


@contextmanager
def released(*pipes: Path) -> Iterator[None]:
    """Let go of whoever waits at a pipe in the end: no thread of a failed test stays behind."""
    try:
        yield
    finally:
        for pipe in pipes:
            if pipe.is_fifo():
                os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(
    ("make", "what"),
    [(pipe_at, "a pipe"), (socket_at, "a socket"), (device_at, "a device")],
    ids=["pipe", "socket", "device"],
)
async def test_what_is_no_file_is_refused_at_once_and_named(
    tmp_path: Path, make: Callable[[Path], Path], what: str, read: str
) -> None:
    path = make(tmp_path / "x")
    with released(path):
        async with asyncio.timeout(5):
            with pytest.raises(NotAFileError, match=f"{path} is {what}") as caught:
                await READS[read](LocalStore(), str(path))
    assert not caught.value.retryable


@pytest.mark.parametrize("read", READS)
async def test_files_behind_a_link_are_read_as_before(tmp_path: Path, read: str) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    found: Any = await READS[read](LocalStore(), str(tmp_path / "link"))
    if read == "open_input":
        with found as file:
            assert (file.read(2), file.seek(0, os.SEEK_END)) == (b"12", 5)
    else:
        plain: Any = await READS[read](LocalStore(), str(tmp_path / "file"))
        assert repr(found).replace("/link", "/file") == repr(plain)


def commit_pipe(table: TableBuilder) -> list[Path]:
    return [pipe_at(table.commit_path(table.version + 1))]


def hint_pipe(table: TableBuilder) -> list[Path]:
    return [pipe_at(table.log / "_last_checkpoint")]


def data_pipes(table: TableBuilder) -> list[Path]:
    """As many as there are threads that read, and more."""
    adds = [add for n in range(8) for add in table.append([{"id": 900 + n, "name": "x"}]).adds]
    return [pipe_at(table.folder / add["add"]["path"]) for add in adds]


def make_table(folder: Path, rows: int = 3) -> TableBuilder:
    table = TableBuilder(folder)
    for number in range(rows):
        table.append([{"id": number, "name": "x"}])
    return table


async def test_a_pipe_for_the_hint_of_the_checkpoint_is_passed_over(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    with released(*hint_pipe(table)):
        async with asyncio.timeout(5):
            assert (await LogReader.at(str(tmp_path)).open()).version == 2


async def test_a_pipe_for_the_next_commit_is_an_error_and_not_a_commit_to_come(
    tmp_path: Path,
) -> None:
    table = make_table(tmp_path)
    source = await open_delta(str(tmp_path))
    start = await source.initial_offset("latest")
    with released(*commit_pipe(table)):
        async with asyncio.timeout(5):
            with pytest.raises(TailerdError, match=r"00003\.json is a pipe"):
                await source.latest_offset(start, DEFAULT_READ_LIMIT)


@pytest.mark.full
@pytest.mark.parametrize("plant", [commit_pipe, hint_pipe, data_pipes])
def test_a_table_with_pipes_stops_alone(
    tmp_path: Path, plant: Callable[[TableBuilder], list[Path]]
) -> None:
    attacked, good = make_table(tmp_path / "attacked"), make_table(tmp_path / "good")
    config = write_config(
        tmp_path,
        attacked=file_table(attacked.folder, tmp_path / "out-attacked"),
        good=file_table(good.folder, tmp_path / "out"),
    )
    config.write_text(f"shutdown_timeout: {PATIENCE_SECONDS}s\n{config.read_text()}")
    with released(*plant(attacked)), daemon(config) as process:
        eventually(lambda: (tmp_path / "out").exists() and len(delivered_ids(tmp_path / "out")) > 2)
        for number in range(3):
            good.append([{"id": 100 + number, "name": "y"}])
            rows = 4 + number
            eventually(lambda rows=rows: len(delivered_ids(tmp_path / "out")) == rows, 5)  # type: ignore[misc]
        assert page(config, "/healthz") == "ok\n"
        if plant is not hint_pipe:
            eventually(lambda: "is a pipe" in read_log(config), 5)
            states = {t["table"]: t["state"] for t in json.loads(page(config, "/status"))["tables"]}
            assert states == {"attacked": "failed", "good": "running"}
        stopped(process)


def stopped(process: subprocess.Popen[str], patience_seconds: float = PATIENCE_SECONDS) -> int:
    """Stop a daemon and return its exit status; it must not take longer than it may."""
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    status = process.wait(patience_seconds + 10)
    # The machine may be busy: half a second is for the end of the process itself.
    assert time.monotonic() - began < patience_seconds + 0.5
    return status


HANGING = """
    import os, sys, threading
    from tailerd.cli import main
    from tailerd.storage import local, posix_files

    def never(*arguments, **options):
        print("it hangs", file=sys.stderr, flush=True)
        threading.Event().wait()

    def is_there(path):
        return path.endswith("00003.json") and os.path.exists(path)

    def hang(owner, name, applies):
        real = getattr(owner, name)
        def call(*arguments, **options):
            return (never if applies(arguments) else real)(*arguments, **options)
        setattr(owner, name, call)

    if sys.argv[1] == "data":
        hang(local.LocalStore, "open_input", lambda arguments: "attacked" in arguments[1])
    elif sys.argv[1] == "listing":
        hang(posix_files, "scan_names", lambda arguments: "attacked" in arguments[0])
    elif sys.argv[1] == "loop":
        hang(posix_files, "fetch_small_file", lambda arguments: is_there(arguments[0]))
    sys.argv[1:2] = []
    main()
"""


@pytest.mark.full
@pytest.mark.parametrize("where", ["data", "listing", "loop"])
def test_reads_that_never_return_do_not_outlive_the_shutdown_timeout(
    tmp_path: Path, where: str
) -> None:
    attacked, good = make_table(tmp_path / "attacked"), make_table(tmp_path / "good")
    config = write_config(
        tmp_path,
        attacked=file_table(attacked.folder, tmp_path / "out-attacked"),
        good=file_table(good.folder, tmp_path / "out"),
    )
    config.write_text(f"shutdown_timeout: {PATIENCE_SECONDS}s\n{config.read_text()}")
    program = [
        sys.executable,
        "-c",
        textwrap.dedent(HANGING),
        where,
        "run",
        "--config",
        str(config),
    ]
    with (tmp_path / "daemon.log").open("w") as log:
        process = subprocess.Popen(program, stderr=log, text=True)
    try:
        eventually(lambda: (tmp_path / "out").exists() and len(delivered_ids(tmp_path / "out")) > 2)
        if where == "loop":
            attacked.append([{"id": 3, "name": "x"}])
        eventually(lambda: "it hangs" in read_log(config))
        assert stopped(process) == 1
        assert "error[stuck]" in read_log(config)
    finally:
        process.kill()
        process.wait(10)
    # What was acknowledged is kept, and nothing comes twice.
    done = run_to_end("run", "--config", config, "--once")
    assert done.returncode == 0, done.stderr
    assert sorted(delivered_ids(tmp_path / "out")) == [0, 1, 2]
    ids = sorted(delivered_ids(tmp_path / "out-attacked"))
    assert ids == list(range(4 if where == "loop" else 3))
