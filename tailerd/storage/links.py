"""Symbolic links below a table's folder: reading follows some of them, writing and deleting none.

A writer to the table could otherwise make this process read, overwrite or delete files of another
user. The table's own location may be a link, because the user configures it.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from tailerd.errors import LinkInPathError, PathOutsideTableError, StorageError

_REFRESH_SECONDS = 1.0
"""How long a folder's resolved path is cached."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_WAY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
"""For a folder that is only traversed or deleted in: that needs no permission to read it."""


class AllowedPaths:
    """The real folders that a table's files may be in, after resolving links. Thread-safe.

    Args:
        root: The table's folder.
        allowed: Further locations, as `allowed_locations` returns them; remote ones are ignored.
    """

    def __init__(self, root: str, allowed: Iterable[str] = ()) -> None:
        self.root = root
        self._named = (root, *(each for each in allowed if each.startswith("/") or not each))
        self._refreshed_at = float("-inf")
        self._locations: tuple[str, ...] = ()
        self._inside: set[str] = set()

    def check(self, paths: Iterable[str]) -> None:
        """Check files that are about to be read; blocking. One lookup per file and per folder.

        A link that is created after this check is followed.

        Raises:
            PathOutsideTableError: A file is elsewhere.
        """
        now = time.monotonic()
        if now - self._refreshed_at > _REFRESH_SECONDS:
            self._locations = tuple(
                os.path.realpath(each or "/").rstrip("/") for each in self._named
            )
            self._inside, self._refreshed_at = set(), now
        inside = self._inside
        for path in paths:
            folder = path.rpartition("/")[0]
            if folder not in inside:
                self._require(path, f"{os.path.realpath(folder or '/')}/")
                inside.add(folder)
            try:
                # A Path object, or even `islink`, doubles the time.
                mode = os.lstat(path).st_mode
            except OSError:
                # Opening the file raises the error.
                continue
            if mode & 0o170000 == 0o120000:
                self._require(path, os.path.realpath(path))

    def _require(self, path: str, real: str) -> None:
        if any(real.startswith(f"{location}/") for location in self._locations):
            return
        raise PathOutsideTableError(
            f"{path} leads through a symbolic link to {real.rstrip('/')}, which lies outside the"
            f" table at {self.root}, so a link could make this process read any file.",
            remedy="If this is intended, allow the path with --allow-path (or allowed_paths in the"
            f" configuration), for example {os.path.dirname(real)}.",  # noqa: PTH120
        )


def linked_names(folder: str) -> frozenset[str]:
    """Return the names in a folder that are symbolic links; blocking."""
    try:
        with os.scandir(folder) as entries:
            return frozenset(entry.name for entry in entries if entry.is_symlink())
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()


def check_not_linked(*paths: str) -> None:
    """Check that none of the paths is a symbolic link; blocking.

    Raises:
        LinkInPathError: A path is a symbolic link.
    """
    for path in paths:
        if os.path.islink(path):  # noqa: PTH114 - Path raises where its parent is a file
            raise link_in_path(path)


def link_in_path(path: str) -> LinkInPathError:
    """Return the error for a link that is not followed."""
    return LinkInPathError(
        f"{path} is a symbolic link, and nothing is written or deleted through one, because that"
        " could change files elsewhere.",
        remedy="Replace it with the folder or file itself, or leave this table's maintenance out.",
    )


@contextmanager
def opened_parent(
    path: str, root: str | None, *, is_made: bool = False, is_read: bool = True
) -> Iterator[int]:
    """Yield a descriptor of the folder that contains a file, to use with the file's name only.

    Args:
        root: Below it no link is followed; None follows all.
        is_made: Whether missing folders are created.
        is_read: Whether the folder itself will be listed or synced.

    Raises:
        LinkInPathError: A folder below the root is a link.
        OSError: A folder is missing, is not a folder, or may not be accessed.
    """
    descriptor = open_parent(path, root, is_made=is_made, is_read=is_read)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_parent(path: str, root: str | None, *, is_made: bool = False, is_read: bool = True) -> int:
    """Return the descriptor that `opened_parent` yields; the caller closes it."""
    folder = path.rpartition("/")[0] or "/"
    top = folder if root is None or not f"{folder}/".startswith(f"{root}/") else root or "/"
    if is_made:
        _make(top, path)
    below = [name for name in folder[len(top) :].split("/") if name]
    last = _FOLDER if is_read else _WAY
    descriptor = os.open(top, _WAY if below else last)
    at = top
    try:
        for number, name in enumerate(below, 1):
            at = f"{at}/{name}"
            if is_made:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=descriptor)
            flags = last if number == len(below) else _WAY
            inner = _open_below(descriptor, name, at, flags)
            os.close(descriptor)
            descriptor = inner
    except BaseException as error:
        os.close(descriptor)
        if is_made and isinstance(error, NotADirectoryError):
            raise file_in_the_way(path) from error
        raise
    return descriptor


def _make(folder: str, path: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    except (FileExistsError, NotADirectoryError) as error:
        raise file_in_the_way(path) from error


def file_in_the_way(path: str) -> StorageError:
    """Return the error for a file that cannot be written because its folder is a file."""
    return StorageError(f"{path} cannot be written: a file is where a folder must be.")


def _open_below(parent: int, name: str, path: str, flags: int) -> int:
    try:
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                raise link_in_path(path) from error
        raise
