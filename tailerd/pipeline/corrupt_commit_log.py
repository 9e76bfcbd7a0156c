"""Records of damaged commits that were left out: durable before the offset moves past them."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, Self

from tailerd.changefeed.offset import Offset
from tailerd.errors import (
    AccessDeniedError,
    BugError,
    FileExistsAlreadyError,
    StorageError,
    TailerdError,
)
from tailerd.pipeline.fenced_files import Token
from tailerd.private_files import make_private_folder, open_private
from tailerd.storage.base import ObjectStore
from tailerd.storage.posix_files import sync_folder
from tailerd.threads import in_thread


@dataclass(frozen=True, slots=True, kw_only=True)
class CorruptCommitRecord:
    """One commit that was left out.

    Attributes:
        table_id, version: The commit.
        position: Its change tasks before this were delivered before the damage was found; 0 if
            none was.
        error_code, message: What is wrong with it.
        time_ms: When it was left out.
    """

    table_id: str
    version: int
    position: int
    error_code: str
    message: str
    time_ms: int

    @classmethod
    def of(cls, offset: Offset, error: TailerdError, time_ms: int) -> Self:
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
        """Save a record durably; return its place, for messages."""
        ...


class FileCorruptCommitLog:
    """One file of JSON lines for each table, only ever appended to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, table: str) -> Path:
        """Return the file of a table."""
        return self._folder / f"{table}.jsonl"

    async def record(self, table: str, record: CorruptCommitRecord) -> str:
        """Append a line, unless the last one, left by a crash, is of the same commit.

        Raises:
            StorageError: The file cannot be written.
        """
        # Waits when cancelled: two appends must not mix.
        await in_thread(self._append, table, record)
        return str(self.path(table))

    def _append(self, table: str, record: CorruptCommitRecord) -> None:
        path = self.path(table)
        try:
            make_private_folder(self._folder)
            with open_private(path, "a+b") as file:
                last = _last_line(file)
                if not _is_same_commit(last, record):
                    line = json.dumps(asdict(record), ensure_ascii=False).encode()
                    # A crash may have left an incomplete line.
                    torn = b"\n" if last and not last.endswith(b"\n") else b""
                    file.write(torn + line + b"\n")
                file.flush()
                os.fsync(file.fileno())
            sync_folder(self._folder)
        except OSError as error:
            kind = AccessDeniedError if isinstance(error, PermissionError) else StorageError
            raise kind(
                f"The damaged commit of {table} cannot be recorded in {path}: {error.strerror}.",
                remedy="Free space, or give this user the right to write there.",
            ) from error


class BucketCorruptCommitLog:
    """One file for each commit that was left out, named after it, in an object store.

    A file is never replaced, so a daemon that lost its lease cannot change one.

    Args:
        store, folder: Where.
        token: Of the lease of the state.
    """

    def __init__(self, store: ObjectStore, folder: str, token: Token) -> None:
        self._store = store
        self._folder = folder
        self._token = token

    async def record(self, table: str, record: CorruptCommitRecord) -> str:
        """Write the commit's file, unless a crash left one.

        Raises:
            StateInUseError: Another process has taken the state over.
            StorageError: The bucket cannot be written.
        """
        path = f"{self._folder}/{table}/{record.version:020}-{record.table_id}.json"
        token = await self._token()
        if token is None:
            raise BugError(f"{path} was to be written without holding the state.")
        fields = {**asdict(record), "token": token}
        body = json.dumps(fields, ensure_ascii=False).encode() + b"\n"
        with suppress(FileExistsAlreadyError):
            await self._store.put(path, body, if_absent=True)
        return f"s3://{path}"


def _last_line(file: BinaryIO) -> bytes:
    """Return the last line with its newline; at most its last 64 KiB."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 65_536))
    lines = file.read().splitlines(keepends=True)
    return lines[-1] if lines else b""


def _is_same_commit(line: bytes, record: CorruptCommitRecord) -> bool:
    try:
        fields = json.loads(line)
        return (fields["table_id"], fields["version"]) == (record.table_id, record.version)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
