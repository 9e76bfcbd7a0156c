"""Blocking calls on local files. They raise `OSError` unless documented otherwise."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import secrets
import signal
import stat
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from tailerd.errors import (
    AccessDeniedError,
    ConditionalPutUnsupportedError,
    FileExistsAlreadyError,
    FileMissingError,
    NameTooLongError,
    NotAFileError,
    StorageError,
)
from tailerd.private_files import make_private_folder
from tailerd.storage.base import FileMeta, FolderMark
from tailerd.storage.links import file_in_the_way, link_in_path, opened_parent

TEMPORARY_PREFIX = ".tailerd-tmp-"
"""Prefix of unfinished files; listings skip them, and other Delta readers skip dot files."""

SMALL_BYTES = 64 * 1024
"""Files below this are read with one call."""

HELD_BYTES = 256 * 1024
"""Data files up to this size are read when they are opened."""

_WITHOUT_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""Errors of `link` on file systems without hard links."""

_READING = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""Opening a pipe without a writer does not block, and no terminal becomes the controlling one."""

_DESCRIPTORS = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

_SETTLED_NS = 1_000_000_000
"""Much longer than the resolution of file system timestamps."""


def map_os_error(error: OSError, path: str, *, is_written: bool = False) -> StorageError:
    """Return the storage error for a failed read or, with `is_written`, write of `path`."""
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
                remedy=f"Give the user that runs tailerd the right to {right}.",
            )
    reason = error.strerror or repr(error)
    if error.errno == errno.ENAMETOOLONG:
        return NameTooLongError(
            f"{path[:60]}... with {len(path)} characters is longer than the file system allows.",
            remedy="No file can have this name: correct what names it (a path in the configuration,"
            " or in the table's log, whose writer is then broken).",
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(f"{path} cannot be written: {reason}.", remedy="Free some space.")
    return StorageError(f"{path} failed: {reason}.")


def scan_names(folder: str, start_after: str) -> list[str]:
    """Return the sorted names after `start_after`, without a stat of each."""
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
    """Return the files of these names, without folders, dangling links and deleted files."""
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
        if stat.S_ISREG(status.st_mode):
            files.append(_describe_file(status, path))
    return files


def head(path: str, *, is_in_place: bool = False) -> FileMeta:
    """Return size and modification time of a file; a folder is an error.

    Raises:
        LinkedFileError: It is a symbolic link, and `is_in_place` forbids that.
    """
    status = os.stat(path, follow_symlinks=not is_in_place)  # noqa: PTH116
    if is_in_place and stat.S_ISLNK(status.st_mode):
        raise LinkedFileError(errno.ELOOP, "Symbolic link", path)
    return _describe_file(status, path)


def open_file(path: str, *, is_in_place: bool = False) -> tuple[int, os.stat_result]:
    """Open a regular file without blocking; return a descriptor, to be closed, and its status.

    Args:
        is_in_place: Whether a symbolic link raises `LinkedFileError`.

    Raises:
        NotAFileError: It is a pipe, a socket or a device: reading it might never end.
    """
    try:
        descriptor = os.open(path, _READING | os.O_NOFOLLOW if is_in_place else _READING)
    except OSError as error:
        if is_in_place and error.errno == errno.ELOOP:
            raise LinkedFileError(error.errno, error.strerror, path) from error
        if error.errno in (errno.ENXIO, errno.ENODEV):
            # A socket cannot even be opened.
            _require_file(os.stat(path).st_mode, path)  # noqa: PTH116
        raise
    try:
        status = os.fstat(descriptor)
        _require_file(status.st_mode, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status


class LinkedFileError(OSError):
    """A symbolic link: its target may be on another file system, even a remote one."""


def _require_file(mode: int, path: str) -> None:
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
    raise NotAFileError(
        f"{path} is {_KINDS.get(stat.S_IFMT(mode), 'no regular file')}, and only files are read:"
        " reading it might never end.",
        remedy="Remove it, or replace it with the file.",
    )


def open_for_arrow(path: str) -> io.BytesIO | pa.OSFile:
    """Open a regular file for random reading by Arrow, which itself would block on a pipe.

    A small one is read at once: a call for each part of it would take longer.
    """
    descriptor, status = open_file(path)
    try:
        if status.st_size <= HELD_BYTES:
            return io.BytesIO(os.read(descriptor, status.st_size))
        # The file that was checked, even if it has been replaced since.
        return pa.OSFile(f"{_DESCRIPTORS}/{descriptor}", mode="r")
    finally:
        os.close(descriptor)


def folder_mark(folder: str) -> FolderMark:
    """Return the folder's identity and the times of its last added or removed file."""
    status = os.stat(folder)  # noqa: PTH116
    return FolderMark(
        # Tools that copy set the time of modification back, but not that of the change itself.
        f"{status.st_dev}:{status.st_ino}:{status.st_mtime_ns}:{status.st_ctime_ns}",
        # After a clock was set back, the time may be in the future, which is not settled either.
        time.time_ns() - status.st_mtime_ns > _SETTLED_NS,
    )


