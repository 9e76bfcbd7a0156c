"""A folder of change files has one owner: daemons with copied state, stale state, lost state."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.cli import run
from tailerd.errors import OffsetError, SinkError, SinkFencedError
from tailerd.records.json import JsonEncoder
from tailerd.sinks.base import RowWriter
from tailerd.sinks.file.config import FileSinkConfig
from tailerd.sinks.file.owner import FolderOwner
from tailerd.sinks.file.sink import FileSink
from tests.contracts.test_sink import batch, delivery, delivery_of, file_rows, inserts, offset
from tests.integration.daemon.running import (
    daemon,
    delivered_ids,
    file_table,
    read_log,
    run_to_end,
    write_config,
)
from tests.remote_deliveries import remote_delivery, with_run, written_by
from tests.tables.builder import TableBuilder
from tests.waiting import eventually

pytestmark = pytest.mark.attack


def sink(folder: Path, **fields: object) -> FileSink:
    config = FileSinkConfig.model_validate({"kind": "file", "path": str(folder), **fields})
    return FileSink(config, encode=JsonEncoder().encode_lines, table="orders")


def ids(folder: Path) -> list[int]:
    return [row[0] for row in file_rows(folder)]


def named(folder: Path, pattern: str) -> list[Path]:
    return list(folder.glob(pattern))


async def delivered(folder: Path, until: int) -> FileSink:
    """A sink that delivered the versions before `until`, one at a time."""
    made = sink(folder)
    await made.resume(offset(0))
    for version in range(until):
        await made.write(delivery(version, batch(version, [version])))
    return made


async def test_of_two_alive_the_last_to_start_wins_and_the_other_says_who_took_over(
    tmp_path: Path,
) -> None:
    first = await delivered(tmp_path, 2)
    second = sink(tmp_path)
    await second.resume(offset(2))
    with pytest.raises(SinkFencedError, match=r"process \d+ on .*process \d+ on .*tailerd resume"):
        await first.write(delivery(2, batch(2, [2])))
    with pytest.raises(SinkFencedError):
        # Trying again is no start.
        await first.resume(offset(2))
    await second.write(delivery(2, batch(2, [2])))
    assert ids(tmp_path) == [0, 1, 2]


async def test_a_write_that_began_before_the_takeover_publishes_nothing_after_it(
    tmp_path: Path,
) -> None:
    taken_over = asyncio.Event()

    async def slow() -> AsyncIterator[ChangeBatch]:
        yield batch(2, [2])
        await taken_over.wait()
        yield batch(2, [3])

    first = await delivered(tmp_path, 2)
    writing = asyncio.create_task(first.write(delivery_of(2, slow())))
    await asyncio.sleep(0)
    second = sink(tmp_path)
    await second.resume(offset(2))
    larger = replace(delivery(2, batch(2, [2, 3]), batch(3, [4])), end=offset(4))
    await second.write(larger)
    taken_over.set()
    with pytest.raises(SinkFencedError):
        await writing
    assert ids(tmp_path) == [0, 1, 2, 3, 4]
    assert not named(tmp_path, ".*.tmp"), "the loser leaves nothing half written"


def test_of_starts_that_race_no_two_win_the_same_epoch_and_only_the_last_may_publish(
    tmp_path: Path,
) -> None:
    racers = 16
    together = threading.Barrier(racers)

    def start(_: int) -> FolderOwner:
        owner = FolderOwner(tmp_path, table="orders")
        together.wait()
        owner.claim()
        return owner

    with ThreadPoolExecutor(racers) as pool:
        owners = list(pool.map(start, range(racers)))
    epochs = sorted(owner.epoch for owner in owners)
    assert len(set(epochs)) == racers
    for owner in owners:
        if owner.epoch == epochs[-1]:
            owner.check()
        else:
            with pytest.raises(SinkFencedError):
                owner.check()


@pytest.mark.parametrize("saved", [2, 3], ids=["published-and-not-saved", "saved"])
async def test_a_crash_around_the_save_of_an_offset_is_no_disagreement(
    tmp_path: Path, saved: int
) -> None:
    await delivered(tmp_path, 3)
    again = sink(tmp_path)
    await again.resume(offset(saved))
    for version in range(saved, 4):
        await again.write(delivery(version, batch(version, [version])))
    assert ids(tmp_path) == [0, 1, 2, 3]


async def test_commits_without_rows_may_lie_behind_the_last_file(tmp_path: Path) -> None:
    await delivered(tmp_path, 2)
    again = sink(tmp_path)
    await again.resume(offset(9))
    await again.write(delivery(9, batch(9, [9])))
    assert ids(tmp_path) == [0, 1, 9]


@pytest.mark.parametrize("forgotten", [(), (".tailerd",)], ids=["", "record-gone-too"])
async def test_a_state_from_an_old_copy_is_refused_and_neither_rows_nor_the_owner_are_touched(
    tmp_path: Path, forgotten: tuple[str, ...]
) -> None:
    running = await delivered(tmp_path, 5)
    for name in forgotten:
        shutil.rmtree(tmp_path / name)
    with pytest.raises(OffsetError, match=r"version 2.*version \d.*offsets reset orders --to"):
        await sink(tmp_path).resume(offset(2))
    assert ids(tmp_path) == [0, 1, 2, 3, 4]
    if not forgotten:
        await running.write(delivery(5, batch(5, [5])))


async def test_an_old_state_is_refused_even_where_readers_took_the_files_away(
    tmp_path: Path,
) -> None:
    await delivered(tmp_path, 5)
    for path in named(tmp_path, "*.jsonl"):
        path.unlink()
    with pytest.raises(OffsetError, match="offsets reset orders"):
        await sink(tmp_path).resume(offset(2))
    await sink(tmp_path).resume(offset(5))


async def test_a_state_inside_the_last_delivery_is_somebody_elses(tmp_path: Path) -> None:
    first = sink(tmp_path)
    await first.resume(offset(0))
    await first.write(replace(delivery(0, *(batch(v, [v]) for v in range(4))), end=offset(4)))
    with pytest.raises(OffsetError, match="offsets reset orders --to 4"):
        await sink(tmp_path).resume(offset(2))
    assert ids(tmp_path) == [0, 1, 2, 3]


@pytest.mark.parametrize("to", [0, 2, 9])
async def test_an_offset_that_was_reset_is_taken_wherever_it_lies_and_after_a_crash_too(
    tmp_path: Path, to: int
) -> None:
    await delivered(tmp_path, 5)
    await sink(tmp_path).accept(offset(to))
    for _ in range(2):
        await sink(tmp_path).resume(offset(to))
    again = sink(tmp_path)
    await again.resume(offset(to))
    await again.write(delivery(to, batch(to, [100])))
    assert ids(tmp_path) == [*range(min(to, 5)), 100]
    # It was accepted once, not for ever.
    await again.write(delivery(to + 1, batch(to + 1, [101])))
    with pytest.raises(OffsetError):
        await sink(tmp_path).resume(offset(to))


def delivering(tmp_path: Path) -> tuple[TableBuilder, Path, Path]:
    builder, out = TableBuilder(tmp_path / "t", start_ms=None), tmp_path / "out"
    builder.create()
    for number in range(3):
        builder.append([{"id": number}])
    options = {"from": "0", "max_files_per_batch": 1, "poll_interval": "50ms"}
    return builder, out, write_config(tmp_path, orders=file_table(tmp_path / "t", out, **options))


@pytest.mark.full
def test_a_daemon_with_copied_state_takes_over_and_no_row_doubles(tmp_path: Path) -> None:
    builder, out, config = delivering(tmp_path)
    other = tmp_path / "other"
    with daemon(config):
        eventually(lambda: out.exists() and delivered_ids(out) == [0, 1, 2])
        shutil.copytree(tmp_path / "state", other / "state")
        copied = other / "tailerd.yaml"
        copied.write_text(config.read_text().replace(str(tmp_path / "state"), str(other / "state")))
        with daemon(copied):
            eventually(lambda: "Starting position resolved" in read_log(copied))
            for number in range(3, 6):
                builder.append([{"id": number}])
            eventually(lambda: "sink_fenced" in read_log(config))
            eventually(lambda: delivered_ids(out) == [0, 1, 2, 3, 4, 5])
    (failed,) = [line for line in read_log(config).splitlines() if '"sink_fenced"' in line]
    assert "took over" in json.loads(failed)["error"]
    # The loser's state is behind what the folder has.
    stale = run_to_end("run", "--config", config, "--once")
    assert stale.returncode == 1
    assert "error[offset]" in stale.stderr
    assert delivered_ids(out) == [0, 1, 2, 3, 4, 5]
    assert run_to_end("offsets", "reset", "orders", "--to", "4", "--config", config).returncode == 0
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    assert delivered_ids(out) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("start", ["snapshot", "latest", "0"])
def test_a_lost_state_does_not_begin_again_in_a_folder_that_has_rows(
    tmp_path: Path, start: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def tailerd(*arguments: str) -> int:
        return run([*arguments, "--config", str(config)])

    builder, out, config = delivering(tmp_path)
    assert tailerd("run", "--once") == 0
    shutil.rmtree(tmp_path / "state")
    builder.append([{"id": 3}])
    config.write_text(config.read_text().replace("from: '0'", f"from: {start!r}"))
    for _ in range(2):
        assert tailerd("run", "--once") == 1
        assert "offsets reset orders --to" in capsys.readouterr().err
    assert delivered_ids(out) == [0, 1, 2]
    assert tailerd("offsets", "reset", "orders", "--to", "4") == 0
    assert tailerd("run", "--once") == 0
    assert delivered_ids(out) == [0, 1, 2, 3]


async def test_a_folder_that_was_emptied_under_its_owner_is_claimed_again(tmp_path: Path) -> None:
    first = await delivered(tmp_path / "out", 1)
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(SinkError) as caught:
        await first.write(delivery(1, batch(1, [1])))
    assert caught.value.retryable
    await first.resume(offset(1))
    await first.write(delivery(1, batch(1, [1])))
    assert file_rows(tmp_path / "out") == inserts(1, 1)


async def test_what_another_process_wrote_for_an_owner_before_is_not_published(
    tmp_path: Path,
) -> None:
    taken_over, written = asyncio.Event(), asyncio.Event()
    first = await delivered(tmp_path, 2)

    async def slow(writer: RowWriter) -> object:
        found = await written_by(batch(2, [2]))(writer)
        written.set()
        await taken_over.wait()
        return found

    writing = asyncio.create_task(first.write_remotely(with_run(remote_delivery(2), slow)))
    await written.wait()
    second = sink(tmp_path)
    await second.resume(offset(2))
    await second.write_remotely(remote_delivery(2, batch(2, [2]), batch(2, [3])))
    taken_over.set()
    with pytest.raises(SinkFencedError):
        await writing
    assert ids(tmp_path) == [0, 1, 2, 3]
    assert not named(tmp_path, ".*.tmp")
