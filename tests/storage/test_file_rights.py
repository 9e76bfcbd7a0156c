"""Who may read what the daemon writes: its state is private, delivered files are as configured."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from pydantic import ValidationError

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.gap import Gap
from tailerd.changefeed.pipeline_identity import PipelineIdentity
from tailerd.changefeed.saved_offset import SavedOffset
from tailerd.formats.delta.changes.snapshot_files import Spool
from tailerd.formats.delta.demo import DEMO
from tailerd.formats.parts import make_demo_table
from tailerd.sinks.file.config import FileSinkConfig
from tailerd.state.corrupt_commits import CorruptCommitRecord
from tailerd.state.locked_files import LockedFiles
from tailerd.state.pipeline_records import PipelineRecord
from tailerd.state.state import State
from tests.contracts.test_sink import batch, delivery, offset
from tests.integration.daemon.running import (
    address,
    daemon,
    file_table,
    write_config,
)
from tests.sinks.test_file_sink import sink
from tests.state.test_snapshot_manifest import ListedFiles
from tests.waiting import eventually

pytestmark = pytest.mark.attack


BITS = 0o777


@pytest.fixture(params=[0o000, 0o022], ids=lambda mask: f"umask={mask:03o}")
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """The mask of this process and those that it starts."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def open_to_others(folder: Path) -> dict[str, str]:
    """Return what in a folder, itself included, others may look at, with its mode."""
    return {
        str(path.relative_to(folder)): f"{mode(path):03o}"
        for path in [folder, *folder.rglob("*")]
        if mode(path) != (0o700 if path.is_dir() else 0o600)
    }


async def keep_everything(folder: Path) -> None:
    """Write each kind of thing that a state holds, twice."""
    state = State(LockedFiles(folder))
    record = CorruptCommitRecord(
        table_id="t", version=1, position=0, error_code="e", message="m", time_ms=1
    )
    identity = PipelineIdentity(daemon="d", table="orders", sink="file", location="/out")
    async with state.hold():
        for _ in range(2):
            saved = SavedOffset(offset=offset(3), changes=ChangeMode.AUTO)
            await state.offsets.save("orders", saved)
            await state.pauses.pause("orders")
            await state.pipelines.save("orders", PipelineRecord(identity=identity))
            await state.corrupt_commits.record("orders", record)
            await asyncio.to_thread(state.history.save, [("orders", {})])
            await Spool(state.scratch("orders")).write("t", ListedFiles(3))


# The state


async def test_every_part_of_the_state_is_for_its_user_alone(umask: int, tmp_path: Path) -> None:
    state = tmp_path / "not/yet/there/state"
    await keep_everything(state)
    assert len([path for path in state.rglob("*") if path.is_file()]) >= 8
    assert open_to_others(state) == {}
    assert mode(state.parent) == BITS & ~umask, "what is above it is not the daemon's"


async def test_what_was_open_to_others_is_closed_once_it_is_written_again(tmp_path: Path) -> None:
    state = tmp_path / "state"
    await keep_everything(state)
    for path in state.rglob("*"):
        path.chmod(0o777 if path.is_dir() else 0o666)
    state.chmod(0o750)
    await keep_everything(state)
    left = open_to_others(state)
    # The folder itself was there: its rights are those that its owner gave it.
    assert left.pop(".") == "750"
    # Folders in between: what is written again lies in closed ones. A record is written once.
    [record] = (state / "corrupt_commits" / "orders").iterdir()
    assert left.keys() == {"spool", "corrupt_commits", str(record.relative_to(state))}


@pytest.mark.full
def test_the_state_of_a_daemon_is_for_its_user_alone(umask: int, tmp_path: Path) -> None:
    make_demo_table(DEMO, tmp_path / "orders")
    config = write_config(tmp_path, orders=file_table(tmp_path / "orders", tmp_path / "out"))
    with daemon(config) as process:
        eventually(lambda: any((tmp_path / "out").glob("*.jsonl")))
        url = f"{address(config)}/pipelines/orders/pause"
        request = urllib.request.Request(url, method="POST", headers={"X-Tailerd": "1"})
        with urllib.request.urlopen(request, timeout=20):
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    state = tmp_path / "state"
    assert {path.name for path in state.iterdir()} >= {"offsets", "paused", "history"}
    assert open_to_others(state) == {}
    delivered = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert delivered
    assert {mode(path) for path in delivered} == {0o666 & ~umask}


# Delivered files


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize("requested", [None, "0640", "604", "0600"])
async def test_delivered_files_have_the_rights_of_their_field_or_of_the_umask(
    form: str, requested: str | None, umask: int, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    target = sink(folder, format=form, **({} if requested is None else {"mode": requested}))
    await target.resume(offset(0))
    await target.write(delivery(0, batch(0, [1, 2])))
    # Of several versions, so that the next start takes some of its rows back.
    await target.write(delivery(1, batch(1, [3]), batch(2, [4])))
    await target.note_gap(Gap(table="t", reason="r", start=offset(3), end=offset(4)))
    expected = 0o666 & ~umask if requested is None else int(requested, 8)
    names = {path.name: mode(path) for path in folder.iterdir() if path.is_file()}
    assert len(names) == 4
    assert set(names.values()) == {expected}
    await target.resume(offset(2))
    assert {mode(path) for path in folder.iterdir() if path.is_file()} == {expected}


async def test_a_file_that_loses_rows_to_a_reset_keeps_its_rights(tmp_path: Path) -> None:
    target = sink(tmp_path, format="parquet")
    await target.resume(offset(0))
    await target.write(delivery(0, batch(0, [1]), batch(1, [2])))
    path = next(tmp_path.glob("*.parquet"))  # noqa: ASYNC240
    path.chmod(0o604)
    await target.resume(offset(1))
    assert pq.read_metadata(path).num_rows == 1
    assert mode(path) == 0o604


@pytest.mark.parametrize("wrong", [0o640, 0o600, 0o777, "0440", "640x", "1777", "", "rw-r-----"])
def test_rights_that_nobody_can_mean_are_refused(wrong: object) -> None:
    with pytest.raises(ValidationError, match="mode"):
        FileSinkConfig.model_validate({"kind": "file", "path": "/out", "mode": wrong})


# Spark


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.slow
def test_on_spark_state_and_files_have_the_same_rights(tmp_path: Path) -> None:
    make_demo_table(DEMO, tmp_path / "orders")
    locations = {"default": tmp_path / "out/default", "closed": tmp_path / "out/closed"}
    tables: dict[str, Any] = {
        name: file_table(tmp_path / "orders", location) for name, location in locations.items()
    }
    tables["closed"]["sink"]["mode"] = "0640"
    config = write_config(tmp_path, **tables)
    settings = yaml.safe_load(config.read_text())
    settings["engine"] = "spark"
    config.write_text(yaml.safe_dump(settings))
    before = os.umask(0o002)
    try:
        with daemon(config, "--once") as process:
            assert process.wait(180) == 0
    finally:
        os.umask(before)
    assert open_to_others(tmp_path / "state") == {}
    modes = {
        name: {mode(path) for path in location.iterdir() if path.is_file()}
        for name, location in locations.items()
    }
    assert modes == {"default": {0o664}, "closed": {0o640}}
