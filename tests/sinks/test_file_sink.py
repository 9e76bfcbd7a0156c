"""The file sink beyond the contract: names, sizes, schemas, owners, crashes, full disks."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeSourceKind, ChangeType
from tailerd.changefeed.gap import Gap
from tailerd.changefeed.offset import Offset, Phase, Version
from tailerd.errors import ConfigError, SinkError
from tailerd.records.json import JsonEncoder
from tailerd.sinks.file.config import FileSinkConfig
from tailerd.sinks.file.sink import FileSink
from tests.contracts.test_sink import batch, delivery, file_rows, inserts, offset


def sink(folder: Path, **fields: object) -> FileSink:
    config = FileSinkConfig.model_validate({"kind": "file", "path": str(folder), **fields})
    return FileSink(config, encode=JsonEncoder().encode_lines)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def everything(folder: Path) -> set[str]:
    """All names but that of the folder that says who writes."""
    return {path.name for path in folder.iterdir()} - {".tailerd"}


def folders(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir() and path.name != ".tailerd"]


async def test_names_sort_as_offsets_do(tmp_path: Path) -> None:
    target = sink(tmp_path)
    table = "table-1"
    offsets = [
        Offset(table_id=table, version=Version(9), phase=Phase.SNAPSHOT),
        Offset(table_id=table, version=Version(9), phase=Phase.SNAPSHOT, position=2**64 - 1),
        Offset(table_id=table, version=Version(9)),
        Offset(table_id=table, version=Version(10)),
        Offset(table_id=table, version=Version(10), position=3),
        Offset(table_id=table, version=Version(2**62)),
    ]
    await target.resume(offsets[0])
    for number, start in enumerate(offsets):
        one = delivery(number, batch(number, [number]))
        await target.write(replace(one, start=start))
    assert [row[0] for row in file_rows(tmp_path)] == list(range(len(offsets)))
    assert names(tmp_path)[0] == f"{9:020}-0-{0:020}-00000.jsonl"


async def test_a_large_delivery_goes_on_in_further_files(tmp_path: Path) -> None:
    target = sink(tmp_path, max_bytes_per_file="2KiB")
    await target.resume(offset(0))
    batches = [batch(0, range(n * 20, n * 20 + 20)) for n in range(10)]
    await target.write(delivery(0, *batches))
    sizes = [(tmp_path / name).stat().st_size for name in names(tmp_path)]
    assert len(sizes) > 2
    assert all(size <= 2 * 2048 for size in sizes)
    assert file_rows(tmp_path) == inserts(0, *range(200))


async def test_a_changed_schema_begins_another_parquet_file(tmp_path: Path) -> None:
    target = sink(tmp_path, format="parquet")
    await target.resume(offset(0))
    wider = ChangeBatch(
        rows=pa.record_batch({"id": pa.array([2], pa.int64()), "name": pa.array(["x"])}),
        change_type=ChangeType.INSERT,
        version=Version(1),
        timestamp_us=0,
        change_source=ChangeSourceKind.FILES,
    )
    await target.write(delivery(0, batch(0, [1]), wider, batch(2, [3])))
    schemas = [pq.read_schema(tmp_path / name).names for name in names(tmp_path)]
    assert [len(schema) for schema in schemas] == [4, 5, 4]
    assert [row[0] for row in file_rows(tmp_path)] == [1, 2, 3]


async def test_another_tables_folder_is_refused_before_anything_is_removed(tmp_path: Path) -> None:
    target = sink(tmp_path)
    await target.resume(offset(0))
    await target.write(delivery(0, batch(0, [1])))
    foreign = Offset(table_id="table-2", version=Version(0))
    with pytest.raises(ConfigError, match=r"table-1.*table-2.*another folder"):
        await sink(tmp_path).resume(foreign)
    assert file_rows(tmp_path) == inserts(0, 1)


async def test_a_table_that_was_replaced_within_its_log_keeps_its_folder(tmp_path: Path) -> None:
    target = sink(tmp_path)
    await target.resume(offset(0))
    for version, name in enumerate(["table-2", "table-3"], 1):
        one = delivery(version, batch(version, [version]))
        start = replace(one.start, table_id=f"table-{version}")
        await target.write(replace(one, start=start, end=replace(one.end, table_id=name)))
    for name, version in (("table-3", 3), ("table-2", 2)):
        # The second as after a crash before the offset was saved.
        await sink(tmp_path).resume(replace(offset(version), table_id=name))
        assert file_rows(tmp_path) == [*inserts(1, 1), *(inserts(2, 2) if version == 3 else [])]
    with pytest.raises(ConfigError, match=r"table-3.*table-4"):
        await sink(tmp_path).resume(replace(offset(2), table_id="table-4"))


async def test_a_damaged_owner_file_is_named(tmp_path: Path) -> None:
    (tmp_path / ".tailerd.json").write_text("{")
    with pytest.raises(ConfigError, match=r"\.tailerd\.json is damaged"):
        await sink(tmp_path).resume(offset(0))


async def test_resume_removes_what_a_crash_left_and_no_file_of_others(tmp_path: Path) -> None:
    target = sink(tmp_path)
    await target.resume(offset(0))
    await target.write(delivery(5, batch(5, [1])))
    (tmp_path / f".{5:020}-1-{0:020}-00000.jsonl.tmp").write_text('{"id":')
    for own in ("notes.txt", "9.jsonl", f"{7:020}.jsonl", ".hidden"):
        (tmp_path / own).write_text("mine")
    await sink(tmp_path).resume(offset(5))
    left = everything(tmp_path)
    assert left == {"notes.txt", "9.jsonl", f"{7:020}.jsonl", ".hidden", ".tailerd.json"}


async def test_a_failed_write_leaves_no_file_at_all(tmp_path: Path) -> None:
    def breaks(_: ChangeBatch) -> bytes:
        raise ValueError("the encoder fails")

    config = FileSinkConfig.model_validate({"kind": "file", "path": str(tmp_path)})
    target = FileSink(config, encode=breaks)
    await target.resume(offset(0))
    with pytest.raises(ValueError, match="the encoder fails"):
        await target.write(delivery(0, batch(0, [1])))
    assert everything(tmp_path) == {".tailerd.json"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
async def test_a_full_disk_names_the_folder_and_may_be_tried_again(
    tmp_path: Path, kind: str
) -> None:
    target = sink(tmp_path, format=kind)
    await target.resume(offset(0))
    full = tmp_path / f".{0:020}-1-{0:020}-00000.{kind}.1.tmp"
    full.symlink_to("/dev/full")
    with pytest.raises(SinkError, match=rf"{re.escape(str(tmp_path))}.*No space left") as caught:
        await target.write(delivery(0, *(batch(0, range(60_000)) for _ in range(3))))
    assert caught.value.retryable
    await target.resume(offset(0))
    await target.write(delivery(0, batch(0, [1])))
    assert file_rows(tmp_path) == inserts(0, 1)


async def test_a_folder_that_vanishes_is_a_sink_error(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    target = sink(folder)
    await target.resume(offset(0))
    await asyncio.to_thread(_remove, folder)
    with pytest.raises(SinkError, match="cannot be written"):
        await target.write(delivery(0, batch(0, [1])))


async def test_a_file_instead_of_the_folder_fails_the_healthcheck(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match="is a file"):
        await sink(tmp_path / "file" / "out").healthcheck()


async def test_the_healthcheck_makes_nothing(tmp_path: Path) -> None:
    await sink(tmp_path / "out").healthcheck()
    assert everything(tmp_path) == set()


def test_a_url_that_is_not_of_a_bucket_is_refused() -> None:
    with pytest.raises(ValueError, match="a URL of a bucket"):
        FileSinkConfig.model_validate({"kind": "file", "path": "memory://bucket/x"})


def _remove(folder: Path) -> None:
    shutil.rmtree(folder)


async def test_a_gap_is_a_record_right_before_what_follows_it(tmp_path: Path) -> None:
    target = sink(tmp_path)
    await target.resume(offset(0))
    await target.write(delivery(0, batch(0, [1])))
    gap = Gap(table="orders", start=offset(1), end=offset(7), reason="missing_version")
    for _ in range(2):
        # Told again after a crash.
        await target.note_gap(gap)
        await target.resume(gap.end)
    await target.write(delivery(7, batch(7, [2])))
    _, record, _ = names(tmp_path)
    assert record == f"{7:020}-1-{0:020}-00000.gap.json"
    reported = json.loads((tmp_path / record).read_text())
    assert (reported["reason"], reported["from"]["version"], reported["to"]["version"]) == (
        "missing_version",
        1,
        7,
    )
    assert [row[0] for row in file_rows(tmp_path)] == [1, 2]


@pytest.mark.parametrize("is_torn", [False, True])
async def test_files_of_a_replaced_table_are_set_aside_not_lost(
    tmp_path: Path, is_torn: bool
) -> None:
    target = sink(tmp_path)
    await target.resume(offset(0))
    for version in range(3):
        await target.write(delivery(version, batch(version, [version])))
    start, end = offset(3), replace(offset(0), table_id="another")
    gap = Gap(table="orders", start=start, end=end, reason="table_recreated")
    await target.note_gap(gap)
    (aside,) = folders(tmp_path)
    if is_torn:
        # As if a crash had come in the middle: some files are still in their old location.
        for name in sorted(everything(aside))[2:]:
            (aside / name).rename(tmp_path / name)
        await target.note_gap(gap)
    await target.resume(end)
    assert file_rows(tmp_path) == []
    assert [row[0] for row in file_rows(aside)] == [0, 1, 2]
    await target.write(replace(delivery(0, batch(0, [9])), start=end))
    assert [row[0] for row in file_rows(tmp_path)] == [9]


async def test_a_history_replaced_twice_at_one_offset_overwrites_nothing(tmp_path: Path) -> None:
    target = sink(tmp_path)
    gap = Gap(table="orders", start=offset(1), end=offset(0), reason="table_recreated")
    await target.resume(offset(0))
    for number in (1, 2):
        await target.write(delivery(0, batch(0, [number])))
        await target.note_gap(gap)
        await target.resume(gap.end)
    (aside,) = folders(tmp_path)
    kept = [name for name in everything(aside) if ".jsonl" in name]
    assert len(kept) == 2


@pytest.mark.attack
async def test_a_cancelled_resume_deletes_nothing_after_its_caller_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = sink(tmp_path)
    await target.resume(offset(0))
    for version in range(3):
        await target.write(delivery(version, batch(version, [version])))
    begun, unlink = threading.Event(), Path.unlink

    def unlink_slowly(path: Path, missing_ok: bool = False) -> None:
        begun.set()
        time.sleep(0.05)
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink_slowly)
    resuming = asyncio.create_task(target.resume(offset(0)))
    await asyncio.to_thread(begun.wait, 10)
    resuming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await resuming
    left = names(tmp_path)
    await asyncio.sleep(0.2)
    assert names(tmp_path) == left
