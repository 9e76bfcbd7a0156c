"""Every clause of `Output`, against every store."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailerd.errors import FileExistsAlreadyError, StorageError
from tailerd.storage import posix_files
from tailerd.storage.base import ObjectStore
from tailerd.storage.local import LocalStore
from tailerd.storage.output import open_output, sweep
from tests.clouds.servers import CloudServer
from tests.s3.servers import S3Server


@pytest.fixture
def path(tmp_path: Path, server: S3Server | CloudServer | None) -> str:
    location = tmp_path if server is None else server.new_bucket()
    return f"{location}/folder/deeper/file"


@pytest.fixture(params=[1, 9_000_000], ids=["small", "in-parts"])
def piece(request: pytest.FixtureRequest) -> bytes:
    """What is written, repeated: little, or more than an upload takes in one part."""
    return b"x" * int(request.param)


async def names(store: ObjectStore, path: str) -> list[str]:
    return [meta.name async for meta in store.list_from(path.rpartition("/")[0])]


async def test_a_file_appears_whole_when_it_is_finished(
    store: ObjectStore, path: str, piece: bytes
) -> None:
    output = open_output(store, path)
    await asyncio.to_thread(output.write, piece + b"one ")
    await asyncio.to_thread(output.write, piece + b"two")
    assert await names(store, path) == []
    await output.finish()
    assert await store.get(path) == piece + b"one " + piece + b"two"
    assert output.tell() == output.size_bytes == 7 + 2 * len(piece)


async def test_a_file_that_is_discarded_leaves_nothing(
    store: ObjectStore, path: str, piece: bytes
) -> None:
    output = open_output(store, path)
    await asyncio.to_thread(output.write, piece)
    await output.discard()
    output.write(b"nobody listens")
    assert await names(store, path) == []
    folder = Path(path).parent
    assert not folder.exists() or list(folder.iterdir()) == []


async def test_exactly_one_of_several_racing_outputs_wins(
    store: ObjectStore, path: str, piece: bytes
) -> None:
    outputs = [open_output(store, path) for _ in range(4)]
    for number, output in enumerate(outputs):
        await asyncio.to_thread(output.write, str(number).encode() + piece)
    ends = await asyncio.gather(
        *(output.finish(if_absent=True) for output in outputs), return_exceptions=True
    )
    assert [type(end) for end in ends].count(FileExistsAlreadyError) == 3
    winner = next(number for number, end in enumerate(ends) if end is None)
    assert await store.get(path) == str(winner).encode() + piece
    assert await names(store, path) == ["file"]


async def test_an_output_replaces_what_is_there(store: ObjectStore, path: str) -> None:
    await store.put(path, b"before")
    output = open_output(store, path)
    output.write(b"after")
    await output.finish()
    await output.discard()
    assert await store.get(path) == b"after"


async def test_parquet_is_written_to_an_output(store: ObjectStore, path: str) -> None:
    table = pa.table({"a": [1, 2, 3]})
    output = open_output(store, path)
    with pq.ParquetWriter(output, table.schema) as writer:
        writer.write_table(table)
    await output.finish(if_absent=True)
    with store.open_input(path) as source:
        assert pq.read_table(source).equals(table)


def test_only_old_leftovers_are_swept(tmp_path: Path) -> None:
    store = LocalStore()
    old, young = (open_output(store, f"{tmp_path}/{name}") for name in ("old", "young"))
    first, second = sorted(tmp_path.iterdir(), key=lambda item: item.stat().st_ino)
    os.utime(first, (1000, 1000))
    (tmp_path / "a file").write_text("")
    os.utime(tmp_path / "a file", (1000, 1000))
    assert asyncio.run(sweep(store, str(tmp_path), 2_000_000)) == 1
    assert {item.name for item in tmp_path.iterdir()} == {second.name, "a file"}
    assert asyncio.run(sweep(store, f"{tmp_path}/not there", 2_000_000)) == 0
    for output in (old, young):
        asyncio.run(output.discard())


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError):
        open_output(LocalStore(), f"{tmp_path}/file")


async def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="a file is where a folder must be"):
        open_output(LocalStore(), f"{tmp_path}/file/deeper/one")


async def test_a_discarded_output_never_writes_into_a_file_opened_after_it(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closed descriptor's number is given to the next file, while a thread may still write."""
    begun, go_on = threading.Event(), threading.Event()
    write_all = posix_files.write_all

    def slowly(descriptor: int, data: bytes) -> None:
        begun.set()
        assert go_on.wait(10)
        write_all(descriptor, data)

    output = open_output(LocalStore(), path)
    with monkeypatch.context() as patched:
        patched.setattr(posix_files, "write_all", slowly)
        writing = asyncio.create_task(asyncio.to_thread(output.write, b"PAR1"))
        assert await asyncio.to_thread(begun.wait, 10)
        discarding = asyncio.create_task(output.discard())
        await asyncio.wait({discarding}, timeout=0.05)
        with (tmp_path / "other").open("wb") as other:
            go_on.set()
            await asyncio.gather(writing, discarding)
            output.write(b"PAR1")
            other.flush()
            assert (tmp_path / "other").read_bytes() == b""
