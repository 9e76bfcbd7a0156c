"""Hard links to data files, so that removed rows can be read after garbage collection.

A link needs no space until its file is collected. Requires a dataset on a local disk, and a spool
on the same file system. Blocking.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import xxhash

from tailerd.errors import ConfigError, StorageError
from tailerd.private_files import make_private_folder


class FileSpool:
    """The links of one pipeline's dataset, in a separate folder.

    Args:
        store: The folder to which keys of files are relative.
        folder: The folder of the links; need not exist yet.
    """

    def __init__(self, store: str, folder: Path) -> None:
        self._store = store
        self._folder = folder

    def path(self, key: str) -> Path:
        """Return the path of the link to a file; it may not exist."""
        name = xxhash.xxh3_128_hexdigest(key.encode())
        return self._folder / name[:2] / f"{name[2:]}.parquet"

    def size_bytes(self, key: str) -> int | None:
        """Return the size of a linked file; None if it is not linked."""
        try:
            return self.path(key).stat().st_size
        except FileNotFoundError:
            return None

    def add(self, keys: Iterable[str]) -> None:
        """Link files that are not linked yet; skip missing files and symbolic links.

        Raises:
            ConfigError: The spool is on another file system, or that has no hard links.
            StorageError: A link cannot be made.
        """
        for key in keys:
            source, link = f"{self._store}/{key}", self.path(key)
            try:
                # A symbolic link may lead outside the dataset.
                if not stat.S_ISREG(os.lstat(source).st_mode):
                    continue
                self._link(source, link)
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno in (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK):
                    raise ConfigError(
                        f"{source} cannot be linked below {self._folder}: {error.strerror}.",
                        remedy="`spool: link` needs the state on the file system of the dataset,"
                        " one with hard links, and files that this user owns or may write. Move the"
                        " state, or leave the option out.",
                    ) from error
                raise StorageError(f"{source} cannot be linked to {link}: {error}.") from error

    def _link(self, source: str, link: Path) -> None:
        with suppress(FileExistsError):
            try:
                os.link(source, link, follow_symlinks=False)
            except FileNotFoundError:
                if not Path(source).exists():
                    raise
                make_private_folder(link.parent)
                os.link(source, link, follow_symlinks=False)

    def remove(self, keys: Iterable[str]) -> None:
        """Remove the links to files that are no longer needed.

        Raises:
            StorageError: One cannot be removed.
        """
        for key in keys:
            try:
                self.path(key).unlink(missing_ok=True)
            except OSError as error:
                raise StorageError(f"{self.path(key)} cannot be removed: {error}.") from error
