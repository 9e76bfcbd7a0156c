from __future__ import annotations

from pathlib import Path

import pytest

from tailerd.errors import StorageError
from tailerd.pipeline.pause_store import PauseStore


def test_a_hold_outlives_the_process_and_ends_with_its_release(tmp_path: Path) -> None:
    store = PauseStore(tmp_path / "paused")
    assert not store.is_paused("orders")
    store.pause("orders")
    store.pause("orders")
    assert PauseStore(tmp_path / "paused").is_paused("orders")
    assert not store.is_paused("refunds")
    store.release("orders")
    store.release("orders")
    assert not PauseStore(tmp_path / "paused").is_paused("orders")


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "paused").write_text("a file")
    with pytest.raises(StorageError, match="paused"):
        PauseStore(tmp_path / "paused").pause("orders")
