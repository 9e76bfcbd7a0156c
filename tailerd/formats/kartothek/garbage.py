"""Finds unreferenced data files of a dataset. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tailerd.formats.kartothek.metadata import PARQUET
from tailerd.storage.base import FileMeta

GRACE_SECONDS = 86_400.0
"""Writers write data files before the metadata that references them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """Unreferenced files below a dataset's folder.

    Attributes:
        files: Files to delete: unreferenced and older than the grace period; by path.
        waiting: Number of unreferenced files that are younger.
        next_ms: When the first of these is old enough; None if there is none.
        kept_by_ledger: Number of files that only a ledger references.
    """

    files: tuple[FileMeta, ...]
    waiting: int
    next_ms: int | None
    kept_by_ledger: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the files to delete."""
        return sum(file.size_bytes for file in self.files)


def find_garbage(
    listed: Iterable[FileMeta],
    named: Collection[str],
    in_ledger: Collection[str],
    *,
    now_ms: int,
    grace_seconds: float,
) -> Garbage:
    """Return the unreferenced files below a dataset's folder.

    Args:
        listed: Files below the dataset's folder; those that are not data files are ignored.
        named: Paths that the current metadata references, including index files.
        in_ledger: Paths that a state in a ledger references.
        grace_seconds: Younger files stay.
    """
    files, waiting, kept = [], [], 0
    until_ms = now_ms - int(grace_seconds * 1000)
    for file in listed:
        if not file.name.endswith(PARQUET) or file.path in named:
            continue
        if file.path in in_ledger:
            kept += 1
        elif file.mtime_ms < until_ms:
            files.append(file)
        else:
            waiting.append(file.mtime_ms)
    next_ms = min(waiting) + int(grace_seconds * 1000) + 1 if waiting else None
    files.sort(key=lambda file: file.path)
    return Garbage(files=tuple(files), waiting=len(waiting), next_ms=next_ms, kept_by_ledger=kept)
