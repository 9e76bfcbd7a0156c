"""A poll of a table without a catalog asks for the next names, and finds what a listing finds."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tailerd.formats.iceberg.table_files import find_following, find_metadata
from tailerd.storage.base import FileMeta
from tailerd.storage.local import LocalStore


class CountingStore(LocalStore):
    """Counts the names that listings give."""

    names = 0

    async def list_from(self, folder: str, start_after: str = "") -> AsyncIterator[FileMeta]:
        async for file in super().list_from(folder, start_after):
            self.names += 1
            yield file


def make(root: Path, *names: str) -> None:
    folder = root / "metadata"
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("{}")


STYLES = {
    "catalog": "{:05d}-8f0c.metadata.json",
    "catalog, compressed": "{:05d}-8f0c.gz.metadata.json",
    "folder": "v{}.metadata.json",
}


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
@pytest.mark.parametrize("first", [1, 9, 98, 99_998])
async def test_each_commit_is_found_whatever_its_number(
    tmp_path: Path, style: str, first: int
) -> None:
    store = CountingStore()
    others = [f"{number:04x}-m0.avro" for number in range(300)]
    make(tmp_path, *others, *(f"snap-{n}.avro" for n in range(300)), style.format(first))
    for number in range(first + 1, first + 5):
        current = await find_metadata(store, str(tmp_path))
        assert current is not None
        make(tmp_path, style.format(number))
        newest = await find_metadata(store, str(tmp_path))
        assert newest is not None
        store.names = 0
        found = await find_following(store, str(tmp_path), current)
        # A number with another count of digits sorts elsewhere: the folder is listed.
        is_next_to_it = len(style.format(number + 1)) == len(current.name)
        assert found == (newest if is_next_to_it else None)
        assert store.names < 30
        assert await find_following(store, str(tmp_path), newest) in (newest, None)


async def test_of_two_files_with_one_number_the_later_one_is_found(tmp_path: Path) -> None:
    make(tmp_path, "00012-b.metadata.json")
    current = await find_metadata(LocalStore(), str(tmp_path))
    make(tmp_path, "00012-a.metadata.json")
    later = tmp_path / "metadata" / "00012-a.metadata.json"
    os.utime(later, (later.stat().st_mtime + 5, later.stat().st_mtime + 5))
    assert current is not None
    found = await find_following(LocalStore(), str(tmp_path), current)
    assert found == await find_metadata(LocalStore(), str(tmp_path))
    assert found is not None
    assert found.name == later.name


async def test_if_the_current_file_is_gone_the_folder_is_listed(tmp_path: Path) -> None:
    make(tmp_path, "00012-a.metadata.json")
    current = await find_metadata(LocalStore(), str(tmp_path))
    assert current is not None
    (tmp_path / "metadata" / current.name).unlink()
    make(tmp_path, "00000-new.metadata.json")
    assert await find_following(LocalStore(), str(tmp_path), current) is None


async def test_several_commits_at_once_are_found(tmp_path: Path) -> None:
    make(tmp_path, "00001-a.metadata.json")
    current = await find_metadata(LocalStore(), str(tmp_path))
    assert current is not None
    make(tmp_path, *(f"{number:05d}-a.metadata.json" for number in range(2, 9)))
    found = await find_following(LocalStore(), str(tmp_path), current)
    assert found == await find_metadata(LocalStore(), str(tmp_path))
