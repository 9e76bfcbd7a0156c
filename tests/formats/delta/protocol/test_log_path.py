from __future__ import annotations

import pytest

from tailerd.formats.delta.protocol.log_path import (
    LogFile,
    LogFileKind,
    checksum_name,
    commit_name,
    format_first_name,
    parse_log_path,
)

V = "00000000000000000007"
UUID = "80a083e8-7026-4e79-81be-64bd76c43a11"


def parsed(name: str) -> LogFile:
    file = parse_log_path(name, 5, 6)
    assert file is not None
    assert (file.name, file.size_bytes, file.mtime_ms) == (name, 5, 6)
    return file


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (f"{V}.json", LogFileKind.COMMIT),
        (f"{V}.crc", LogFileKind.CHECKSUM),
        (f"{V}.checkpoint.parquet", LogFileKind.CLASSIC_CHECKPOINT),
        (f"{V}.checkpoint.{UUID}.parquet", LogFileKind.UUID_CHECKPOINT),
        (f"{V}.checkpoint.{UUID}.json", LogFileKind.UUID_CHECKPOINT),
        (f"{V}.checkpoint.{UUID.upper()}.json", LogFileKind.UUID_CHECKPOINT),
    ],
)
def test_every_kind_of_file_is_recognised_by_its_name(name: str, kind: LogFileKind) -> None:
    file = parsed(name)
    assert (file.kind, file.version, file.end_version) == (kind, 7, 7)
    assert file.is_json == name.endswith(".json")


def test_a_part_of_a_checkpoint_knows_its_number() -> None:
    file = parsed(f"{V}.checkpoint.0000000002.0000000003.parquet")
    assert (file.kind, file.part, file.parts) == (LogFileKind.MULTI_PART_CHECKPOINT, 2, 3)


def test_a_compaction_knows_its_range() -> None:
    file = parsed(f"{V}.00000000000000000009.compacted.json")
    assert (file.kind, file.version, file.end_version) == (LogFileKind.COMPACTION, 7, 9)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "_last_checkpoint",
        "_commits",
        "7.json",
        f"{V}.json.tmp",
        f".{V}.json.crc",
        f"{V}.JSON",
        f"{V}.json.gz",
        f"x{V}.json",
        "0000000000000000000x.json",
        "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٧.json",
        f"{V}.{UUID}.json",
        f"{V}.checkpoint",
        f"{V}.checkpoint.json",
        f"{V}.checkpoint.{UUID}",
        f"{V}.checkpoint.not-a-uuid.parquet",
        f"{V}.checkpoint.1.3.parquet",
        f"{V}.checkpoint.0000000000.0000000003.parquet",
        f"{V}.checkpoint.0000000004.0000000003.parquet",
        f"{V}.checkpoint.0000000001.0000000000.parquet",
        f"{V}.{V}.compacted.json",
        f"{V}.00000000000000000006.compacted.json",
        f"{V}.00000000000000000009.compacted.json.tmp",
    ],
)
def test_a_name_that_is_no_log_file_is_ignored(name: str) -> None:
    assert parse_log_path(name) is None


@pytest.mark.parametrize("version", [0, 1, 9, 10, 99, 10**19])
def test_names_are_made_as_they_are_read_and_sort_by_version(version: int) -> None:
    assert parsed(commit_name(version)).version == version
    assert parsed(checksum_name(version)).kind is LogFileKind.CHECKSUM
    names = [commit_name(version), checksum_name(version), f"{version:020}.checkpoint.parquet"]
    assert all(format_first_name(version) < name for name in names)
    assert all(name < format_first_name(version + 1) for name in names)
