"""`tailerd history`: one line per commit."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

import click

from tailerd.changefeed.commit_filter import CommitFilter
from tailerd.changefeed.points import show_ms
from tailerd.cli.completion import table_locations
from tailerd.cli.inspect import open_inspection
from tailerd.cli.output import print_records
from tailerd.cli.quantities import size_text
from tailerd.cli.record_table import Layout
from tailerd.cli.table_options import CONFIG, NamedTable, of_configured_table
from tailerd.formats.inspection import CommitDescription

_EXAMPLES = """\b
Examples:
  tailerd history /lake/orders
  tailerd history /lake/orders --limit 5 --json
  tailerd history orders --config tailerd.yaml
"""
_LAYOUT = Layout(
    columns=("version", "time", "operation", "files", "size", "changes"),
    optional=("size", "files"),
    cut=("operation",),
)


@click.command("history", epilog=_EXAMPLES)
@of_configured_table
@click.argument("table", shell_complete=table_locations)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help="Maximum number of commits, the newest.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def command(
    table: NamedTable,
    limit: int,
    as_json: bool,
) -> None:
    """Show what each commit did, newest last, and how its row changes are read.

    Times are UTC. A narrow terminal leaves out sizes, then files; --json has all.

    `changes` of a Delta table is cdc (change files), vectors (deletion vectors), rows (the rows it
    removes and adds, compared), files (all rows of files it adds or removes) or none. The history
    of a Kartothek dataset is only in a ledger: name its folder with --ledger FOLDER.

    If pipelines of a configured table skip commits, `skipped` (with --json `skipped_by`) names
    those that skip each commit.
    """
    filters = _configured_filters()

    async def show() -> None:
        inspected = await open_inspection(table, is_strict=True)
        commits = [commit async for commit in inspected.inspection.history(limit)]
        shown = _for_scripts if as_json else _for_people
        rows = [shown(commit, _skipping(filters, commit)) for commit in commits]
        columns = (*_LAYOUT.columns, *(("skipped",) if filters else ()))
        print_records(rows, replace(_LAYOUT, columns=columns), as_json=as_json)

    asyncio.run(show())


def _configured_filters() -> dict[str, CommitFilter]:
    """Return the filters of the configured table's pipelines, by name."""
    context = click.get_current_context()
    config = context.meta.get(CONFIG)
    if config is None:
        return {}
    from tailerd.cli.configured import find_pipelines
    from tailerd.daemon.tables import skipped_commits

    names = find_pipelines(config, context.params["table"])
    found = {name: skipped_commits(config.tables[name]) for name in names}
    return {name: skips for name, skips in found.items() if skips is not None}


def _skipping(filters: Mapping[str, CommitFilter], commit: CommitDescription) -> list[str]:
    """Return the pipelines that skip a commit."""
    facts = commit.operation or "", commit.application_ids, commit.user_metadata
    return [name for name, skips in filters.items() if skips.skips(*facts)]


def _for_scripts(commit: CommitDescription, skipped_by: Sequence[str]) -> Mapping[str, object]:
    fields = asdict(commit)
    return {
        "version": fields.pop("version"),
        "time": show_ms(commit.timestamp_ms),
        **fields,
        "skipped_by": skipped_by,
    }


def _for_people(commit: CommitDescription, skipped_by: Sequence[str]) -> Mapping[str, object]:
    """Return a line's cells: times by the second, added and removed together."""
    return {
        "version": commit.version,
        "time": show_ms(commit.timestamp_ms)[:19].replace("T", " "),
        "operation": commit.operation,
        "files": f"+{commit.files_added} -{commit.files_removed}",
        "size": f"+{_size(commit.bytes_added)} -{_size(commit.bytes_removed)}",
        "changes": commit.changes,
        "skipped": ", ".join(skipped_by),
    }


def _size(count: int | None) -> str:
    return "?" if count is None else size_text(count)
