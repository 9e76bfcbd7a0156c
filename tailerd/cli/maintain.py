"""`tailerd maintain`: what a table's log needs, and why; `--apply` does it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tailerd.config import Config
    from tailerd.maintenance.jobs import JobResult, Survey, TableMaintenance
    from tailerd.maintenance.policies.base import Decision

_EXAMPLES = """\b
Examples:
  tailerd maintain /lake/orders
  tailerd maintain /lake/orders --apply
  tailerd maintain orders --config tailerd.yaml --apply --json
"""
_ROUNDS = 3
"""One job makes another due, as a checkpoint does a cleanup; never twice the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One job: what was decided, and what became of it."""

    table: str
    version: int
    decision: Decision
    result: JobResult | None = None


@click.command("maintain", epilog=_EXAMPLES)
@click.argument("table")
@click.option(
    "--apply/--dry-run",
    "is_applying",
    default=False,
    help="Do what is due, or only tell (the default).",
)
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    help="TABLE is a name in this configuration, and its `maintenance` counts.",
)
@click.option("--json", "is_json", is_flag=True, help="One JSON object a job.")
def command(table: str, is_applying: bool, config_path: Path | None, is_json: bool) -> None:
    """Tell which maintenance the log of TABLE needs, why, what it would cost and save.

    Without a configuration, checkpoints alone are looked at: after as many commits as the table's
    delta.checkpointInterval says (or 10), or 64 MiB of them. Nothing is written without --apply,
    data files and commits never. A table that must be left alone (a writer feature that this
    release does not know, a catalog's table) ends with 3 and the reason; its changes can be read
    all the same. Costs and savings are estimates for a local disk.
    """
    lines = asyncio.run(_maintain(table, config_path, is_applying=is_applying))
    if is_json:
        for line in lines:
            click.echo(json.dumps(_as_json(line)))
        return
    for text in _texts(lines, is_applying=is_applying):
        click.echo(text)


async def _maintain(table: str, config_path: Path | None, *, is_applying: bool) -> list[_Line]:
    from tailerd.clock import SystemClock
    from tailerd.maintenance.lease import Lease

    work = await _work_of(table, config_path)
    survey = await work.survey()
    if not is_applying or not any(decision.is_due for decision in survey.decisions):
        return _lines(table, survey, {})
    lease = Lease(work.reader.store, work.reader.root, clock=SystemClock())
    async with lease.held():
        return await _apply(table, work, survey)


async def _apply(table: str, work: TableMaintenance, survey: Survey) -> list[_Line]:
    done: dict[str, _Line] = {}
    for _ in range(_ROUNDS):
        due = [each for each in survey.decisions if each.is_due and each.job not in done]
        if not due:
            break
        for decision in due:
            with _progress(f"{decision.job} of {table}"):
                result = await work.apply(survey, decision)
            done[decision.job] = _Line(
                table=table, version=survey.stats.version, decision=decision, result=result
            )
        survey = await work.survey()
    return _lines(table, survey, done)


def _lines(table: str, survey: Survey, done: dict[str, _Line]) -> list[_Line]:
    return [
        done.get(decision.job)
        or _Line(table=table, version=survey.stats.version, decision=decision)
        for decision in survey.decisions
    ]


async def _work_of(table: str, config_path: Path | None) -> TableMaintenance:
    from tailerd.cli.configured import read_config
    from tailerd.cli.offsets import check_name
    from tailerd.delta.log_reader import LogReader
    from tailerd.maintenance.jobs import TableMaintenance
    from tailerd.maintenance.plan import Policies

    if config_path is not None:
        config = read_config(config_path).config
        check_name(config, table)
        return await maintenance_of(config, table)
    return TableMaintenance(LogReader.at(table, on_mismatch=lambda _: None), Policies())


async def maintenance_of(config: Config, name: str) -> TableMaintenance:
    """Return the maintenance of a configured table; what is saved of pipelines bounds a cleanup.

    Raises:
        OffsetError: A saved offset cannot be read.
    """
    from tailerd.delta.log_reader import LogReader
    from tailerd.maintenance.jobs import TableMaintenance
    from tailerd.maintenance.plan import Policies
    from tailerd.maintenance.settings import policies_of

    table = config.tables[name]
    policies = Policies() if table.maintenance is None else policies_of(table.maintenance)
    wanted, unknown = None, ""
    if policies.cleanup.is_enabled:
        wanted, unknown = await _wanted_by_pipelines(config, name)
    return TableMaintenance(
        LogReader.at(table.path, on_mismatch=lambda _: None),
        policies,
        needed_from=lambda: wanted,
        cleanup_obstacle=lambda: unknown,
    )


async def _wanted_by_pipelines(config: Config, name: str) -> tuple[int | None, str]:
    """Return the oldest version that pipelines of this log need, and why that is not known."""
    from tailerd.assembly import log_folder, saved_offset

    folder = log_folder(config.tables[name])
    versions = []
    for other, table in config.tables.items():
        if table.has_sink and log_folder(table) == folder:
            offset = await saved_offset(config, other)
            if offset is None:
                return None, f"{other} has not delivered anything yet."
            versions.append(max(0, offset.version - 1))
    return min(versions, default=None), ""


@contextmanager
def _progress(what: str) -> Iterator[None]:
    """Show on a terminal's standard error what is being done; nothing on a pipe."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(f"Doing the {what}"):
        yield


def _texts(lines: list[_Line], *, is_applying: bool) -> Iterator[str]:
    yield f"{lines[0].table} is at version {lines[0].version}."
    for line in lines:
        decision = line.decision
        if line.result is not None:
            yield f"{decision.job}: done. {line.result.summary} It was due: {decision.reason}"
            continue
        yield f"{decision.job}: {'due' if decision.is_due else 'not due'}. {decision.reason}"
        if decision.is_due:
            yield f"  costs: {decision.cost}"
            yield f"  saves: {decision.saves}"
    if not is_applying and any(line.decision.is_due for line in lines):
        yield "Nothing was done. Run it again with --apply."


def _as_json(line: _Line) -> dict[str, object]:
    decision = asdict(line.decision)
    return {
        "table": line.table,
        "version": line.version,
        **decision,
        "result": None if line.result is None else asdict(line.result),
    }
