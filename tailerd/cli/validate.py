"""`tailerd validate`: would this configuration run, and what would it do?"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tailerd.config import Config
    from tailerd.storage.stores import Stores

_NO_ERROR = {"error": None, "error_code": "", "exit_status": 0}
_EXAMPLES = """\b
Examples:
  tailerd validate tailerd.yaml
  tailerd validate tailerd.yaml --json
  helm template helm | tailerd validate --from-manifests -
"""


@click.command("validate", epilog=_EXAMPLES)
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--from-manifests",
    "manifests",
    type=click.File("r", encoding="utf-8"),
    metavar="FILE",
    help="Kubernetes manifests with the configuration in a ConfigMap (- is standard input). Fields"
    " are checked; tables and sinks are not reached, nor is this process's environment looked at.",
)
@click.option("--json", "is_json", is_flag=True, help="One JSON object a table.")
@click.pass_context
def command(
    context: click.Context, file: Path | None, manifests: TextIO | None, is_json: bool
) -> None:
    """Check a configuration, reach every table and sink, and say what would happen.

    Nothing is written or made, but for an empty file that is deleted again, in buckets where a log
    is maintained or that hold the state: rights are found out so. Ends with the status of the first
    thing that would fail.
    """
    from tailerd.cli.configured import read_config
    from tailerd.errors import UsageError

    if manifests is not None and file is None:
        _check_manifests(manifests, is_json)
        return
    if file is None or manifests is not None:
        raise UsageError("Give either a file or --from-manifests, and not both.")
    configured = read_config(file)
    discovery = configured.discovery
    state, reports = asyncio.run(_examine(discovery.config, configured.stores))
    for report in reports:
        report["discovered_by"] = discovery.found.get(str(report["table"]))
    for report in state:
        click.echo(json.dumps(report) if is_json else _state_line(report))
    for report in reports:
        click.echo(json.dumps(report) if is_json else _line(report))
    reports = [*state, *reports]
    for path, reason in discovery.rejected:
        click.echo(f"{path} is left out: {reason}", err=True)
    for report in reports:
        if report["error"] is not None:
            click.echo(f"error[{report['error_code']}]: {report['error']}", err=True)
    context.exit(next((s for r in reports if isinstance(s := r["exit_status"], int) and s), 0))


def _check_manifests(manifests: TextIO, is_json: bool) -> None:
    from tailerd.config.manifests import configs_of_manifests
    from tailerd.errors import ConfigError

    try:
        text = manifests.read()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{manifests.name} is not UTF-8 text.") from error
    for config_map, config in configs_of_manifests(text, manifests.name).items():
        for name, table in config.tables.items():
            line = f"{name}: {table.path}; engine {config.engine_of(name)}, sink {table.sink.kind}"
            report = {**_blank_report(config, name), "config_map": config_map}
            click.echo(json.dumps(report) if is_json else f"{line}; not looked at")
        for name, group in config.discover.items():
            line = f"discover.{name}: {group.path}; not looked at"
            click.echo(json.dumps({"discover": name, "path": group.path}) if is_json else line)


async def _examine(
    config: Config, stores: Stores
) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Return what there is to say of the state (nothing of a folder) and of each table."""
    tables = [await _examine_table(config, name, stores) for name in config.tables]
    return [report async for report in _examine_state(config.state, stores)], tables


async def _examine_state(place: str, stores: Stores) -> AsyncIterator[dict[str, object]]:
    from tailerd.errors import TailerdError
    from tailerd.registry import is_remote

    if not is_remote(place):
        return
    report: dict[str, object] = {"state": place, "missing_rights": [], **_NO_ERROR}
    try:
        await _check_rights(stores, place, "lease", report, is_written=True)
    except TailerdError as error:
        report.update(error=str(error), error_code=error.code, exit_status=error.exit_status)
    yield report


async def _examine_table(config: Config, name: str, stores: Stores) -> dict[str, object]:
    from tailerd.assembly import lacks_demo_table
    from tailerd.errors import TailerdError
    from tailerd.formats.detect import commit_folder, presumed_format
    from tailerd.registry import is_remote

    table = config.tables[name]
    report = _blank_report(config, name)
    if lacks_demo_table(table):
        report["makes_demo_table"] = True
        return report
    try:
        if is_remote(table.path):
            is_written = table.maintenance is not None
            folder = presumed_format(table.path, table.format).names.folder
            await _check_rights(stores, table.path, folder, report, is_written=is_written)
        if table.maintenance is not None:
            report.update(await _examine_log(config, name, stores))
            if table.maintenance.cleanup.enabled:
                folder = commit_folder(table.path, table.format)
                await _check_sweep(stores, folder, table.path, report)
        if table.has_sink:
            report.update(await _examine_pipeline(config, name, stores))
    except TailerdError as error:
        report.update(error=str(error), error_code=error.code, exit_status=error.exit_status)
    return report