def stat_finished(path: str) -> tuple[FileMeta, bool | None]:
    """Return a file of a local disk, and whether it is complete; None where that is uncertain.

    Case A: a process has it open for writing: incomplete.
    Case B: no process has: its writer closed it, or it appeared by rename or link: complete.
    Case C: the system does not report writers: complete if it was not modified for a while.
        Local disks use this machine's clock.

    Raises:
        LinkedFileError: It is a symbolic link.
    """
    descriptor, _ = open_file(path, is_in_place=True)
    try:
        is_written = _is_open_for_writing(descriptor)
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    meta = _describe_file(status, path)
    if is_written is not None:  # Case A, Case B
        return meta, not is_written
    is_old = time.time_ns() - status.st_mtime_ns > _SETTLED_NS  # Case C
    return meta, is_old or None


def _is_open_for_writing(descriptor: int) -> bool | None:
    """Return whether any process has a file open for writing; None where that is not permitted.

    The kernel grants a read lease only to the file's owner, and only if the file is not open for
    writing. The lease ends when the descriptor is closed; until then, an open for writing blocks.
    Its signal is set to one that is ignored by default: the default signal would kill the process.
    """
    if sys.platform != "linux":
        return None
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        return True if error.errno == errno.EAGAIN else None
    return False


def read_files(paths: Sequence[str]) -> list[bytes]:
    """Return whole files; errors are mapped here, where the failed path is known."""
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
    descriptor, status = open_file(path)
    try:
        body = os.read(descriptor, SMALL_BYTES)
        if len(body) < SMALL_BYTES:
            return body
        return body + _rest(descriptor, status.st_size)
    finally:
        os.close(descriptor)


def read_small_file(path: str) -> bytes | None:
    """Return a whole file of less than `SMALL_BYTES`; None for a larger one.

    Raises:
        LinkedFileError: It is a symbolic link.
    """
    descriptor, _ = open_file(path, is_in_place=True)
    try:
        body = os.read(descriptor, SMALL_BYTES)
        return body if len(body) < SMALL_BYTES else None
    finally:
        os.close(descriptor)


def _rest(descriptor: int, size_bytes: int) -> bytes:
    parts: list[bytes] = []
    requested = max(1, size_bytes - SMALL_BYTES)
    while part := os.read(descriptor, requested + 1):
        parts.append(part)
        requested = max(1, requested - len(part))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_range(path: str, start: int, length: int | None) -> bytes:
    """Return `length` bytes (None: all) from `start`; fewer at the end."""
    descriptor, status = open_file(path)
    try:
        return _read_range(descriptor, status.st_size, start, length)
    finally:
        os.close(descriptor)


def _read_range(descriptor: int, size_bytes: int, start: int, length: int | None) -> bytes:
    requested = max(0, size_bytes - start if length is None else min(length, size_bytes - start))
    parts: list[bytes] = []
    while requested > 0 and (part := os.pread(descriptor, requested, start)):
        parts.append(part)
        start += len(part)
        requested -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def fetch_small_file(path: str, length: int | None) -> tuple[FileMeta, bytes] | None:
    """Return a file's metadata and first bytes; None for `SMALL_BYTES` or more.

    Raises:
        LinkedFileError: It is a symbolic link.
    """
    descriptor, status = open_file(path, is_in_place=True)
    try:
        meta = _describe_file(status, path)
        requested = meta.size_bytes if length is None else min(length, meta.size_bytes)
        return (meta, os.read(descriptor, requested)) if requested < SMALL_BYTES else None
    finally:
        os.close(descriptor)


def fetch_range(path: str, start: int, length: int | None) -> tuple[FileMeta, bytes]:
    """Return a file's metadata, and `length` bytes (None: all) from `start`; fewer at the end."""
    descriptor, status = open_file(path)
    try:
        return _describe_file(status, path), _read_range(descriptor, status.st_size, start, length)
    finally:
        os.close(descriptor)


