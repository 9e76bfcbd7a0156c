"""`tailerd doctor`: checks everything that `run` needs, with a remedy for each problem."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tailerd.cli.change_table import printable
from tailerd.cli.progress import Progress
from tailerd.cli.table_options import config_option, file_argument

if TYPE_CHECKING:
    from tailerd.checks.finding import Finding
    from tailerd.cli.configured import Configured

_EXAMPLES = """\b
Examples:
  tailerd doctor
  tailerd doctor tailerd.yaml
  tailerd doctor tailerd.yaml --json
"""
_STYLES = {"ok": "green", "warning": "yellow", "problem": "red", "skipped": "bright_black"}
_OUTCOME_WIDTH = 9


@click.command("doctor", epilog=_EXAMPLES)
@file_argument
@config_option("The configuration", is_required=False)
@click.option(
    "--engine",
    type=click.Choice(["spark", "arrow"]),
    help="Check what `run --engine` with this engine needs.",
)
@click.option("--json", "is_json", is_flag=True, help="One JSON object a check.")
@click.pass_context
def command(
    context: click.Context, config_path: Path | None, engine: str | None, is_json: bool
) -> None:
    """Check this machine, and the tables, sinks, state and listener of the configuration FILE.

    Without FILE it checks ./tailerd.yaml, or only the machine if that file does not exist. It
    writes nothing, with one exception: to check rights, it creates an empty file in buckets that
    hold the state or a maintained log, and deletes it again. It exits with the status of the first
    problem; warnings and skipped checks do not count.
    """
    status = 0
    for finding in _findings(config_path, engine):
        click.echo(json.dumps(asdict(finding)) if is_json else _text(finding))
        status = status or finding.exit_status
    context.exit(status)


def _findings(file: Path | None, engine: str | None) -> Iterator[Finding]:
    from tailerd.checks.finding import Finding
    from tailerd.checks.machine import machine_findings
    from tailerd.cli.configured import read_config
    from tailerd.errors import ConfigError, TailerdError

    configured = None
    if file is not None:
        try:
            configured = read_config(file, engine=engine)
        except ConfigError as error:
            yield Finding.problem("configuration", error)
        except TailerdError as error:
            yield Finding.problem("discover", error)
            configured = read_config(file, engine=engine, is_discovering=False)
        else:
            yield Finding.ok("configuration", _summary(configured, file))
    elif engine is not None:
        raise click.UsageError("--engine needs FILE.")
    config = None if configured is None else configured.config
    yield from machine_findings(config, os.environ)
    if configured is not None:
        yield from _configured_findings(configured)


def _summary(configured: Configured, file: Path) -> str:
    count = len(configured.config.tables)
    found = len(configured.discovery.found)
    text = f"{file}: {count} table{'' if count == 1 else 's'}"
    return f"{text}, {found} of them found by patterns" if found else text


def _configured_findings(configured: Configured) -> Iterator[Finding]:
    from tailerd.checks.daemon_folders import daemon_findings
    from tailerd.checks.finding import Finding, run_check
    from tailerd.checks.machine import disk_finding
    from tailerd.checks.tables import examine
    from tailerd.registry import is_remote

    config = configured.config
    yield from daemon_findings(config)
    for path, reason in configured.discovery.rejected:
        yield Finding.warning("discover", f"{path} is left out: {reason}", "Rename or exclude it.")
    with Progress("Checking tables and sinks"):
        state, tables = asyncio.run(examine(config, configured.stores))
    for report in state:
        yield from _list_findings(f"state {report['state']}", report, "can be read and written")
    for report in tables:
        name = str(report["table"])
        yield from _list_findings(f"table {name}", report, _prospect(report))
        sink = config.tables[name].sink
        if sink.kind == "file" and not is_remote(sink.location()):
            check, folder = f"disk {name}", Path(sink.location())
            yield from run_check(check, partial(disk_finding, check, folder))


def _list_findings(check: str, report: dict[str, object], message: str) -> Iterator[Finding]:
    from tailerd.checks.finding import Finding, Outcome

    errors = report.get("errors")
    if not isinstance(errors, list):
        errors = [report] if report["error"] else []
    for error in errors:
        yield Finding(
            check=check,
            outcome=Outcome.PROBLEM,
            message=str(error["message"]),
            remedy=str(error["remedy"]),
            code=str(error["error_code"]),
            exit_status=int(str(error["exit_status"])),
        )
    if not errors:
        yield Finding.ok(check, message)


def _prospect(report: dict[str, object]) -> str:
    """Return what `run` would do with a table, in a few words."""
    if report["makes_demo_table"]:
        return f"{report['path']} would be made; sink {report['sink']} can be used"
    text = f"{report['path']} is at version {report['head_version']}"
    if report["from"] is None:
        return f"{text}; its log is maintained only"
    begin = report["resumes_at_version"]
    verb = "resumes" if begin is not None else "begins"
    begin = report["starts_at_version"] if begin is None else begin
    return f"{text}; {verb} at version {begin}; sink {report['sink']} can be used"


def _text(finding: Finding) -> str:
    outcome = finding.outcome.value
    margin = " " * (_OUTCOME_WIDTH + 1)
    width = max(60, min(shutil.get_terminal_size((100, 24)).columns, 100))
    head = click.style(f"{outcome:<{_OUTCOME_WIDTH}}", fg=_STYLES[outcome])
    body = f"{finding.check}: {finding.message}"
    if finding.code:
        body = f"{finding.check} [{finding.code}]: {finding.message}"
    lines = textwrap.wrap(printable(body), width - len(margin), break_on_hyphens=False)
    if finding.remedy:
        remedy = f"Remedy: {finding.remedy}"
        lines += textwrap.wrap(
            printable(remedy), width - len(margin), break_on_hyphens=False, subsequent_indent="  "
        )
    return f"{head} " + f"\n{margin}".join(lines)
