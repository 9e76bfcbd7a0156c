"""Row groups are checked while they are copied, and nothing appears before all checks are done."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailerd.errors import CorruptLogError, LogCleanedUpError
from tailerd.formats.delta.log import checkpoint_source
from tailerd.formats.delta.log.checkpoint_entries import check_entries
from tailerd.formats.delta.log.checkpoint_source import CheckpointSource, CopiedGroup
from tailerd.formats.delta.log.parquet_rows import CheckpointFile
from tailerd.formats.delta.log.row_groups import (
    GroupCopier,
    RowGroupFile,
    encode_group,
    parse_footer,
)
from tailerd.formats.delta.protocol.file_key import KeyArray, file_key
from tailerd.reading.parquet_footer import Chunk, read_footer
from tests.formats.delta.log_bodies import add, vector
from tests.maintenance.test_incremental import Held
from tests.maintenance.test_replaced_checkpoints import files_first
from tests.maintenance.written import checkpoint_of
from tests.tables.builder import TableBuilder
from tests.waiting import PATIENCE_SECONDS

FILES = 12
GROUP = 4
V2 = {"readerFeatures": ["v2Checkpoint"], "writerFeatures": ["v2Checkpoint"]}


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small row groups be copied, and fill a sidecar, as large ones do."""
    monkeypatch.setattr("tailerd.formats.delta.log.checkpoint_source.COPIED_ROWS", 1)
    monkeypatch.setattr("tailerd.formats.delta.log.sidecar_writer.SIDECAR_FILES", GROUP)


def checks_running() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("row-group-check")]


def regroup(path: Path, change_last: Callable[[pa.Table], pa.Table]) -> None:
    """Write a checkpoint again in several row groups of files, the last of them changed."""
    files, others = files_first(pq.read_table(path))
    groups = [files.slice(start, GROUP) for start in range(0, FILES, GROUP)]
    with pq.ParquetWriter(path, files.schema) as writer:
        writer.write_table(others)
        for group in groups[:-1]:
            writer.write_table(group)
        writer.write_table(change_last(groups[-1]))


def backwards(group: pa.Table) -> pa.Table:
    return group.take(pa.array(range(group.num_rows - 1, -1, -1)))


def as_it_is(group: pa.Table) -> pa.Table:
    return group


async def grouped(folder: Path) -> tuple[TableBuilder, Held]:
    """Return a table whose checkpoint has several row groups, and its snapshot."""
    table = TableBuilder(folder, reader_features=[])
    table.create(*(add(f"a{n:02}") for n in range(FILES)))
    held = Held(table)
    await held.checkpoint()
    regroup(checkpoint_of(table.log, 0), as_it_is)
    held.snapshot = await held.reader.open()
    return table, held


def files_of(table: TableBuilder) -> set[Path]:
    return {path for path in table.log.rglob("*") if path.is_file()}


@pytest.mark.parametrize("is_v2", [False, True], ids=["one file", "sidecars"])
async def test_a_last_row_group_that_is_another_leaves_no_file(tmp_path: Path, is_v2: bool) -> None:
    table, held = await grouped(tmp_path)
    table.commit(table.protocol(minReaderVersion=3, **V2) if is_v2 else add("b"))
    regroup(checkpoint_of(table.log, 0), backwards)
    before = files_of(table)
    with pytest.raises(LogCleanedUpError, match=r"was replaced by another writer's checkpoint"):
        await held.checkpoint()
    assert files_of(table) == before
    assert not checks_running()
    held.snapshot = None
    assert (await held.checkpoint()).outcome == "written"
    await held.check()


