"""What others still want of a log: a cleanup deletes nothing that somebody has yet to read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tailerd.storage.folder_identity import FolderIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What readers want of a log.

    Attributes:
        from_version: The oldest version one of them may have to rebuild; None where none does.
        obstacle: Why that is not known yet; empty where it is.
        error_code: Of an obstacle that an operator should hear of; empty for one that passes.
        by: Whose version that is, for people.
    """

    from_version: int | None = None
    obstacle: str = ""
    error_code: str = ""
    by: str = "a pipeline"

    def and_also(self, other: Needs) -> Needs:
        """Return what satisfies both."""
        if self.obstacle or other.obstacle:
            return self if self.obstacle else other
        if other.from_version is None:
            return self
        if self.from_version is None or other.from_version < self.from_version:
            return other
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A pipeline that reads a log.

    Attributes:
        folder: Its log, as it is configured.
        version: The first version it has not delivered; None where it has not said so.
        table_id: Of the table it delivers; empty where it has not said so.
    """

    name: str
    folder: str
    version: int | None = None
    table_id: str = ""


def needs_of(readers: Iterable[Reader], folder: str, table_id: str) -> Needs:
    """Return what pipelines want of one log, under whatever name they read it. Blocking.

    Args:
        folder: The log, as it is configured for its maintenance.
        table_id: Of its table, which decides where folders cannot be compared; empty where it is
            not known yet: then only those count that surely read this log.
    """
    log = FolderIdentity.of(folder)
    versions = []
    for reader in readers:
        is_same = reader.folder == folder or log.is_same(FolderIdentity.of(reader.folder))
        if is_same is None and (not table_id or reader.table_id not in ("", table_id)):
            continue
        if is_same is False:
            continue
        if is_same is None and not reader.table_id:
            return Needs(
                obstacle=f"{reader.name} has not reported yet which table it delivers, and it may"
                f" be this one: {reader.folder} cannot be compared with this log's folder."
            )
        if reader.version is None:
            return Needs(obstacle=f"{reader.name} has not delivered anything yet.")
        versions.append(reader.version)
    # A commit is read together with the version before it.
    return Needs(from_version=max(0, min(versions) - 1) if versions else None)
