"""Records of damaged commits that were left out: durable before the offset moves past them."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Protocol, Self

import xxhash

from tailerd.changefeed.offset import Offset
from tailerd.errors import FileExistsAlreadyError, TailerdError
from tailerd.pipeline_names import file_name
from tailerd.state.base import StateFiles

_FOLDER = "corrupt_commits"


@dataclass(frozen=True, slots=True, kw_only=True)
class CorruptCommitRecord:
    """One commit that was left out.

    Attributes:
        table_id, version: The commit.
        position: Its change tasks before this were delivered before the damage was found; 0 if
            none was.
        error_code, message: Its error.
        time_ms: When it was left out.
    """

    table_id: str
    version: int
    position: int
    error_code: str
    message: str
    time_ms: int

    @classmethod
    def from_error(cls, offset: Offset, error: TailerdError, time_ms: int) -> Self:
        """Return the record of the commit at `offset`."""
        return cls(
            table_id=offset.table_id,
            version=offset.version,
            position=offset.position,
            error_code=error.code,
            message=str(error),
            time_ms=time_ms,
        )


class CorruptCommitLog(Protocol):
    """Keeps records for each table. Errors: `StorageError`."""

    async def record(self, table: str, record: CorruptCommitRecord) -> str:
        """Save a record durably; return its location, for messages."""
        ...


class CorruptCommits:
    """A `CorruptCommitLog` in the files of a state: one file for each commit, named after it.

    A file is never replaced, so a daemon that lost the state cannot change one.
    """

    def __init__(self, files: StateFiles) -> None:
        self._files = files

    async def record(self, table: str, record: CorruptCommitRecord) -> str:
        """Write the commit's file, unless a crash left one.

        Raises:
            StateInUseError: Another process has taken over the state.
            StorageError: It cannot be written.
        """
        # Not the id itself: a log may have any text there.
        name = f"{record.version:020}-{xxhash.xxh3_64_hexdigest(record.table_id.encode())}.json"
        path = f"{self._files.root}/{_FOLDER}/{file_name(table)}/{name}"
        fields = {**asdict(record), "token": await self._files.require_ownership()}
        body = json.dumps(fields, ensure_ascii=False).encode() + b"\n"
        with suppress(FileExistsAlreadyError):
            await self._files.store.put(path, body, if_absent=True)
        return self._files.store.format_url(path)
