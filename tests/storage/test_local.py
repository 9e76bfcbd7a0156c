"""What only the local file system has: links, leftovers, permissions, many small files."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailerd.errors import (
    AccessDeniedError,
    ConditionalPutUnsupportedError,
    FileExistsAlreadyError,
    FileMissingError,
    StorageError,
)
from tailerd.storage.folder_identity import is_fast_local
from tailerd.storage.local import LocalStore
from tailerd.storage.posix_files import SMALL_BYTES, TEMPORARY_PREFIX, map_os_error


async def names(folder: Path, start_after: str = "") -> list[str]:
    return [meta.name async for meta in LocalStore().list_from(str(folder), start_after)]


async def test_listing_follows_links_to_files_and_skips_dangling_and_circular_ones(
    tmp_path: Path,
) -> None:
    (tmp_path / "real").write_bytes(b"123")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link-to-folder").symlink_to("folder")
    assert await names(tmp_path) == ["link", "real"]


async def test_a_pipe_is_not_listed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"")
    assert await names(tmp_path) == ["file"]


async def test_what_a_crashed_put_left_behind_is_not_listed(tmp_path: Path) -> None:
    (tmp_path / f"{TEMPORARY_PREFIX}0123").write_bytes(b"half")
    (tmp_path / ".hidden").write_bytes(b"")
    assert await names(tmp_path) == [".hidden"]


async def test_what_hadoop_keeps_beside_a_file_goes_when_it_is_replaced(tmp_path: Path) -> None:
    """It is of the former content, and Hadoop refuses a file that it does not fit."""
    for name in ("hint", "other"):
        (tmp_path / name).write_bytes(b"one")
        (tmp_path / f".{name}.crc").write_bytes(b"crc")
    await LocalStore().put(f"{tmp_path}/hint", b"two")
    assert sorted(os.listdir(tmp_path)) == [".other.crc", "hint", "other"]


async def test_a_put_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inner").write_bytes(b"")
    with pytest.raises(FileMissingError, match="folder"):
        await LocalStore().put(f"{tmp_path}/folder", b"x")
    with pytest.raises(StorageError, match="a file is where a folder must be"):
        await LocalStore().put(f"{tmp_path}/folder/inner/deeper", b"x")
    with pytest.raises(FileExistsAlreadyError):
        await LocalStore().put(f"{tmp_path}/folder/inner", b"x", if_absent=True)
    assert sorted(os.listdir(tmp_path / "folder")) == ["inner"]
    assert os.listdir(tmp_path) == ["folder"]


async def test_a_put_file_has_the_mode_that_the_umask_gives(tmp_path: Path) -> None:
    await LocalStore().put(f"{tmp_path}/a", b"x")
    (tmp_path / "b").write_bytes(b"x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


@pytest.mark.parametrize(
    ("number", "expected", "words"),
    [
        (errno.ENOENT, FileMissingError, "does not exist"),
        (errno.ENOTDIR, FileMissingError, "does not exist"),
        (errno.EISDIR, FileMissingError, "is a folder"),
        (errno.EEXIST, FileExistsAlreadyError, "exists already"),
        (errno.EACCES, AccessDeniedError, "the right to read it (and its folders)"),
        (errno.EPERM, AccessDeniedError, "cannot be used by this user"),
        (errno.ENOSPC, StorageError, "Free some space"),
        (errno.EIO, StorageError, "failed"),
    ],
    ids=lambda value: errno.errorcode[value] if isinstance(value, int) else "",
)
def test_an_error_of_the_system_becomes_one_that_names_the_file(
    number: int, expected: type[StorageError], words: str
) -> None:
    error = map_os_error(OSError(number, os.strerror(number)), "/lake/file")
    assert type(error) is expected
    assert "/lake/file" in str(error)
    assert words in str(error)


async def test_a_folder_without_the_right_to_write_is_no_question_of_reading(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").write_bytes(b"x")
    folder.chmod(0o555)
    request.addfinalizer(lambda: folder.chmod(0o755))
    # What threads need is loaded before: nobody may not read Python itself everywhere.
    await asyncio.to_thread(folder.exists)
    request.getfixturevalue("nobody")
    store = LocalStore()
    for requested in (
        store.put(f"{folder}/b", b""),
        store.put_nondurable(f"{folder}/b", b""),
        store.delete(f"{folder}/a"),
        asyncio.to_thread(store.open_output, f"{folder}/b"),
    ):
        with pytest.raises(AccessDeniedError, match="the right to write in its folder"):
            await requested


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
async def test_a_file_system_without_hard_links_is_called_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def link(source: object, target: object, **folders: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    store = LocalStore()
    output = store.open_output(f"{tmp_path}/c")
    requested = (
        store.put(f"{tmp_path}/a", b"", if_absent=True),
        store.put_nondurable(f"{tmp_path}/b", b""),
        output.finish(if_absent=True),
    )
    for ask in requested:
        with pytest.raises(ConditionalPutUnsupportedError, match="has no hard links"):
            await ask
    assert os.listdir(tmp_path) == []
    await store.put(f"{tmp_path}/a", b"whoever is last")


async def test_a_folder_that_comes_later_is_read_in_place_like_any_other(tmp_path: Path) -> None:
    store, folder = LocalStore(), tmp_path / "t" / "_delta_log"
    with pytest.raises(FileMissingError):
        await store.get(f"{folder}/0.json")
    assert await store.folder_mark(str(folder)) is None
    folder.mkdir(parents=True)
    mark, fresh = await store.folder_mark(str(folder)), await LocalStore().folder_mark(str(folder))
    assert (mark is None) == (fresh is None)
    assert fresh is not None or not is_fast_local(str(tmp_path))


@pytest.mark.parametrize("more", [-1, 0, 1, 1_000_000])
async def test_files_around_the_small_size_are_read_whole(tmp_path: Path, more: int) -> None:
    body = os.urandom(SMALL_BYTES + more)
    (tmp_path / "a").write_bytes(body)
    store = LocalStore()
    assert await store.get(f"{tmp_path}/a") == body
    assert await store.get_many([f"{tmp_path}/a"] * 2) == [body, body]


def mounts(tmp_path: Path, kind: str) -> Path:
    device = tmp_path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    path = tmp_path / "mountinfo"
    path.write_text(
        f"1 2 0:99 / /other rw - nfs4 host:/x rw\n"
        f"3 2 {number} / /lake rw,relatime shared:1 - {kind} /dev/x rw\n"
    )
    return path


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("ext4", True), ("tmpfs", True), ("nfs4", False), ("fuse.s3fs", False), ("unheard-of", False)],
)
def test_only_file_systems_of_own_disks_are_read_in_place(
    tmp_path: Path, kind: str, expected: bool
) -> None:
    assert is_fast_local(str(tmp_path), mounts(tmp_path, kind)) is expected


@pytest.mark.parametrize("name", ["M\xfcller", "a\x0cb\x85c\rd"])
def test_names_of_mounts_may_be_any_bytes(tmp_path: Path, name: str) -> None:
    path = mounts(tmp_path, "ext4")
    other = f"9 2 0:98 / /media/{name} rw - ext4 /dev/y rw\n"
    path.write_bytes(other.encode("latin-1") + path.read_bytes())
    assert is_fast_local(str(tmp_path), path)


def test_what_cannot_be_known_is_asked_in_threads(tmp_path: Path) -> None:
    assert not is_fast_local(f"{tmp_path}/absent", mounts(tmp_path, "ext4"))
    assert not is_fast_local(str(tmp_path), tmp_path / "no-proc")


@pytest.fixture
def nobody() -> Iterator[None]:
    """Act as a user without rights where the tests run as root, who may read everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


