"""Computes which versions of a log pipelines still need: a cleanup deletes none of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tailerd.formats.maintenance import RetentionFloor
from tailerd.storage.folder_identity import FolderIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A pipeline that reads a log.

    Attributes:
        folder: Its log, as it is configured.
        version: The first version it has not delivered; None if it has not reported it.
        table_id: Of the table it delivers; empty if it has not reported it.
    """

    name: str
    folder: str
    version: int | None = None
    table_id: str = ""


def floor_of(readers: Iterable[Reader], folder: str, table_id: str) -> RetentionFloor:
    """Return which versions of one log pipelines need, by whatever path they read it. Blocking.

    Args:
        folder: The log, as it is configured for its maintenance.
        table_id: Of its table, which decides if folders cannot be compared; empty if it is not
            known yet: then only pipelines count that certainly read this log.
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
            return RetentionFloor(
                obstacle=f"{reader.name} has not reported yet which table it delivers, and it may"
                f" be this one: {reader.folder} cannot be compared with this log's folder."
            )
        if reader.version is None:
            return RetentionFloor(obstacle=f"{reader.name} has not delivered anything yet.")
        versions.append(reader.version)
    return RetentionFloor(from_version=min(versions, default=None))
