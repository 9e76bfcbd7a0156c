"""Opens a table of any format for `inspect` and `history`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailerd.cli.output import warn
from tailerd.formats.base import TableFormat
from tailerd.formats.detect import find_format, require_folder
from tailerd.formats.inspection import TableInspection
from tailerd.formats.ledger import LedgerPlace
from tailerd.formats.parts import required
from tailerd.formats.placement import place_at
from tailerd.storage.stores import Stores


@dataclass(frozen=True, slots=True)
class InspectedTable:
    """A table to inspect, and its format."""

    format: TableFormat
    inspection: TableInspection


async def open_inspection(
    table: str,
    table_format: str,
    allowed_paths: Sequence[str],
    *,
    is_strict: bool,
    ledger: LedgerPlace | None,
) -> InspectedTable:
    """Return a table's format and inspection; warnings go to standard error.

    Args:
        table: A path or URL.
        table_format: Name of its format; `auto` to detect it.
        allowed_paths: Places outside the table that its log may name.
        is_strict: Whether contradictions within the log are errors.
        ledger: Place of the ledger of a table without history.

    Raises:
        UnsupportedFeatureError: The format has no inspection.
        NotATableError: There is no table.
        ConfigError: No store serves this place, or the format is unknown.
        StorageError: The table cannot be read.
    """
    stores = Stores()
    await require_folder(table, stores)
    found = await find_format(table, table_format, allowed_paths, stores=stores)
    inspector = required(found.inspector, found.name, "inspection")
    place = place_at(
        table,
        stores=stores,
        allowed=allowed_paths,
        warn=warn,
        is_strict=is_strict,
        commits=found.folder(table),
        ledger=ledger,
    )
    return InspectedTable(found, inspector(place))