@pytest.mark.parametrize("is_v2", [False, True], ids=["one file", "sidecars"])
async def test_however_long_the_last_check_takes_nothing_appears_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_v2: bool
) -> None:
    table, held = await grouped(tmp_path)
    table.commit(table.protocol(minReaderVersion=3, **V2) if is_v2 else add("b"))
    regroup(checkpoint_of(table.log, 0), backwards)
    check, copy = check_entries, RowGroupFile.copy
    copied = threading.Semaphore(0)
    seen: list[set[Path]] = []

    def check_after_copying(entries: pa.StructArray, keys: KeyArray, name: str, url: str) -> None:
        assert copied.acquire(timeout=10)
        seen.append({path for path in files_of(table) if ".checkpoint" in path.name})
        check(entries, keys, name, url)

    def copy_and_tell(*given: object) -> None:
        copy(*given)  # type: ignore[arg-type]
        if not threading.current_thread().name.startswith("row-group-check"):
            copied.release()

    monkeypatch.setattr(checkpoint_source, "check_entries", check_after_copying)
    monkeypatch.setattr(RowGroupFile, "copy", copy_and_tell)
    with pytest.raises(LogCleanedUpError):
        await held.checkpoint()
    assert seen == [{checkpoint_of(table.log, 0)}] * (FILES // GROUP)


async def opened_source(held: Held) -> CheckpointSource:
    assert held.snapshot is not None
    source = CheckpointSource(held.reader, held.snapshot, (), 0)
    await source.prepare()
    return source


async def test_whoever_ends_early_leaves_no_thread_and_no_open_file(tmp_path: Path) -> None:
    _, held = await grouped(tmp_path)
    source = await opened_source(held)
    adds = source.stored_adds(source.snapshot.checkpoint_files)
    first = await anext(adds)
    assert isinstance(first, CopiedGroup)
    assert checks_running()
    assert not first.source.closed
    await adds.aclose()
    assert not checks_running()
    assert first.source.closed


async def test_whoever_is_cancelled_leaves_no_thread_and_no_open_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, held = await grouped(tmp_path)
    source = await opened_source(held)
    is_checking, may_end = threading.Event(), threading.Event()
    opened: list[CheckpointFile] = []
    open_file = source.open_file

    def wait(*_: object) -> None:
        is_checking.set()
        assert may_end.wait(10)

    def noted(file: object) -> CheckpointFile:
        opened.append(open_file(file))  # type: ignore[arg-type]
        return opened[-1]

    monkeypatch.setattr(checkpoint_source, "check_entries", wait)
    monkeypatch.setattr(source, "open_file", noted)

    async def consume() -> None:
        async for _ in source.stored_adds(source.snapshot.checkpoint_files):
            pass

    task = asyncio.create_task(consume())
    assert await asyncio.to_thread(is_checking.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    del task
    may_end.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while checks_running() or not opened[0].source.closed:  # noqa: ASYNC110 - what ends is a thread
            await asyncio.sleep(0.01)


def group_of(*entries: dict[str, object]) -> tuple[pa.BufferReader, dict[str, Chunk], pa.DataType]:
    """Return a file with one row group of `add` entries, its columns and the entries' type."""
    kind = pa.struct(
        {
            "path": pa.string(),
            "size": pa.int64(),
            "deletionVector": pa.struct(
                {
                    "storageType": pa.string(),
                    "pathOrInlineDv": pa.string(),
                    "offset": pa.int32(),
                    "sizeInBytes": pa.int32(),
                    "cardinality": pa.int64(),
                }
            ),
        }
    )
    rows = pa.array([entry["add"] for entry in entries], kind)
    body = encode_group(pa.RecordBatch.from_arrays([rows], schema=pa.schema({"add": kind})))
    source = pa.BufferReader(body)
    columns = GroupCopier(parse_footer(body), parse_footer(body)).select_columns(
        read_footer(source, "it").groups[0]
    )
    assert columns is not None
    return source, columns, kind


PLAIN, WITH_VECTOR = add("a%20b"), add("c", **vector("v", offset=3))
KEYS = [file_key("a b", None), file_key("c", "iv@3")]


def keys_of(*keys: int) -> KeyArray:
    return np.array(keys, np.uint64)


def test_paths_and_deletion_vectors_are_checked() -> None:
    source, columns, kind = group_of(PLAIN, WITH_VECTOR)
    with checkpoint_source.GroupChecks("it", "", kind) as checks:
        pages = checks.begin(source, columns, keys_of(*KEYS))
        checks.finish()
        assert pages.keys() == {path for path in columns if path.endswith(("path", "Dv"))} | {
            "add.deletionVector.storageType",
            "add.deletionVector.offset",
        }
        for other in (
            group_of(PLAIN, add("c", **vector("v", offset=4))),
            group_of(PLAIN, add("c", **vector("w", offset=3))),
            group_of(PLAIN, add("c")),
            group_of(add("a+b"), WITH_VECTOR),
            group_of(WITH_VECTOR, PLAIN),
        ):
            checks.begin(*other[:2], keys_of(*KEYS))
            with pytest.raises(LogCleanedUpError):
                checks.finish()


def test_a_failed_check_is_told_before_the_next_row_group() -> None:
    source, columns, kind = group_of(PLAIN, WITH_VECTOR)
    with checkpoint_source.GroupChecks("it", "", kind) as checks:
        checks.begin(source, columns, keys_of(1, 2))
        with pytest.raises(LogCleanedUpError):
            checks.begin(source, columns, keys_of(*KEYS))


def test_a_damaged_column_is_told() -> None:
    source, columns, kind = group_of(*(add(f"p{n}") for n in range(500)))
    body = bytearray(source.read_at(source.size(), 0))
    chunk = columns["add.path"]
    body[chunk.start + 40 : chunk.start + chunk.size_bytes] = bytes(chunk.size_bytes - 40)
    keys = [file_key(f"p{n}", None) for n in range(500)]
    with checkpoint_source.GroupChecks("it", "", kind) as checks:
        checks.begin(pa.BufferReader(bytes(body)), columns, keys_of(*keys))
        with pytest.raises((CorruptLogError, LogCleanedUpError), match="it"):
            checks.finish()


def test_entries_without_a_column_of_deletion_vectors_have_none() -> None:
    source, columns, kind = group_of(PLAIN)
    fewer = {path: chunk for path, chunk in columns.items() if "deletionVector" not in path}
    with checkpoint_source.GroupChecks("it", "", kind) as checks:
        assert checks.begin(source, fewer, keys_of(KEYS[0])).keys() == {"add.path"}
        checks.finish()
