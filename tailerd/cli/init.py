"""`tailerd init`: a configuration for the tables of a folder or bucket."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tailerd.cli.completion import table_locations
from tailerd.errors import UsageError

if TYPE_CHECKING:
    from tailerd.config.starter import StarterSink, StarterTable
    from tailerd.formats.found_tables import FoundTable
    from tailerd.storage.stores import Stores

SINKS = ("file", "kafka", "postgres", "http", "console")
_EXAMPLES = """\b
Examples:
  tailerd init /lake
  tailerd init /lake --sink file > tailerd.yaml
  tailerd init /lake --sink file --folder s3://lake/changes
  tailerd init /lake --sink http --url https://example.org/hook --key order_id
  tailerd init s3://lake/sales --sink kafka --bootstrap-servers kafka:9092 --key order_id
  tailerd init /lake --sink postgres --dsn postgresql://tailerd@db/lake --key order_id
"""


@click.command("init", epilog=_EXAMPLES)
@click.argument("location", metavar="LOCATION", shell_complete=table_locations)
@click.option(
    "--sink", type=click.Choice(SINKS), help="Where changes go; a prompt asks if omitted."
)
@click.option(
    "--folder",
    default="./changes",
    show_default=True,
    help="Folder or URL of the file sink, with a folder for each table in it.",
)
@click.option(
    "--bootstrap-servers",
    default="127.0.0.1:9092",
    show_default=True,
    metavar="HOST:PORT,...",
    help="Brokers of the Kafka sink.",
)
@click.option(
    "--topic",
    default="{table}.changes",
    show_default=True,
    help="Topic of the Kafka sink; {table} is the table's name.",
)
@click.option(
    "--url",
    default="http://127.0.0.1:8088/hook",
    show_default=True,
    help="Endpoint of the HTTP sink.",
)
@click.option(
    "--dsn",
    default="postgresql://tailerd@127.0.0.1:5432/lake",
    show_default=True,
    metavar="URL",
    help="Database of the PostgreSQL sink, without a password.",
)
@click.option(
    "--key",
    metavar="A,B",
    help="Columns that identify a row, for the sinks kafka, postgres and http.",
)
@click.option(
    "--engine",
    type=click.Choice(["arrow", "spark"]),
    default="arrow",
    show_default=True,
    help="Engine of the pipelines.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write FILE instead of standard output; an existing file is never overwritten.",
)
def command(
    location: str,
    sink: str | None,
    folder: str,
    bootstrap_servers: str,
    topic: str,
    url: str,
    dsn: str,
    key: str | None,
    engine: str,
    output: Path | None,
) -> None:
    """Find the tables in LOCATION and print a commented configuration that delivers their changes.

    LOCATION is a table, or a folder or prefix of a bucket with tables up to three levels below it.
    """
    from tailerd.config.starter import StarterSink

    target = StarterSink(
        kind=sink or _asked_sink(),
        folder=folder,
        bootstrap_servers=_names("--bootstrap-servers", bootstrap_servers),
        topic=topic,
        url=url,
        dsn=dsn,
        key=() if key is None else _names("--key", key),
    )
    text = asyncio.run(_configuration(location, target, engine))
    if output is None:
        click.echo(text, nl=False)
        return
    _write_new(output, text)
    click.echo(f"Wrote {output}. Check it: tailerd doctor {output}", err=True)


def _asked_sink() -> str:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            "No sink was chosen, and there is no terminal to ask.",
            remedy=f"Give --sink {' or --sink '.join(SINKS)}.",
        )
    answer = click.prompt(
        "Where should changes go", type=click.Choice(SINKS), default="file", err=True
    )
    return str(answer)


def _names(option: str, text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise UsageError(f"{option} {text!r} has an empty entry.", remedy="Write a,b.")
    return names


def _write_new(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise UsageError(
            f"{path} exists already and is not overwritten.",
            remedy="Give another file, or remove it first.",
        ) from error
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error


async def _configuration(location: str, sink: StarterSink, engine: str) -> str:
    from tailerd.config.starter import starter
    from tailerd.errors import NotATableError
    from tailerd.formats.found_tables import DEPTH, MAX_FOLDERS, find_tables
    from tailerd.storage.stores import Stores

    stores = Stores()
    found = await find_tables(location, stores)
    if not found.is_complete:
        click.echo(
            f"warning: only the first {MAX_FOLDERS:,} folders were searched; give a deeper"
            " LOCATION, or use `discover` in the configuration.",
            err=True,
        )
    if not found.tables:
        raise NotATableError(
            f"No table was found in {location} and {DEPTH} levels below it.",
            remedy="Give the folder of a table (the one that holds _delta_log), or one above it.",
        )
    tables = [await _describe_table(each, stores) for each in found.tables]
    return starter(tables, sink, engine=engine, location=location)


async def _describe_table(found: FoundTable, stores: Stores) -> StarterTable:
    """Return the configuration of a table, also of one that cannot be read."""
    from tailerd.cli.output import warn
    from tailerd.config.starter import StarterTable
    from tailerd.errors import TailerdError
    from tailerd.formats.detect import table_format
    from tailerd.formats.part_request import PartRequest
    from tailerd.storage.table_location import locate_table

    its_format = table_format(found.format)
    section = its_format.maintenance_config
    about = StarterTable(
        name=found.name,
        path=_spell_location(found.location),
        format=found.format,
        columns=(),
        has_checkpoints=section is not None and "checkpoint" in section.model_fields,
    )
    if its_format.inspector is None:
        return about
    try:
        location = locate_table(found.location, stores=stores)
        description = await its_format.inspector(PartRequest(location=location)).describe()
    except TailerdError as error:
        warn(error)
        return about
    return replace(
        about,
        columns=[name for name, _ in description.columns],
        rows=description.num_rows,
        version=description.version,
    )


def _spell_location(location: str) -> str:
    return location if "://" in location else os.fspath(Path(location))
