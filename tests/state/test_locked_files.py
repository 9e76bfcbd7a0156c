"""The files in a state folder: two daemons, and what a crash, a full disk or an edit leave."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tailerd.errors import ConfigError, OffsetError, StorageError, TailerdError
from tailerd.state.locked_files import LOCK_NAME, LockedFiles, lock_state
from tailerd.state.state import State
from tests.contracts.test_offset_store import saved
from tests.doubles.owned_state import owned_state

HOLD = """
import sys, time
from pathlib import Path
from tailerd.state.locked_files import lock_state
with lock_state(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_second_one_is_told_who_holds_the_folder(tmp_path: Path) -> None:
    with (
        lock_state(tmp_path),
        pytest.raises(ConfigError, match=rf"process {os.getpid()} on "),
        lock_state(tmp_path),
    ):
        pytest.fail("two holders")


def test_the_folder_is_free_again_afterwards(tmp_path: Path) -> None:
    for _ in range(2):
        with lock_state(tmp_path / "new" / "state"):
            pass


def test_a_killed_holder_leaves_no_lock_behind(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=rf"process {holder.pid} on "), lock_state(tmp_path):
            pass
        holder.kill()
    with lock_state(tmp_path):
        pass


def test_a_holder_that_has_not_written_its_name_is_still_a_holder(tmp_path: Path) -> None:
    with lock_state(tmp_path):
        (tmp_path / LOCK_NAME).write_text("")
        with pytest.raises(ConfigError, match="another process"), lock_state(tmp_path):
            pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigError, match=r"file/state cannot be used"),
        lock_state(tmp_path / "file" / "state"),
    ):
        pytest.fail("a lock in a file")


GOOD: dict[str, Any] = {
    "format": 1,
    "pipeline": {"daemon": "tailerd", "table": "orders", "sink": "file", "location": "/out"},
    "epoch": 1,
    "table_id": "t",
    "schema_id": "",
    "changes": "auto",
    "topics": {},
    "offset": {"format": 1, "table_id": "t", "version": 3, "phase": "follow", "position": 0},
}

DAMAGED: dict[str, str | bytes] = {
    "empty": "",
    "cut off": json.dumps(GOOD)[:40],
    "no JSON": "\x00\x00\x00",
    "no UTF-8": b"\xff\xfe",
    "a list": "[]",
    "a number": "7",
    "without an offset": json.dumps({k: v for k, v in GOOD.items() if k != "offset"}),
    "of an unknown mode": json.dumps({**GOOD, "changes": "guess"}),
    "of an unknown phase": json.dumps({**GOOD, "offset": {"format": 1, "phase": "x"}}),
    "below zero": json.dumps(
        {
            **GOOD,
            "offset": {
                "format": 1,
                "table_id": "t",
                "version": -1,
                "phase": "follow",
                "position": 0,
            },
        }
    ),
    "from a newer release": json.dumps({**GOOD, "format": 2}),
    "without a schema": json.dumps({k: v for k, v in GOOD.items() if k != "schema_id"}),
    "of a pipeline without fields": json.dumps({**GOOD, "pipeline": "orders"}),
    "with a mark that is too long": json.dumps(
        {**GOOD, "offset": {**GOOD["offset"], "mark": "x" * 1025}}
    ),
    "with a newer offset": json.dumps({**GOOD, "offset": {"format": 9}}),
}


@pytest.mark.parametrize("case", DAMAGED)
async def test_a_damaged_offset_is_named_with_the_way_out(tmp_path: Path, case: str) -> None:
    content, path = DAMAGED[case], tmp_path / "offsets" / "orders.json"
    path.parent.mkdir()
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(OffsetError) as caught:
        await owned_state(tmp_path).offsets.load("orders")
    assert str(path) in str(caught.value)
    assert "tailerd offsets reset orders" in str(caught.value)
    assert "restore orders.json.previous" in str(caught.value)


async def test_the_identity_of_the_table_is_in_the_file(tmp_path: Path) -> None:
    await owned_state(tmp_path).offsets.save("orders", replace(saved(1), schema_id="abc"))
    fields = json.loads((tmp_path / "offsets" / "orders.json").read_text())
    names = ("format", "table_id", "schema_id", "changes")
    assert [fields[name] for name in names] == [1, "t", "abc", "auto"]


async def test_the_offset_before_the_last_is_kept_beside_it(tmp_path: Path) -> None:
    offsets = owned_state(tmp_path).offsets
    for version in range(3):
        await offsets.save("orders", saved(version))
    folder = tmp_path / "offsets"
    (folder / "orders.json.previous").replace(folder / "orders.json")
    assert await offsets.load("orders") == saved(1)


async def test_what_a_crash_left_half_written_is_not_read_and_removed(tmp_path: Path) -> None:
    state = State(LockedFiles(tmp_path))
    async with state.hold():
        await state.offsets.save("orders", saved(1))
    torn = tmp_path / "offsets" / ".tailerd-tmp-0123"
    torn.write_text('{"format": 1, "off')
    async with state.hold():
        assert await state.offsets.load("orders") == saved(1)
    assert not torn.exists()


async def test_a_folder_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "offsets").write_text("")
    state = owned_state(tmp_path)
    with pytest.raises(StorageError, match="a file is where a folder must be"):
        await state.offsets.save("orders", saved(1))
    with pytest.raises(StorageError):
        await state.offsets.load("orders")


async def test_a_full_disk_can_be_tried_again_and_keeps_the_old_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    offsets = owned_state(tmp_path).offsets
    await offsets.save("orders", saved(1))
    with monkeypatch.context() as full:
        full.setattr("tailerd.storage.posix_files.write_all", fail)
        with pytest.raises(StorageError, match="No space left") as caught:
            await offsets.save("orders", saved(2))
    assert caught.value.retryable
    assert await offsets.load("orders") == saved(1)
    await offsets.save("orders", saved(2))
    assert await offsets.load("orders") == saved(2)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
async def test_a_file_that_may_not_be_read_is_an_error_not_a_fresh_start(tmp_path: Path) -> None:
    offsets = owned_state(tmp_path).offsets
    await offsets.save("orders", saved(1))
    (tmp_path / "offsets" / "orders.json").chmod(0)
    with pytest.raises(TailerdError, match="cannot be used"):
        await offsets.load("orders")


async def test_a_folder_instead_of_the_file_is_an_error_not_a_fresh_start(tmp_path: Path) -> None:
    (tmp_path / "offsets" / "orders.json").mkdir(parents=True)
    with pytest.raises(StorageError, match="is a folder"):
        await owned_state(tmp_path).offsets.load("orders")


async def test_a_save_costs_two_fsyncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = owned_state(tmp_path).offsets
    await offsets.save("orders", saved(1))
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    await offsets.save("orders", saved(2))
    assert len(synced) == 2
