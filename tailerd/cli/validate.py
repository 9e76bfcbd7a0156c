"""`tailerd validate`: checks whether a configuration would run, and shows its effect."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TextIO

import click

from tailerd.cli.paragraphs import say, say_error
from tailerd.cli.table_options import DEFAULT_FILE, config_option, file_argument

_EXAMPLES = """\b
Examples:
  tailerd validate
  tailerd validate tailerd.yaml
  tailerd validate tailerd.yaml --json
  helm template helm | tailerd validate --from-manifests -
"""


@click.command("validate", epilog=_EXAMPLES)
@file_argument
@config_option("The configuration")
@click.option(
    "--from-manifests",
    "manifests",
    type=click.File("r", encoding="utf-8"),
    metavar="FILE",
    help="Kubernetes manifests with the configuration in a ConfigMap (- is standard input). Fields"
    " are checked; tables, sinks and the environment are not checked.",
)
@click.option("--json", "is_json", is_flag=True, help="One JSON object a table.")
@click.pass_context
def command(
    context: click.Context, config_path: Path, manifests: TextIO | None, is_json: bool
) -> None:
    """Check the configuration FILE, and connect to every table and sink.

    It writes nothing, with one exception: to check rights, it creates an empty file in buckets that
    hold the state or a maintained log, and deletes it again. It exits with the status of the first
    failure.
    """
    from tailerd.checks.daemon_folders import daemon_findings
    from tailerd.checks.finding import Outcome
    from tailerd.checks.tables import examine
    from tailerd.cli.configured import read_config
    from tailerd.cli.progress import Progress
    from tailerd.errors import UsageError

    if manifests is not None:
        if config_path != DEFAULT_FILE:
            raise UsageError("Give either a file or --from-manifests, and not both.")
        _check_manifests(manifests, is_json)
        return
    configured = read_config(config_path)
    discovery = configured.discovery
    with Progress("Checking tables and sinks"):
        state, reports = asyncio.run(examine(discovery.config, configured.stores))
    for report in reports:
        report["discovered_by"] = discovery.found.get(str(report["table"]))
    for report in state:
        say(json.dumps(report) if is_json else _state_line(report), is_json=is_json)
    for report in reports:
        say(json.dumps(report) if is_json else _line(report), is_json=is_json)
    problems = [f for f in daemon_findings(discovery.config) if f.outcome is Outcome.PROBLEM]
    for finding in problems:
        say_error(finding.code, finding.message, finding.remedy)
    reports = [*state, *reports]
    for path, reason in discovery.rejected:
        say(f"{path} is left out: {reason}", err=True)
    for report in reports:
        for error in _list_errors(report):
            say_error(str(error["error_code"]), str(error["message"]), str(error["remedy"]))
    statuses = [*(each.exit_status for each in problems), *(r["exit_status"] for r in reports)]
    context.exit(next((s for s in statuses if isinstance(s, int) and s), 0))


def _list_errors(report: dict[str, object]) -> list[dict[str, object]]:
    errors = report.get("errors")
    if isinstance(errors, list):
        return errors
    return [] if report["error"] is None else [report]


def _check_manifests(manifests: TextIO, is_json: bool) -> None:
    from tailerd.checks.tables import blank_report
    from tailerd.config.manifests import read_manifests
    from tailerd.errors import ConfigError

    try:
        text = manifests.read()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{manifests.name} is not UTF-8 text.") from error
    for config_map, config in read_manifests(text, manifests.name).items():
        for name, table in config.tables.items():
            # The machine that runs the pod chooses for `auto`.
            engine = table.engine or config.engine
            line = f"{name}: {table.path}; engine {engine}, sink {table.sink.kind}"
            report = {**blank_report(config, name), "engine": engine, "config_map": config_map}
            say(json.dumps(report) if is_json else f"{line}; not checked", is_json=is_json)
        for name, group in config.discover.items():
            line = f"discover.{name}: {group.path}; not checked"
            say(
                json.dumps({"discover": name, "path": group.path}) if is_json else line,
                is_json=is_json,
            )


def _state_line(report: dict[str, object]) -> str:
    failed = f"would fail ({report['error_code']})"
    return f"state {report['state']}: {failed if report['error'] else 'can be used'}"


def _line(report: dict[str, object]) -> str:
    found = f" (found by discover.{report['discovered_by']})" if report["discovered_by"] else ""
    name = f"{report['table']}{found}: "
    if report["error"] is not None:
        return f"{name}would fail ({report['error_code']})"
    if report["makes_demo_table"]:
        return f"{name}a demo table would be made at {report['path']}"
    kept = _describe_state(report)
    if report["from"] is None:
        return f"{name}{report['path']} is at version {report['head_version']}; no sink{kept}"
    if report["resumes_at_version"] is not None:
        begins = f"resumes at version {report['resumes_at_version']} (saved offset)"
    elif report["from"] == "snapshot":
        begins = f"begins with the snapshot of version {report['starts_at_version']}"
    else:
        begins = f"begins at version {report['starts_at_version']} (from: {report['from']})"
    return (
        f"{name}{report['path']} is at version {report['head_version']}; {begins};"
        f" engine {report['engine']}, sink {report['sink']}{kept}"
    )


def _describe_state(report: dict[str, object]) -> str:
    if report["maintenance_refused"] is not None:
        return f"; maintenance would be skipped: {report['maintenance_refused']}"
    due = report["maintenance_due"]
    if not isinstance(due, list):
        return ""
    missing = report["missing_rights"]
    text = f"; maintenance due now: {', '.join(due) or 'none'}"
    if isinstance(missing, list) and missing:
        return f"{text}. Missing, of use to a cleanup: {', '.join(missing)}"
    return text
