"""Which folders are one and the same, whatever they are called."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tailerd.storage.mounts import answers_at_once


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderIdentity:
    """A folder as the system knows it, reached by links and mounts or without.

    Attributes:
        path: An absolute path of this machine, or bucket and key.
        place: Device and inode; None for one that cannot be looked at, and in buckets.
    """

    path: str
    place: tuple[int, int] | None

    @classmethod
    def of(cls, path: str) -> FolderIdentity:
        """Look at a folder; blocking."""
        if not path.startswith("/"):
            return cls(path=path, place=None)
        try:
            status = os.stat(path)  # noqa: PTH116 - thousands of them are looked at in a row
        except OSError:
            return cls(path=os.path.realpath(path), place=None)
        return cls(path=path, place=(status.st_dev, status.st_ino))

    def is_same(self, other: FolderIdentity) -> bool | None:
        """Return whether two folders are one; None where that cannot be known. Blocking.

        Two devices may be two mounts of one, and servers of files may give one folder two numbers.
        """
        if self.path == other.path:
            return True
        if not (self.path.startswith("/") and other.path.startswith("/")):
            # Buckets know no links.
            return False
        if self.place is None or other.place is None:
            return None
        if self.place == other.place:
            return True
        is_one_device = self.place[0] == other.place[0]
        return False if is_one_device and answers_at_once(self.path) else None
