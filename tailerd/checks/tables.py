"""Checks of every table and sink of a configuration: what `run` would do with each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable

from tailerd.changefeed.limits import ReadLimit
from tailerd.checks.finding import as_tailerd_error
from tailerd.checks.maintained import configure_maintenance
from tailerd.config import Config
from tailerd.config.sections import section_of, where_of
from tailerd.daemon.offsets import check_pipeline, saved_offset
from tailerd.daemon.tables import lacks_demo_table, locate_ledger, log_folder, open_source
from tailerd.errors import ConfigError, TableError, TailerdError
from tailerd.formats.base import ChangeSource
from tailerd.formats.detect import presumed_format
from tailerd.registry import is_remote, suggest_name
from tailerd.sinks.opening import open_sink
from tailerd.storage.rights import missing_for_sweep, missing_rights
from tailerd.storage.stores import Stores
from tailerd.storage.table_location import locate_table
from tailerd.telemetry import Telemetry
from tailerd.transforms.options import VIEW_OPTIONS

_AT_ONCE = 8
NO_ERROR: dict[str, object] = {
    "error": None,
    "message": "",
    "error_code": "",
    "remedy": "",
    "exit_status": 0,
}


async def examine(
    config: Config, stores: Stores
) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Return the reports about the state (none for a folder) and about each table.

    Nothing is written, except an empty file that is deleted again in buckets.
    """
    running = asyncio.Semaphore(_AT_ONCE)

    async def one(name: str) -> dict[str, object]:
        # A broker that does not answer costs seconds, and many tables may use it.
        async with running:
            return await _examine_table(config, name, stores)

    tables = await asyncio.gather(*map(one, config.tables))
    return [report async for report in _examine_state(config.state, stores)], tables


async def _examine_state(location: str, stores: Stores) -> AsyncIterator[dict[str, object]]:
    if not is_remote(location):
        return
    report: dict[str, object] = {"state": location, "missing_rights": [], **NO_ERROR}
    errors: list[TailerdError] = []
    await _collect_errors(_check_rights(stores, location, "lease", report, is_written=True), errors)
    for error in errors:
        report.update(_describe_failure(error))
    yield report


async def _examine_table(config: Config, name: str, stores: Stores) -> dict[str, object]:
    """Return the report of a table; its sink is checked even if the table has errors."""
    report = blank_report(config, name)
    errors: list[TailerdError] = []
    await _collect_errors(_examine_one(config, name, stores, report), errors)
    if config.tables[name].has_sink:
        await _collect_errors(_examine_sink(config, name, stores), errors)
    reader = config.reader(name)
    errors = [_locate_error(config, name, error) for error in errors]
    report["errors"] = [_describe_failure(error.address(reader)) for error in errors]
    if errors:
        report.update(_describe_failure(errors[0]))
    return report


async def _collect_errors(check: Awaitable[None], errors: list[TailerdError]) -> None:
    try:
        await check
    except Exception as error:  # noqa: BLE001 - the other checks still run
        errors.append(as_tailerd_error(error))


def _locate_error(config: Config, name: str, error: TailerdError) -> TailerdError:
    """Return the error; one about a field of what is delivered names its place in the file."""
    if error.where not in VIEW_OPTIONS:
        return error
    place = config.format_position((*section_of(name), error.where))
    return error.restate(f"{place}: {where_of(name)}.{error.where}: {error.message}")


def _describe_failure(error: TailerdError) -> dict[str, object]:
    return {
        "error": str(error),
        "message": error.message,
        "error_code": error.code,
        "remedy": error.remedy,
        "exit_status": error.exit_status,
    }


