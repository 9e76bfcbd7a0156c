"""`tailerd verify`: checks that the delivered records, replayed, equal the table."""

from __future__ import annotations

import asyncio
import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tailerd.cli.completion import table_names
from tailerd.cli.paragraphs import say
from tailerd.cli.progress import Progress
from tailerd.cli.table_options import config_option

if TYPE_CHECKING:
    from tailerd.config import Config
    from tailerd.pipeline.verification import Verdict
    from tailerd.storage.stores import Stores

_EXAMPLES = """\b
Examples:
  tailerd verify orders --config tailerd.yaml
  tailerd verify orders --config tailerd.yaml --json
  tailerd verify orders --allow-skipped
"""
_MAX_CHARS = 200


@click.command("verify", epilog=_EXAMPLES)
@click.argument("name", shell_complete=table_names)
@config_option("The configuration of the daemon")
@click.option(
    "--allow-skipped",
    is_flag=True,
    help="End with 0 too if nothing can be compared, because `commits` skips some.",
)
@click.option("--json", "is_json", is_flag=True, help="The verdict as one JSON object.")
@click.pass_context
def command(
    context: click.Context, name: str, config_path: Path, allow_skipped: bool, is_json: bool
) -> None:
    """Replay the rows that the pipeline NAME delivered and compare them with its table.

    Reads the sink (a Kafka topic from its beginning, the files of a folder, a PostgreSQL table) up
    to the saved offset: inserts add a row, deletes take it away. The remaining rows must be the
    table's snapshot of that version. After a gap or a reset, only later rows are replayed. Ends
    with 0 if both are the same, with 1 if not. Does not disturb a running daemon. It cannot succeed
    if the first records no longer exist (retention, compaction), if a reset repeated rows in a
    topic, or if a column was renamed since. If `commits` skipped commits with row changes, the sink
    cannot equal the table: nothing is compared.
    """
    from tailerd.arrow_start import start_arrow
    from tailerd.cli.configured import check_name, find_pipelines, read_config

    start_arrow()
    configured = read_config(config_path)
    config = configured.config
    named = find_pipelines(config, name)
    is_verified = True
    for pipeline in [each for each in named if config.tables[each].has_sink] or named:
        check_name(config, pipeline)
        verdict = asyncio.run(_verify(config, pipeline, configured.stores))
        if is_json:
            click.echo(json.dumps({"table": pipeline, **asdict(verdict)}))
        else:
            say("\n".join(_lines(pipeline, verdict, config_path)))
        is_verified &= verdict.is_equal or (allow_skipped and verdict.is_equal is None)
    context.exit(0 if is_verified else 1)


async def _verify(config: Config, name: str, stores: Stores) -> Verdict:
    from tailerd.changefeed.saved_offset import Beginning
    from tailerd.daemon.offsets import held_offset
    from tailerd.daemon.tables import locate_ledger, open_source
    from tailerd.errors import OffsetError, UsageError
    from tailerd.formats.base import SupportsWidenedFloats
    from tailerd.pipeline.verification import Verification
    from tailerd.sinks.base import Readable
    from tailerd.sinks.opening import open_sink
    from tailerd.telemetry import Telemetry

    table = config.tables[name]
    sink = open_sink(name, table.sink, stores=stores)
    if sink is None or not isinstance(sink, Readable):
        raise UsageError(
            f"The sink {table.sink.kind} of {name} cannot be read back.",
            remedy="Verify pipelines whose sink is `kafka`, `file` or `postgres`.",
        )
    try:
        held = await held_offset(config, name)
        if held is None:
            raise OffsetError(f"{name} has not delivered anything yet.", remedy="Run it first.")
        ledger = locate_ledger(config, name, is_read_only=True)
        source = await open_source(
            table, Telemetry(), stores=stores, memory_bytes=config.memory, ledger=ledger
        )
        with Progress(f"Comparing {name}", "rows") as progress:
            verification = Verification(
                source,
                sink,
                held.offset,
                held.beginning or Beginning(offset=held.offset),
                on_progress=progress.report,
                widened=await source.widened_floats()
                if isinstance(source, SupportsWidenedFloats)
                else frozenset(),
            )
            return await verification.run()
    finally:
        await sink.aclose()


def _lines(name: str, verdict: Verdict, config_path: Path) -> list[str]:
    base = "" if verdict.base is None else f" on top of version {verdict.base}"
    if verdict.is_equal:
        return [
            f"equal: {verdict.records:,} delivered change rows of {name}{base} replay to exactly"
            f" the {verdict.rows:,} rows of version {verdict.version}."
        ]
    if verdict.skipped_commits:
        count = f"{verdict.skipped_commits:,} commit{'s' * (verdict.skipped_commits > 1)}"
        return [
            f"not comparable: {count} skipped. Their rows are in version {verdict.version} of the"
            f" table and not in the sink: `tailerd history {shlex.quote(name)} --config"
            f" {shlex.quote(str(config_path))}` names them."
        ]
    if verdict.is_equal is None:
        return [
            f"not comparable: the log no longer has all commits up to version {verdict.version}, so"
            " it is unknown how many `commits` skipped, and the rows differ."
        ]
    lines = [
        f"different: {verdict.records:,} delivered change rows of {name}{base} replay to"
        f" {verdict.replayed:,} rows, and version {verdict.version} has {verdict.rows:,}."
    ]
    lines += [f"  only in the table:     {_short(row)}" for row in verdict.missing]
    lines += [f"  only in the sink:      {_short(row)}" for row in verdict.invented]
    if verdict.foreign:
        lines.append(f"  columns the table no longer has: {', '.join(verdict.foreign)}")
    lines.append(
        "  Rows are there twice after a crash with at-least-once, or after a reset; rows are"
        " missing where retention or compaction removed the first records."
    )
    return lines


def _short(row: str) -> str:
    return row if len(row) <= _MAX_CHARS else f"{row[:_MAX_CHARS]}…"