async def test_an_unreadable_file_or_folder_is_reported_as_such(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "file").write_bytes(b"x")
    secret.chmod(0)
    request.addfinalizer(lambda: secret.chmod(0o755))
    request.getfixturevalue("nobody")
    with pytest.raises(AccessDeniedError, match=r"secret/file cannot be used by this user"):
        await LocalStore().get(f"{secret}/file")
    with pytest.raises(AccessDeniedError):
        await names(secret)
    with pytest.raises(AccessDeniedError):
        LocalStore().open_input(f"{secret}/file")
    with pytest.raises(AccessDeniedError):
        await LocalStore().put(f"{secret}/new", b"x")


@pytest.fixture
def many_files(tmp_path: Path) -> Path:
    for number in range(10_000):
        (tmp_path / f"{number:020}.json").write_bytes(b"x" * 1000)
    return tmp_path


async def test_ten_thousand_small_files_are_listed_and_read_in_a_moment_beside_other_work(
    many_files: Path,
) -> None:
    longest_pause = 0.0

    async def watch_the_loop() -> None:
        nonlocal longest_pause
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            longest_pause = max(longest_pause, time.perf_counter() - before)

    watch = asyncio.create_task(watch_the_loop())
    store = LocalStore()
    start = time.perf_counter()
    paths = [meta.path async for meta in store.list_from(str(many_files))]
    bodies = await store.get_many(paths)
    elapsed = time.perf_counter() - start
    watch.cancel()
    assert sum(map(len, bodies)) == 10_000_000
    # Reached in 0.15 s; the bound leaves room for a busy machine, not for a thread per file.
    assert elapsed < 1.0
    assert longest_pause < 0.5
