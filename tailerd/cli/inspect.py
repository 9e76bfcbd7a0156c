"""`tailerd inspect`: a version of a table, from its log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import click

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.points import parse_point, show_ms, to_ms
from tailerd.cli.allowed_paths import allow_path_option
from tailerd.cli.output import print_object, print_records, warn
from tailerd.errors import UnsupportedFeatureError, UsageError
from tailerd.formats.allowed_places import allowed_places
from tailerd.formats.delta.changes.commit_window import CommitWindow
from tailerd.formats.delta.log.live_files import count_rows, read_live_files
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.log.time_travel import TimeAxis
from tailerd.formats.delta.protocol.live_file import LiveFile
from tailerd.formats.delta.protocol.schema import parse_schema, schema_json
from tailerd.formats.delta.protocol.snapshot import Snapshot

_EXAMPLES = """\b
Examples:
  tailerd inspect /lake/orders
  tailerd inspect /lake/orders --version 12 --json
  tailerd inspect /lake/orders --files --json | wc -l
"""
_FILE_COLUMNS = ("path", "size_bytes", "num_rows", "deletion_vector", "partition_values")


@click.command("inspect", epilog=_EXAMPLES)
@click.argument("table")
@click.option("--version", type=click.IntRange(0), help="An older version; the newest by default.")
@click.option("--timestamp", help="The version at that time (UTC unless it says otherwise).")
@click.option("--files", is_flag=True, help="List the live files instead.")
@click.option("--strict", is_flag=True, help="Fail where a version checksum does not add up.")
@allow_path_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def command(
    table: str,
    version: int | None,
    timestamp: str | None,
    files: bool,
    strict: bool,
    allowed_paths: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show a table's version, protocol, schema, properties and files, from its log alone."""
    if version is not None and timestamp is not None:
        raise UsageError(
            "--version and --timestamp both say which version.", hint="Give one of them."
        )
    reader = LogReader.at(
        table,
        on_mismatch=None if strict else warn,
        allowed=allowed_places(allowed_paths),
    )
    asyncio.run(_inspect(reader, table, version, timestamp, files, as_json))


async def _inspect(
    reader: LogReader,
    table: str,
    version: int | None,
    timestamp: str | None,
    files: bool,
    as_json: bool,
) -> None:
    if timestamp is not None:
        version = await _version_at(reader, timestamp)
    snapshot, _ = await reader.open_listed(version)
    try:
        snapshot.state.check_rows()
    except UnsupportedFeatureError as error:
        # The log can be shown although the rows cannot be served.
        warn(error)
    if files:
        await _print_files(reader, snapshot, as_json)
    else:
        description = await describe(reader, snapshot, table)
        print_object(description if as_json else _for_people(description), as_json=as_json)


async def _version_at(reader: LogReader, timestamp: str) -> int:
    point = parse_point(timestamp)
    if isinstance(point, int):
        return point
    return await (await TimeAxis.of(reader)).last_until(to_ms(point))


async def describe(reader: LogReader, snapshot: Snapshot, table: str) -> dict[str, object]:
    """Return the fields of `inspect --json`.

    Raises:
        CorruptLogError: The schema is none.
        UnsupportedFeatureError: It is nested too deep.
    """
    state, metadata = snapshot.state, snapshot.state.metadata
    parse_schema(metadata.schema_text)
    return {
        "table_id": metadata.id,
        "name": metadata.name,
        "path": table,
        "version": snapshot.version,
        "timestamp_ms": await _timestamp_ms(reader, snapshot),
        "num_files": snapshot.num_files,
        "size_bytes": snapshot.size_bytes,
        "num_rows": await count_rows(reader, snapshot),
        "protocol": {
            "min_reader_version": state.protocol.min_reader_version,
            "min_writer_version": state.protocol.min_writer_version,
            "reader_features": state.protocol.reader_features,
            "writer_features": state.protocol.writer_features,
        },
        "partition_columns": metadata.partition_columns,
        "schema": schema_json(metadata.schema_text),
        "properties": metadata.configuration,
        "checkpoint_version": snapshot.checkpoint_version,
        "domain_metadata": {
            name: action.configuration for name, action in snapshot.domain_metadata.items()
        },
        "transactions": {name: action.version for name, action in snapshot.transactions.items()},
        "change_data_feed": state.has_change_data_feed,
    }


def _for_people(description: dict[str, Any]) -> dict[str, object]:
    """Return the same facts as one reads them: times, counts with separators, a line a column."""
    protocol, schema = description["protocol"], description["schema"]
    features = {*(protocol["reader_features"] or ()), *(protocol["writer_features"] or ())}
    versions = f"reader {protocol['min_reader_version']}, writer {protocol['min_writer_version']}"
    time, rows = description["timestamp_ms"], description["num_rows"]
    shown: dict[str, object] = {
        "table": description["path"],
        "id": description["table_id"],
        "version": description["version"],
        "committed": None if time is None else show_ms(time),
        "files": f"{description['num_files']:,}",
        "bytes": f"{description['size_bytes']:,}",
        "rows": "unknown, some files have no statistics" if rows is None else f"{rows:,}",
        "protocol": f"{versions}: {', '.join(sorted(features))}" if features else versions,
        "change data feed": "on" if description["change_data_feed"] else "off",
        "last checkpoint": description["checkpoint_version"],
    }
    if description["partition_columns"]:
        shown["partitioned by"] = ", ".join(description["partition_columns"])
    if description["name"]:
        shown["name"] = description["name"]
    shown |= description["properties"]
    shown |= {f"domain {name}": text for name, text in description["domain_metadata"].items()}
    shown |= {f"writer {name}": number for name, number in description["transactions"].items()}
    for field in schema["fields"]:
        kind = field["type"]
        shown[f"column {field['name']}"] = kind if isinstance(kind, str) else json.dumps(kind)
    return shown


async def _timestamp_ms(reader: LogReader, snapshot: Snapshot) -> int | None:
    window = CommitWindow(reader, ChangeMode.AUTO)
    listing = await window.look_around(snapshot.version)
    if snapshot.version not in listing.commits:
        return None
    found = await window.commit(snapshot.version)
    return None if found is None else await window.time_ms(found, snapshot.state)


async def _print_files(reader: LogReader, snapshot: Snapshot, as_json: bool) -> None:
    stretches: AsyncIterator[list[LiveFile]] = read_live_files(reader, snapshot, with_stats=True)
    if as_json:
        # A table may have millions: they are printed as they are found.
        async for files in stretches:
            print_records(map(_describe_file, files), _FILE_COLUMNS, as_json=True)
        return
    rows = [_describe_file(file) async for files in stretches for file in files]
    print_records(rows, _FILE_COLUMNS, as_json=False)


def _describe_file(file: LiveFile) -> dict[str, object]:
    vector = file.deletion_vector
    return {
        "path": file.path,
        "size_bytes": file.size_bytes,
        "partition_values": dict(file.partition_values),
        "modification_time_ms": file.modification_time_ms,
        "num_rows": file.num_records,
        "deletion_vector": None if vector is None else vector.unique_id,
        "deleted_rows": file.deleted_rows,
    }
