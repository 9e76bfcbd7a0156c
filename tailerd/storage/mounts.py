"""Which folders answer at once: those on file systems of this machine's own disks."""

from __future__ import annotations

import os
from pathlib import Path

_OWN_DISKS = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}
)
_MOUNTS = Path("/proc/self/mountinfo")


def answers_at_once(folder: str, mounts: Path = _MOUNTS) -> bool | None:
    """Return whether looking at a file in `folder` can be waited for: microseconds, no network.

    Blocking. What is not known to be so is not: network and user-space file systems, systems
    without `/proc`. None for a folder that cannot be looked at, as it does not exist yet.
    """
    try:
        device = os.stat(folder).st_dev  # noqa: PTH116
    except OSError:
        return None
    try:
        # Names of folders are bytes, in no encoding that anybody has to say.
        lines = mounts.read_bytes().split(b"\n")
    except OSError:
        return False
    wanted = f"{os.major(device)}:{os.minor(device)}".encode()
    for line in lines:
        before, _, after = line.partition(b" - ")
        if before.split()[2:3] == [wanted]:
            return after.split()[0].decode(errors="replace") in _OWN_DISKS
    return False
