"""Blocking calls on local files. They raise what the system raises unless they say otherwise."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from tailerd.errors import (
    AccessDeniedError,
    ConditionalPutUnsupportedError,
    FileExistsAlreadyError,
    FileMissingError,
    NameTooLongError,
    StorageError,
)
from tailerd.storage.base import FileMeta, FolderMark

TEMPORARY_PREFIX = ".tailerd-tmp-"
"""Unfinished files start so; listings leave them out, and other Delta readers ignore the dot."""

SMALL_BYTES = 64 * 1024
"""Files below this are read with one call."""

_WITHOUT_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""What file systems without hard links answer to `link`."""

_SETTLED_NS = 1_000_000_000
"""Steps of the clock that file systems date by are much smaller than this."""


def map_os_error(error: OSError, path: str, *, is_written: bool = False) -> StorageError:
    """Return the storage error that says what happened to `path`, read or else written."""
    match error:
        case FileNotFoundError() | NotADirectoryError():
            return FileMissingError(f"{path} does not exist.")
        case IsADirectoryError():
            return FileMissingError(f"{path} is a folder, a file was expected.")
        case FileExistsError():
            return FileExistsAlreadyError(f"{path} exists already.")
        case PermissionError():
            right = "write in its folder" if is_written else "read it (and its folders)"
            return AccessDeniedError(
                f"{path} cannot be used by this user: {error.strerror}.",
                hint=f"Give the user that runs tailerd the right to {right}.",
            )
    reason = error.strerror or repr(error)
    if error.errno == errno.ENAMETOOLONG:
        return NameTooLongError(
            f"{path[:60]}... with {len(path)} characters is longer than the file system allows.",
            hint="No file can have this name: correct what names it (a path in the configuration,"
            " or in the table's log, whose writer is then broken).",
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(f"{path} cannot be written: {reason}.", hint="Free some space.")
    return StorageError(f"{path} failed: {reason}.")


def scan_names(folder: str, start_after: str) -> list[str]:
    """Return the sorted names after `start_after`; what they stand for is not looked at."""
    try:
        with os.scandir(folder) as entries:
            # Strings of code points sort as their UTF-8 bytes do.
            return sorted(
                name
                for entry in entries
                if (name := entry.name) > start_after and not name.startswith(TEMPORARY_PREFIX)
            )
    except (FileNotFoundError, NotADirectoryError):
        return []


def stat_all(folder: str, names: list[str]) -> list[FileMeta]:
    """Return what the names stand for, without folders, dangling links and deleted files."""
    prefix = folder if folder.endswith("/") else folder + "/"
    files: list[FileMeta] = []
    for name in names:
        path = prefix + name
        try:
            status = os.stat(path)  # noqa: PTH116 - a Path object per file doubles the time
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno == errno.ELOOP:
                continue
            raise
        if status.st_mode & 0o170000 == 0o100000:
            files.append(FileMeta(path, status.st_size, status.st_mtime_ns // 1_000_000))
    return files


def head(path: str) -> FileMeta:
    """Return size and modification time of a file; a folder is an error."""
    status = os.stat(path)  # noqa: PTH116
    if status.st_mode & 0o170000 == 0o040000:
        raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
    return FileMeta(path, status.st_size, status.st_mtime_ns // 1_000_000)


def folder_mark(folder: str) -> FolderMark:
    """Return which folder this is and when a file last came to it or went."""
    status = os.stat(folder)  # noqa: PTH116
    return FolderMark(
        f"{status.st_dev}:{status.st_ino}:{status.st_mtime_ns}",
        # A clock that was set back leaves a time ahead, which is not settled either.
        time.time_ns() - status.st_mtime_ns > _SETTLED_NS,
    )


def read_files(paths: Sequence[str]) -> list[bytes]:
    """Return whole files; errors are mapped here, where it is known whose they are."""
    bodies: list[bytes] = []
    path = ""
    try:
        for path in paths:
            bodies.append(read_file(path))
    except OSError as error:
        raise map_os_error(error, path) from error
    return bodies


def read_file(path: str) -> bytes:
    """Return a whole file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Most log files fit: asking for their size first would be one call in four.
        body = os.read(descriptor, SMALL_BYTES)
        if len(body) < SMALL_BYTES:
            return body
        return body + _rest(descriptor)
    finally:
        os.close(descriptor)


def read_small_file(path: str) -> bytes | None:
    """Return a whole file of less than `SMALL_BYTES`; None for a larger one."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        body = os.read(descriptor, SMALL_BYTES)
        return body if len(body) < SMALL_BYTES else None
    finally:
        os.close(descriptor)


def _rest(descriptor: int) -> bytes:
    parts: list[bytes] = []
    wanted = max(1, os.fstat(descriptor).st_size - SMALL_BYTES)
    while part := os.read(descriptor, wanted + 1):
        parts.append(part)
        wanted = max(1, wanted - len(part))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_range(path: str, start: int, length: int | None) -> bytes:
    """Return `length` bytes (None: all) from `start`; fewer at the end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _range_of(descriptor, start, length)
    finally:
        os.close(descriptor)


def _range_of(descriptor: int, start: int, length: int | None) -> bytes:
    size = os.fstat(descriptor).st_size
    wanted = max(0, size - start if length is None else min(length, size - start))
    parts: list[bytes] = []
    while wanted > 0 and (part := os.pread(descriptor, wanted, start)):
        parts.append(part)
        start += len(part)
        wanted -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def fetch_small_file(path: str, length: int | None) -> tuple[FileMeta, bytes] | None:
    """Return what a file is and its first bytes, if those are fewer than `SMALL_BYTES`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        meta = _meta_of(descriptor, path)
        wanted = meta.size_bytes if length is None else min(length, meta.size_bytes)
        return (meta, os.read(descriptor, wanted)) if wanted < SMALL_BYTES else None
    finally:
        os.close(descriptor)


def fetch_range(path: str, start: int, length: int | None) -> tuple[FileMeta, bytes]:
    """Return what a file is, and `length` bytes (None: all) from `start`; fewer at the end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _meta_of(descriptor, path), _range_of(descriptor, start, length)
    finally:
        os.close(descriptor)


def _meta_of(descriptor: int, path: str) -> FileMeta:
    status = os.fstat(descriptor)
    if status.st_mode & 0o170000 == 0o040000:
        raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
    return FileMeta(path, status.st_size, status.st_mtime_ns // 1_000_000)


def write_file(path: str, data: bytes, if_absent: bool) -> None:
    """Write a file atomically and durably; with `if_absent`, only where there is none."""
    temporary, descriptor = begin_file(path)
    try:
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        let_appear(temporary, path, if_absent)
    finally:
        temporary.unlink(missing_ok=True)


def write_volatile_file(path: str, data: bytes) -> None:
    """Write a new file atomically; a power cut may take it, or what is in it."""
    temporary, descriptor = begin_file(path)
    try:
        try:
            write_all(descriptor, data)
        finally:
            os.close(descriptor)
        _link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def begin_file(path: str) -> tuple[Path, int]:
    """Open a new temporary file beside `path`; return its path and a descriptor to close."""
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise StorageError(
            f"{path} cannot be written: a file stands where a folder must."
        ) from error
    temporary = target.parent / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
    return temporary, os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def let_appear(temporary: Path, path: str, if_absent: bool) -> None:
    """Give a finished temporary file its name, durably; the temporary name may stay behind."""
    target = Path(path)
    if if_absent:
        # A hard link appears whole and fails when the name is taken: the one atomic
        # put-if-absent that every POSIX file system has.
        _link(temporary, path)
    else:
        temporary.replace(target)
    sync_folder(target.parent)


def _link(temporary: Path, path: str) -> None:
    try:
        os.link(temporary, path)
    except OSError as error:
        # Who may not write in the folder has failed before, and with another number.
        if error.errno not in _WITHOUT_LINKS:
            raise
        raise ConditionalPutUnsupportedError(
            f"{path} cannot be created: its file system has no hard links, so two writers could"
            " both believe that they won.",
            hint="Use one that has them (ext4, XFS, NFS) for maintenance and state; tables can be"
            " followed without.",
        ) from error


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of `data`."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def sweep(folder: str, before_ms: int) -> int:
    """Delete temporary files last written before a time; return how many there were."""
    found = 0
    try:
        with os.scandir(folder) as entries:
            names = [e.name for e in entries if e.name.startswith(TEMPORARY_PREFIX)]
    except (FileNotFoundError, NotADirectoryError):
        return 0
    for name in names:
        path = Path(folder, name)
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime_ns // 1_000_000 < before_ms:
                path.unlink()
                found += 1
    return found


def sync_file(path: Path) -> None:
    """Make what somebody else wrote into a file survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make a rename or link in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def delete(path: str) -> None:
    """Delete a file if it is there."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
        Path(path).unlink()
