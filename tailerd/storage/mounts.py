"""Detect folders with fast metadata access: those on this machine's own disks."""

from __future__ import annotations

import os
from pathlib import Path

_OWN_DISKS = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}
)
_MOUNTS = Path("/proc/self/mountinfo")


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
    wanted = f"{os.major(device)}:{os.minor(device)}".encode()
    for line in lines:
        before, _, after = line.partition(b" - ")
        if before.split()[2:3] == [wanted]:
            return after.split()[0].decode(errors="replace") in _OWN_DISKS
    return False
