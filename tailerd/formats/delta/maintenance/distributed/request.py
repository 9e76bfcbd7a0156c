"""Messages between Delta's maintenance and its engine program: a checkpoint request and answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from tailerd.formats.delta.log.log_writer import CheckpointResult
from tailerd.formats.delta.log.v2_manifest import ManifestKind
from tailerd.formats.delta.protocol.log_path import LogFile


class CheckpointRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Write a checkpoint of the newest version."""

    manifest: ManifestKind = "json"

    def to_json(self) -> bytes:
        """Return the request as one JSON object."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, text: bytes) -> CheckpointRequest:
        """Read what `to_json` wrote."""
        return msgspec.json.decode(text, type=cls)


class CheckpointAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A `CheckpointResult` without its snapshot."""

    version: int
    outcome: Literal["written", "already_there"]
    files: tuple[str, ...]
    size_bytes: int
    reused_files: tuple[str, ...]
    add_files: int
    is_hinted: bool

    def to_json(self) -> bytes:
        """Return the answer as one JSON object."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, text: bytes) -> CheckpointAnswer:
        """Read what `to_json` wrote."""
        return msgspec.json.decode(text, type=cls)

    @classmethod
    def from_result(cls, result: CheckpointResult) -> CheckpointAnswer:
        """Return the answer of a checkpoint that was written."""
        return cls(
            version=result.version,
            outcome=result.outcome,
            files=result.files,
            size_bytes=result.size_bytes,
            reused_files=result.reused_files,
            add_files=result.add_files,
            is_hinted=result.is_hinted,
        )

    def result(self) -> CheckpointResult:
        """Return the result of the checkpoint."""
        return CheckpointResult(
            version=self.version,
            outcome=self.outcome,
            files=self.files,
            size_bytes=self.size_bytes,
            reused_files=self.reused_files,
            add_files=self.add_files,
            is_hinted=self.is_hinted,
        )


COMMIT_FILES = 512
COMMIT_BYTES = 32 * 1024 * 1024
PART_ROWS = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSplit:
    """The input of one task.

    Attributes:
        files: JSON files in the order of the log, or one Parquet file.
        groups: Row groups of the Parquet file; None for all.
        first_row: Number of their first row within the file.
    """

    files: tuple[LogFile, ...]
    groups: tuple[int, ...] | None = None
    first_row: int = 0

    @property
    def is_json(self) -> bool:
        """Whether the files are JSON files."""
        return self.files[0].is_json


def commit_splits(files: Iterable[LogFile]) -> list[LogSplit]:
    """Assign JSON files to splits; a large one gets its own."""
    splits: list[LogSplit] = []
    held: list[LogFile] = []
    held_bytes = 0
    for file in files:
        if held and (len(held) == COMMIT_FILES or held_bytes + file.size_bytes > COMMIT_BYTES):
            splits.append(LogSplit(files=tuple(held)))
            held, held_bytes = [], 0
        held.append(file)
        held_bytes += file.size_bytes
    if held:
        splits.append(LogSplit(files=tuple(held)))
    return splits


def part_splits(file: LogFile, group_rows: Sequence[int]) -> list[LogSplit]:
    """Assign the row groups of a Parquet file to splits."""
    splits: list[LogSplit] = []
    held: list[int] = []
    first_row = held_rows = 0
    for group, rows in enumerate(group_rows):
        if held and held_rows + rows > PART_ROWS:
            splits.append(LogSplit(files=(file,), groups=tuple(held), first_row=first_row))
            first_row, held, held_rows = first_row + held_rows, [], 0
        held.append(group)
        held_rows += rows
    if held:
        splits.append(LogSplit(files=(file,), groups=tuple(held), first_row=first_row))
    return splits
