"""Detect whether two paths are the same folder, and whether a folder is on a local disk."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_OWN_DISKS = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}
)
_MOUNTS = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderIdentity:
    """A folder's identity in the file system, independent of links and mounts.

    Attributes:
        path: An absolute path of this machine, or bucket and key.
        location: Device and inode; None if the folder cannot be accessed, and in buckets.
    """

    path: str
    location: tuple[int, int] | None

    @classmethod
    def read(cls, path: str) -> FolderIdentity:
        """Return the identity of a folder; blocking."""
        if not path.startswith("/"):
            return cls(path=path, location=None)
        try:
            status = os.stat(path)  # noqa: PTH116 - called for thousands of folders in a row
        except OSError:
            return cls(path=os.path.realpath(path), location=None)
        return cls(path=path, location=(status.st_dev, status.st_ino))

    def is_same(self, other: FolderIdentity) -> bool | None:
        """Return whether two folders are the same; None if that cannot be determined. Blocking.

        Two devices may be two mounts of one file system, and on a network file system one folder
        may have two inode numbers.
        """
        if self.path == other.path:
            return True
        if not (self.path.startswith("/") and other.path.startswith("/")):
            # Buckets have no links.
            return False
        if self.location is None or other.location is None:
            return None
        if self.location == other.location:
            return True
        is_one_device = self.location[0] == other.location[0]
        return False if is_one_device and is_fast_local(self.path) else None


def is_fast_local(folder: str, mounts: Path = _MOUNTS) -> bool | None:
    """Return whether a stat in `folder` is fast enough to block on: microseconds, no network.

    Blocking. False for network, user-space and unknown file systems, and without `/proc`. None if
    the folder cannot be accessed, for example because it does not exist yet.
    """
    try:
        device = os.stat(folder).st_dev  # noqa: PTH116
    except OSError:
        return None
    try:
        # Folder names are bytes in an unknown encoding.
        lines = mounts.read_bytes().split(b"\n")
    except OSError:
        return False
    expected = f"{os.major(device)}:{os.minor(device)}".encode()
    for line in lines:
        before, _, after = line.partition(b" - ")
        if before.split()[2:3] == [expected]:
            return after.split()[0].decode(errors="replace") in _OWN_DISKS
    return False