async def _check_rights(
    stores: Stores, place: str, folder: str, report: dict[str, object], *, is_written: bool
) -> None:
    """Note which rights are missing in a bucket.

    Args:
        place, folder: What is used, and where below it files are listed and read.

    Raises:
        AccessDeniedError, ConditionalPutUnsupportedError: One is; the message names all.
    """
    from tailerd.storage.rights import missing_rights

    store, root = stores.locate(place)
    missing = await missing_rights(store, root, f"{root}/{folder}", is_written=is_written)
    report["missing_rights"] = list(missing)
    for first in missing.values():
        raise first.restated(f"Missing for {place}: {', '.join(missing)}. {first.message}")


async def _check_sweep(stores: Stores, folder: str, place: str, report: dict[str, object]) -> None:
    """Note what a cleanup could do more with; it does not fail for it."""
    from tailerd.storage.rights import missing_for_sweep

    store, _ = stores.locate(place)
    report["missing_rights"] = list(await missing_for_sweep(store, folder))


def _blank_report(config: Config, name: str) -> dict[str, object]:
    table = config.tables[name]
    return {
        "table": name,
        "path": table.path,
        "engine": config.engine_of(name),
        "sink": table.sink.kind,
        "from": table.start if table.has_sink else None,
        "head_version": None,
        "resumes_at_version": None,
        "starts_at_version": None,
        "makes_demo_table": False,
        "maintenance_due": None,
        "maintenance_refused": None,
        "missing_rights": [],
        **_NO_ERROR,
    }


async def _examine_pipeline(config: Config, name: str, stores: Stores) -> dict[str, object]:
    from tailerd.assembly import check_pipeline, ledger_of, open_source, saved_offset
    from tailerd.changefeed.limits import ReadLimit
    from tailerd.sinks.opening import open_sink
    from tailerd.telemetry import Telemetry

    table = config.tables[name]
    source = await open_source(
        table,
        Telemetry(),
        stores=stores,
        memory_bytes=config.memory,
        ledger=ledger_of(config, name, is_read_only=True),
    )
    latest = await source.initial_offset("latest")
    found: dict[str, object] = {"head_version": source.version_before(latest.version)}
    saved = await saved_offset(config, name)
    if saved is not None:
        await source.latest_offset(saved, ReadLimit(max_files=1))
        found["resumes_at_version"] = saved.version
    else:
        found["starts_at_version"] = (await source.initial_offset(table.start)).version
    sink = open_sink(name, table.sink)
    if sink is not None:
        await sink.healthcheck()
    await check_pipeline(config, name)
    return found


async def _examine_log(config: Config, name: str, stores: Stores) -> dict[str, object]:
    """Look at what maintenance of a table would do; that it may not is fatal to it alone."""
    from tailerd.cli.maintain import maintenance_of
    from tailerd.errors import TableError

    try:
        _, work = await maintenance_of(config, name, stores).open()
        survey = await work.survey()
    except TableError as error:
        if not config.tables[name].has_sink:
            raise
        return {"maintenance_refused": str(error)}
    due = [each.job for each in survey.decisions if each.is_due]
    return {"maintenance_due": due, "head_version": survey.version}


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
    kept = _kept(report)
    if report["from"] is None:
        return f"{name}{report['path']} is at version {report['head_version']}; no sink{kept}"
    if report["resumes_at_version"] is not None:
        begins = f"goes on at version {report['resumes_at_version']} (saved offset)"
    elif report["from"] == "snapshot":
        begins = f"begins with the snapshot of version {report['starts_at_version']}"
    else:
        begins = f"begins at version {report['starts_at_version']} (from: {report['from']})"
    return (
        f"{name}{report['path']} is at version {report['head_version']}; {begins};"
        f" engine {report['engine']}, sink {report['sink']}{kept}"
    )


def _kept(report: dict[str, object]) -> str:
    if report["maintenance_refused"] is not None:
        return f"; its log would be left alone: {report['maintenance_refused']}"
    due = report["maintenance_due"]
    if not isinstance(due, list):
        return ""
    missing = report["missing_rights"]
    text = f"; maintenance due now: {', '.join(due) or 'none'}"
    if isinstance(missing, list) and missing:
        return f"{text}. Missing, of use to a cleanup: {', '.join(missing)}"
    return text