def _describe_file(status: os.stat_result, path: str) -> FileMeta:
    _require_file(status.st_mode, path)
    # Inode numbers are reused. Unlike mtime, ctime cannot be set by users.
    identity = hash((status.st_ino, status.st_ctime_ns))
    return FileMeta(path, status.st_size, status.st_mtime_ns // 1_000_000, identity)


def write_file(
    path: str,
    data: bytes,
    root: str | None = None,
    *,
    if_absent: bool,
    is_durable: bool = True,
    is_private: bool = False,
) -> None:
    """Write a file atomically.

    Args:
        root: Below it no symbolic link is followed; None follows all.
        if_absent: Whether it must not exist.
        is_durable: Whether a power failure cannot lose it or its content once this returns.
        is_private: Whether the file and its folder are for this user alone.
    """
    if is_private:
        _make_private_parent(path)
    with opened_parent(path, root, is_made=True) as folder:
        temporary, descriptor = begin_file(folder, path, mode=0o600 if is_private else 0o666)
        try:
            try:
                write_all(descriptor, data)
                if is_durable:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            publish(folder, temporary, path, if_absent, is_durable=is_durable)
        finally:
            drop(folder, temporary)


def _make_private_parent(path: str) -> None:
    try:
        make_private_folder(Path(path).parent)
    except (FileExistsError, NotADirectoryError) as error:
        raise file_in_the_way(path) from error


def begin_file(folder: int, path: str, mode: int = 0o666) -> tuple[str, int]:
    """Open a new temporary file for `path`; return its name and a descriptor, to be closed.

    Args:
        folder: A descriptor of the folder that `path` is in.
        mode: Its permissions, before the process's umask.
    """
    if _is_folder(folder, split_name(path)):
        raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
    temporary = f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    return temporary, os.open(temporary, flags, mode, dir_fd=folder)


def split_name(path: str) -> str:
    """Return the last part of a path."""
    return path.rpartition("/")[2]


def _is_folder(folder: int, name: str) -> bool:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode)


def drop(folder: int, temporary: str) -> None:
    """Delete a temporary file if it is still there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=folder)


def publish(
    folder: int, temporary: str, path: str, if_absent: bool, *, is_durable: bool = True
) -> None:
    """Give a finished temporary file its final name; the temporary name may remain."""
    if if_absent:
        # A hard link appears complete and fails when the name exists: the only atomic
        # put-if-absent that every POSIX file system has.
        _link(folder, temporary, path)
    else:
        _drop_hadoops_checksum(folder, path)
        os.replace(temporary, split_name(path), src_dir_fd=folder, dst_dir_fd=folder)
    if is_durable:
        os.fsync(folder)


def _drop_hadoops_checksum(folder: int, path: str) -> None:
    """Delete the checksum that Hadoop writes next to each of its files, if there is one.

    It is optional. If it does not match, Hadoop refuses the file: Spark then retries for three
    seconds to read `_last_checkpoint`, each time it opens the table.
    """
    with contextlib.suppress(OSError):
        os.unlink(f".{split_name(path)}.crc", dir_fd=folder)


def _link(folder: int, temporary: str, path: str) -> None:
    try:
        os.link(temporary, split_name(path), src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        # A missing permission to write in the folder has failed before, with another errno.
        if error.errno not in _WITHOUT_LINKS:
            raise
        raise ConditionalPutUnsupportedError(
            f"{path} cannot be created: its file system has no hard links, so two writers could"
            " both succeed.",
            remedy="Use one that has them (ext4, XFS, NFS) for maintenance and state; tables can"
            " be read without them.",
        ) from error


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of `data`."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def sweep(folder: str, before_ms: int, root: str | None = None) -> int:
    """Delete temporary files last modified before a time; return how many were deleted."""
    found = 0
    try:
        with opened_parent(f"{folder}/", root) as descriptor:
            with os.scandir(descriptor) as entries:
                names = [e.name for e in entries if e.name.startswith(TEMPORARY_PREFIX)]
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                    is_old = status.st_mtime_ns // 1_000_000 < before_ms
                    if is_old and stat.S_ISREG(status.st_mode):
                        os.unlink(name, dir_fd=descriptor)
                        found += 1
    except (FileNotFoundError, NotADirectoryError):
        return 0
    return found


def sync_file(path: Path) -> None:
    """Flush a file that another writer wrote to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Flush renames and links in `folder` to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def delete(path: str, root: str | None = None) -> None:
    """Delete a file if it exists.

    Args:
        root: Below it no symbolic link is followed or deleted; None allows both.
    """
    with (
        contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError),
        opened_parent(path, root, is_read=False) as folder,
    ):
        name = split_name(path)
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if root is not None and stat.S_ISLNK(status.st_mode):
            raise link_in_path(path)
        os.unlink(name, dir_fd=folder)