async def _examine_one(
    config: Config, name: str, stores: Stores, report: dict[str, object]
) -> None:
    table = config.tables[name]
    if lacks_demo_table(table):
        report["makes_demo_table"] = True
        return
    if is_remote(table.path):
        is_written = table.maintenance is not None
        folder = presumed_format(locate_table(table.path, stores=stores), table.format).names.folder
        await _check_rights(stores, table.path, folder, report, is_written=is_written)
    if table.maintenance is not None:
        report.update(await _examine_log(config, name, stores))
        if table.maintenance.cleanup.enabled:
            folder = log_folder(table)
            await _check_sweep(stores, folder, table.path, report)
    if table.has_sink:
        report.update(await _examine_pipeline(config, name, stores))


async def _examine_sink(config: Config, name: str, stores: Stores) -> None:
    sink = open_sink(
        name, config.tables[name].sink, daemon=config.name, state=config.state, stores=stores
    )
    if sink is None:
        return
    try:
        await sink.healthcheck()
    finally:
        await sink.aclose()


async def _check_rights(
    stores: Stores, location: str, folder: str, report: dict[str, object], *, is_written: bool
) -> None:
    """Report which rights are missing in a bucket.

    Args:
        location, folder: The table, and the folder below it where files are listed and read.

    Raises:
        AccessDeniedError, ConditionalPutUnsupportedError: One is; the message names all.
    """
    store, root = stores.locate(location)
    missing = await missing_rights(store, root, f"{root}/{folder}", is_written=is_written)
    report["missing_rights"] = list(missing)
    for first in missing.values():
        raise first.restate(f"Missing for {location}: {', '.join(missing)}. {first.message}")


async def _check_sweep(
    stores: Stores, folder: str, location: str, report: dict[str, object]
) -> None:
    """Report rights with which a cleanup could do more; missing ones are no failure."""
    store, _ = stores.locate(location)
    report["missing_rights"] = list(await missing_for_sweep(store, folder))


def blank_report(config: Config, name: str) -> dict[str, object]:
    """Return an empty report of a table."""
    table = config.tables[name]
    return {
        "table": name,
        "path": table.path,
        "engine": config.select_engine(name),
        "sink": table.sink.kind,
        "from": table.start if table.has_sink else None,
        "head_version": None,
        "resumes_at_version": None,
        "starts_at_version": None,
        "makes_demo_table": False,
        "maintenance_due": None,
        "maintenance_refused": None,
        "missing_rights": [],
        **NO_ERROR,
    }


async def _examine_pipeline(config: Config, name: str, stores: Stores) -> dict[str, object]:
    table = config.tables[name]
    source = await open_source(
        table,
        Telemetry(),
        stores=stores,
        memory_bytes=config.memory,
        ledger=locate_ledger(config, name, is_read_only=True),
    )
    latest = await source.initial_offset("latest")
    found: dict[str, object] = {"head_version": source.version_before(latest.version)}
    await check_columns(config, name, source)
    saved = await saved_offset(config, name)
    if saved is not None:
        await source.latest_offset(saved, ReadLimit(max_files=1))
        found["resumes_at_version"] = saved.version
    else:
        found["starts_at_version"] = (await source.initial_offset(table.start)).version
    await check_pipeline(config, name)
    return found


async def check_columns(config: Config, name: str, source: ChangeSource) -> None:
    """Check that the table has the columns that its sink needs.

    Raises:
        ConfigError: One is missing; the message names the field that refers to it.
    """
    names = (await source.arrow_schema()).names
    for field, columns in config.tables[name].sink.columns_by_field().items():
        for column in columns:
            if column not in names:
                where = f"{where_of(name)}.sink.{field}"
                raise ConfigError(
                    f"{where} names the column {column}, which the table does not have.",
                    remedy=suggest_name(column, names),
                    where=where,
                )


async def _examine_log(config: Config, name: str, stores: Stores) -> dict[str, object]:
    """Report what maintenance of a table would do; if it is refused, only maintenance fails."""
    try:
        _, work = await configure_maintenance(config, name, stores).open()
        assessment = await work.assessment()
    except TableError as error:
        if not config.tables[name].has_sink:
            raise
        return {"maintenance_refused": str(error)}
    due = [each.job for each in assessment.decisions if each.is_due]
    return {"maintenance_due": due, "head_version": assessment.version}
