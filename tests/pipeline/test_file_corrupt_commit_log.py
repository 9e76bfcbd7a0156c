"""Records of damaged commits: appended, durable, once for each commit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tailerd.errors import StorageError
from tailerd.pipeline.corrupt_commit_log import CorruptCommitRecord, FileCorruptCommitLog

RECORD = CorruptCommitRecord(
    table_id="t",
    version=3,
    position=0,
    error_code="missing_data_file",
    message="the file is gone",
    time_ms=1_700_000_000_000,
)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_each_commit_is_a_line_with_what_is_wrong_with_it(tmp_path: Path) -> None:
    log = FileCorruptCommitLog(tmp_path / "corrupt_commits")
    assert await log.record("orders", RECORD) == str(tmp_path / "corrupt_commits/orders.jsonl")
    await log.record("orders", replace(RECORD, version=4))
    assert lines(log.path("orders")) == [
        {
            "table_id": "t",
            "version": version,
            "position": 0,
            "error_code": "missing_data_file",
            "message": "the file is gone",
            "time_ms": 1_700_000_000_000,
        }
        for version in (3, 4)
    ]


async def test_a_record_that_a_crash_left_behind_is_not_doubled(tmp_path: Path) -> None:
    log = FileCorruptCommitLog(tmp_path)
    await log.record("orders", RECORD)
    await log.record("orders", replace(RECORD, time_ms=1_700_000_009_999))
    assert len(lines(log.path("orders"))) == 1


async def test_a_line_that_was_cut_off_does_not_swallow_the_next(tmp_path: Path) -> None:
    log = FileCorruptCommitLog(tmp_path)
    log.path("orders").write_text('{"table_id": "t", "ver')
    await log.record("orders", RECORD)
    torn, whole = log.path("orders").read_text().splitlines()
    assert torn.endswith('"ver')
    assert json.loads(whole)["version"] == 3


async def test_a_record_that_cannot_be_kept_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be recorded"):
        await FileCorruptCommitLog(tmp_path / "file").record("orders", RECORD)
