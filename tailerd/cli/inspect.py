"""`tailerd inspect`: a version of a table, from its log."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass

import click

from tailerd.changefeed.offset import Version
from tailerd.changefeed.points import show_ms
from tailerd.cli.completion import table_locations
from tailerd.cli.output import print_object, print_records, warn
from tailerd.cli.record_table import Layout
from tailerd.cli.table_options import (
    NamedTable,
    of_configured_table,
    resolve_point,
)
from tailerd.errors import UsageError
from tailerd.formats.base import TableFormat
from tailerd.formats.detect import find_table
from tailerd.formats.inspection import TableDescription, TableInspection
from tailerd.formats.part_request import PartRequest
from tailerd.formats.parts import require_part
from tailerd.storage.table_location import locate_table

_EXAMPLES = """\b
Examples:
  tailerd inspect /lake/orders
  tailerd inspect /lake/orders --version 12 --json
  tailerd inspect /lake/orders --files --json | wc -l
"""
_FILE_LAYOUT = Layout(
    columns=("path", "size_bytes", "num_rows", "deletion_vector", "partition_values"),
    optional=("deletion_vector", "partition_values"),
    cut=("path", "partition_values", "deletion_vector"),
)


@click.command("inspect", epilog=_EXAMPLES)
@of_configured_table
@click.argument("table", shell_complete=table_locations)
@click.option("--version", type=click.IntRange(0), help="An older version; the newest by default.")
@click.option(
    "--timestamp",
    help="The version at that time, such as 2026-11-21T09:30 (UTC), -2h or yesterday.",
)
@click.option("--files", is_flag=True, help="List the live files instead.")
@click.option("--strict", is_flag=True, help="Fail if a version checksum does not match.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def command(
    table: NamedTable,
    version: int | None,
    timestamp: str | None,
    files: bool,
    strict: bool,
    as_json: bool,
) -> None:
    """Show the version, schema, properties and files of a table, from its log."""
    if version is not None and timestamp is not None:
        raise UsageError(
            "--version and --timestamp both say which version.", remedy="Give one of them."
        )

    async def inspect() -> None:
        inspected = await open_inspection(table, is_strict=strict)
        inspection = inspected.inspection
        requested = None if version is None else Version(version)
        if timestamp is not None:
            requested = await inspection.version_at(resolve_point(timestamp))
        if files:
            await _print_files(inspection, requested, as_json)
        else:
            found = await inspection.describe(requested)
            shown = (
                _for_scripts(found, table.path, inspected.format)
                if as_json
                else _for_people(found, table.path)
            )
            print_object(shown, as_json=as_json)

    asyncio.run(inspect())


def _for_scripts(
    found: TableDescription, table: str, table_format: TableFormat
) -> dict[str, object]:
    """Return the fields of `inspect --json`."""
    return {
        "table_id": found.table_id,
        "name": found.name,
        "path": table,
        "format": table_format.name,
        "capabilities": asdict(table_format.capabilities),
        "version": found.version,
        "timestamp_ms": found.timestamp_ms,
        "num_files": found.num_files,
        "size_bytes": found.size_bytes,
        "num_rows": found.num_rows,
        "partition_columns": list(found.partition_columns),
        "schema": found.schema,
        "properties": dict(found.properties),
        **found.facts,
    }


def _for_people(found: TableDescription, table: str) -> dict[str, object]:
    """Return the same facts for people: times, counts with separators, a line a column."""
    time, rows = found.timestamp_ms, found.num_rows
    shown: dict[str, object] = {
        "table": table,
        "id": found.table_id,
        "version": found.version,
        "committed": None if time is None else show_ms(time),
        "files": _count(found.num_files),
        "bytes": _count(found.size_bytes),
        "rows": "unknown, some files have no statistics" if rows is None else _count(rows),
        **found.shown,
    }
    if found.partition_columns:
        shown["partitioned by"] = ", ".join(found.partition_columns)
    if found.name:
        shown["name"] = found.name
    shown |= found.properties
    return shown | {f"column {name}": kind for name, kind in found.columns}


def _count(number: int | None) -> str | None:
    return None if number is None else f"{number:,}"


async def _print_files(inspection: TableInspection, version: Version | None, as_json: bool) -> None:
    if as_json:
        # A table may have millions of files: they are printed as they are found.
        async for files in inspection.files(version):
            print_records(map(asdict, files), _FILE_LAYOUT, as_json=True)
        return
    rows = [asdict(file) async for files in inspection.files(version) for file in files]
    print_records(rows, _FILE_LAYOUT, as_json=False)


@dataclass(frozen=True, slots=True)
class InspectedTable:
    """A table to inspect, and its format."""

    format: TableFormat
    inspection: TableInspection


async def open_inspection(table: NamedTable, *, is_strict: bool) -> InspectedTable:
    """Return a table's format and inspection; warnings go to standard error.

    Args:
        is_strict: Whether contradictions within the log are errors.

    Raises:
        UnsupportedFeatureError: The format has no inspection.
        NotATableError: There is no table.
        ConfigError: No store serves this location, or the format is unknown.
        StorageError: The table cannot be read.
    """
    at = locate_table(table.path, table.allowed_paths, stores=table.stores)
    found, location = await find_table(at, table.table_format, table.format_options)
    inspector = require_part(found.inspector, found.name, "inspection")
    request = PartRequest(
        location=location,
        ledger=table.ledger,
        options=table.format_options,
        warn=warn,
        is_strict=is_strict,
    )
    return InspectedTable(found, inspector(request))
