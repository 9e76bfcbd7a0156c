"""Opens a Delta table of a test for its changes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tailerd.formats.base import OpenRequest
from tailerd.formats.delta.changes.log import open_source
from tailerd.formats.delta.changes.partition_zone import PartitionZone
from tailerd.formats.delta.changes.snapshot_files import Spool
from tailerd.formats.detect import table_format
from tailerd.formats.part_request import PartRequest
from tailerd.formats.versioned_source import VersionedSource
from tailerd.storage.stores import Stores
from tailerd.storage.table_location import locate_table


async def open_delta(
    table: str,
    request: OpenRequest | None = None,
    *,
    allowed: Iterable[str] = (),
    stores: Stores | None = None,
    spool: Spool | None = None,
    zone: PartitionZone | None = None,
) -> VersionedSource:
    """Return the source of the table at a path or URL."""
    request = request or OpenRequest()
    location = locate_table(table, allowed, stores=stores).wrap(request.wrap_store)
    source = await open_source(location, request, spool=spool, zone=zone)
    await source.check_request()
    return source


def part_request(table: Path | str, kind: str = "delta", **fields: Any) -> PartRequest:
    """Return the request with which a part of a format opens the table at a location.

    Args:
        kind: Name of the format.
        fields: Other fields of the request.
    """
    location = locate_table(str(table))
    folder = table_format(kind).folder(location)
    return PartRequest(location=location.with_commits(folder), **fields)
