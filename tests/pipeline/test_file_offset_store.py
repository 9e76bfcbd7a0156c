"""The offset file: what a crash, a full disk, an edit or a newer release leave behind."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tailerd.errors import OffsetError, StorageError, TailerdError
from tailerd.pipeline.offset_store import FileOffsetStore
from tests.contracts.test_offset_store import saved

GOOD: dict[str, Any] = {
    "format": 1,
    "pipeline": {"daemon": "tailerd", "table": "orders", "sink": "file", "place": "/out"},
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
async def test_a_damaged_file_is_named_with_the_way_out(tmp_path: Path, case: str) -> None:
    store, content = FileOffsetStore(tmp_path), DAMAGED[case]
    store.path("orders").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(OffsetError) as caught:
        await store.load("orders")
    assert str(store.path("orders")) in str(caught.value)
    assert "tailerd offsets reset orders" in str(caught.value)


async def test_the_identity_of_the_table_is_in_the_file(tmp_path: Path) -> None:
    store = FileOffsetStore(tmp_path)
    await store.save("orders", replace(saved(1), schema_id="abc"))
    fields = json.loads(store.path("orders").read_text())
    assert [fields[name] for name in ("format", "table_id", "schema_id", "changes")] == [
        1,
        "t",
        "abc",
        "auto",
    ]
    assert await store.load("orders") == replace(saved(1), schema_id="abc")


async def test_the_offset_before_the_last_is_kept_beside_it(tmp_path: Path) -> None:
    store = FileOffsetStore(tmp_path)
    for version in range(3):
        await store.save("orders", saved(version))
    previous = tmp_path / "orders.json.previous"
    previous.replace(store.path("orders"))
    assert await store.load("orders") == saved(1)


async def test_what_a_crash_left_half_written_is_not_read(tmp_path: Path) -> None:
    store = FileOffsetStore(tmp_path)
    await store.save("orders", saved(1))
    (tmp_path / ".orders.json.tmp").write_text('{"format": 1, "off')
    assert await store.load("orders") == saved(1)
    await store.save("orders", saved(2))
    assert await store.load("orders") == saved(2)


async def test_a_place_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be saved"):
        await FileOffsetStore(tmp_path / "file" / "offsets").save("orders", saved(1))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
async def test_a_full_disk_can_be_tried_again_and_keeps_the_old_offset(tmp_path: Path) -> None:
    store = FileOffsetStore(tmp_path)
    await store.save("orders", saved(1))
    (tmp_path / ".orders.json.tmp").symlink_to("/dev/full")
    with pytest.raises(StorageError, match="No space left") as caught:
        await store.save("orders", saved(2))
    assert caught.value.retryable
    assert await store.load("orders") == saved(1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
async def test_a_file_that_may_not_be_read_is_an_error_not_a_fresh_start(tmp_path: Path) -> None:
    store = FileOffsetStore(tmp_path)
    await store.save("orders", saved(1))
    store.path("orders").chmod(0)
    with pytest.raises(TailerdError, match="cannot be read"):
        await store.load("orders")


async def test_a_folder_in_the_files_place_is_an_error_not_a_fresh_start(tmp_path: Path) -> None:
    store = FileOffsetStore(tmp_path)
    store.path("orders").mkdir()
    with pytest.raises(StorageError, match="cannot be read"):
        await store.load("orders")
