"""Creates files and folders for this user alone: the content of a daemon's state.

Offsets, file lists and errors name tables, paths and keys, and changing them would change the
delivered rows. The process's umask applies to delivered files.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO, Literal

_FOLDER = 0o700
_FILE = 0o600
_OTHERS = 0o077


def make_private_folder(folder: Path) -> None:
    """Create a folder and its missing parents, for this user alone.

    An existing one is made private if it belongs to this user.

    Raises:
        OSError: It cannot be created.
    """
    try:
        folder.mkdir(mode=_FOLDER)
    except FileNotFoundError:
        make_private_folder(folder.parent)
        folder.mkdir(mode=_FOLDER, exist_ok=True)
    except FileExistsError:
        if not folder.is_dir():
            raise
        status = folder.stat()
        if status.st_uid == os.geteuid() and status.st_mode & _OTHERS:
            folder.chmod(_FOLDER)


def open_private(path: Path, mode: Literal["wb", "ab", "a+b"]) -> BinaryIO:
    """Open a file to write, for this user alone; an existing one is made private.

    Raises:
        OSError: It cannot be opened.
    """
    return open(path, mode, opener=_private)


def write_private(path: Path, content: bytes) -> None:
    """Write a whole file, for this user alone; it is not synced.

    Raises:
        OSError: It cannot be written.
    """
    with open_private(path, "wb") as file:
        file.write(content)


def _private(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_CLOEXEC, _FILE)
    try:
        status = os.fstat(descriptor)
        is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        if is_own and status.st_mode & _OTHERS:
            os.fchmod(descriptor, _FILE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
