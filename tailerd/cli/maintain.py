"""`tailerd maintain`: the maintenance that a table's log needs, and why; `--apply` does it."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tailerd.changefeed.offset import Version
from tailerd.cli.completion import table_locations
from tailerd.cli.paragraphs import say
from tailerd.cli.progress import Progress
from tailerd.cli.table_options import (
    allow_path_option,
    find_file,
    table_config_option,
    table_format_option,
)
from tailerd.errors import UsageError
from tailerd.pipeline_names import table_of

if TYPE_CHECKING:
    from tailerd.checks.maintained import ConfiguredMaintenance
    from tailerd.config import Config
    from tailerd.formats.maintenance import Decision, JobResult, LogAssessment, TableMaintenance
    from tailerd.maintenance.pins import Pin, PinBoard


def pin_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of pins to a command: the fields of `PinChange`."""
    for option in reversed(
        (
            click.option(
                "--pin",
                metavar="NAME=VERSION",
                help="Keep VERSION and all later ones for the reader NAME: cleanups of every"
                " tailerd respect the pin. Repeat with a later version to move it.",
            ),
            click.option(
                "--for", "pin_for", metavar="DURATION", help="Pin lifetime, for example 7d."
            ),
            click.option("--unpin", metavar="NAME", help="Remove the pin of NAME."),
        )
    ):
        function = option(function)
    return function


@dataclass(frozen=True, slots=True, kw_only=True)
class PinChange:
    """The change of pins that the options request."""

    pin: str | None
    pin_for: str | None
    unpin: str | None

    @property
    def is_requested(self) -> bool:
        """Whether any of them was given."""
        return any(each is not None for each in (self.pin, self.pin_for, self.unpin))


async def change_pins(board: PinBoard, work: TableMaintenance, change: PinChange) -> list[Pin]:
    """Set or remove a pin; return the pins after that.

    Raises:
        UsageError: The options do not fit, or the version does not exist yet.
        MissingVersionError: The version to keep is gone already.
        PinUnreadableError, StorageError: Pins cannot be read or written.
    """
    from tailerd.clock import SystemClock
    from tailerd.errors import UsageError

    if change.pin_for is not None and change.pin is None:
        raise UsageError("--for says how long a pin lasts, so it needs --pin NAME=VERSION.")
    if change.unpin is not None and not await board.remove(change.unpin):
        raise UsageError(f"There is no pin {change.unpin}, so none was removed.")
    if change.pin is not None:
        requested = _parse_pin(change.pin, change.pin_for, SystemClock().now_ms())
        await work.check_readable_from(Version(requested.version), requested.name)
        await board.set(requested)
        # A cleanup that had read the pins before may have been running.
        await work.check_readable_from(Version(requested.version), requested.name)
    return await board.read()


def _parse_pin(text: str, pin_for: str | None, now_ms: int) -> Pin:
    from tailerd.config.values import parse_duration
    from tailerd.errors import UsageError
    from tailerd.maintenance.pins import Pin

    name, _, version = text.partition("=")
    if not (version.isascii() and version.isdecimal()):
        raise UsageError(f"--pin is {text!r}: write NAME=VERSION, such as nightly-export=120.")
    expires_ms = None
    if pin_for is not None:
        try:
            seconds = parse_duration(pin_for)
        except ValueError as error:
            raise UsageError(f"--for is {pin_for!r}: {error}.") from error
        assert isinstance(seconds, float)
        expires_ms = now_ms + round(seconds * 1000)
    return Pin(name=name, version=int(version), expires_ms=expires_ms)


async def shown_pins(board: PinBoard) -> list[str]:
    """Return a line for each pin, or one that says why they cannot be read."""
    from tailerd.errors import PinUnreadableError

    try:
        pins = await board.read()
    except PinUnreadableError as error:
        return [f"pins: {error}"]
    return list(pin_texts(pins))


def pin_texts(pins: list[Pin]) -> Iterator[str]:
    """Yield a line for each pin."""
    for pin in pins:
        until = "" if pin.expires_ms is None else f" until {_moment(pin.expires_ms)}"
        yield f"pinned: version {pin.version} and later, for {pin.name}{until}."


def pin_json(pin: Pin) -> str:
    """Return a pin as one JSON object."""
    return json.dumps({"pin": pin.name, "version": pin.version, "expires_ms": pin.expires_ms})


def _moment(time_ms: int) -> str:
    return dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC).isoformat(timespec="seconds")


_EXAMPLES = """\b
Examples:
  tailerd maintain /lake/orders
  tailerd maintain /lake/orders --apply
  tailerd maintain orders --config tailerd.yaml --apply --json
  tailerd maintain /lake/huge --apply --engine spark
  tailerd maintain /lake/orders --pin nightly-export=120 --for 7d
"""
_ROUNDS = 3
"""One job can make another due, as a checkpoint does a cleanup; no job runs twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One job: its decision and its result."""

    table: str
    version: int
    decision: Decision
    result: JobResult | None = None


@click.command("maintain", epilog=_EXAMPLES)
@click.argument("table", shell_complete=table_locations)
@click.option(
    "--apply/--dry-run",
    "is_applying",
    default=False,
    help="Run due jobs, or only report them (the default).",
)
@table_config_option
@click.option(
    "--engine",
    type=click.Choice(["arrow", "spark"]),
    help="Write checkpoints with tailerd itself (the default) or with Spark's tasks.",
)
@table_format_option
@allow_path_option
@pin_options
@click.option("--json", "is_json", is_flag=True, help="One JSON object a job, or a pin.")
def command(
    table: str,
    is_applying: bool,
    config_path: Path | None,
    engine: str | None,
    table_format: str,
    allowed_paths: tuple[str, ...],
    is_json: bool,
    **pinning: str | None,
) -> None:
    """Show the maintenance that the log of TABLE needs: reason, cost and saving.

    Without a configuration, only checkpoints are considered: after as many commits as the table's
    delta.checkpointInterval says (or 10), or 64 MiB of them. Nothing is written without --apply,
    data files and commits never. A table that cannot be maintained (a writer feature that this
    release does not support, a catalog's table) ends with 3 and the reason; its changes can still
    be read. Costs and savings are estimates for a local disk. With --engine spark, a table of
    more files than one process can hold gets its V2 checkpoint from many tasks.
    """
    change = PinChange(**pinning)
    if change.is_requested:
        if is_applying:
            raise UsageError("--apply runs jobs and cannot be combined with --pin or --unpin.")
        requested = _request_maintenance(table, config_path, None, table_format, allowed_paths)
        pins = asyncio.run(_pin(requested, change))
        shown = [*pin_texts(pins)] or ["Nothing is pinned."]
        texts = map(pin_json, pins) if is_json else iter(shown)
    else:
        requested = _request_maintenance(table, config_path, engine, table_format, allowed_paths)
        lines, pinned = asyncio.run(_maintain(table, requested, is_applying=is_applying))
        plain = (*_texts(lines, is_applying=is_applying), *pinned)
        texts = (json.dumps(_as_json(line)) for line in lines) if is_json else iter(plain)
    for text in texts:
        say(text, is_json=is_json)


async def _pin(requested: ConfiguredMaintenance, change: PinChange) -> list[Pin]:
    from tailerd.clock import SystemClock

    opened, work = await requested.open()
    return await change_pins(opened.pins(SystemClock()), work, change)


async def _maintain(
    table: str, requested: ConfiguredMaintenance, *, is_applying: bool
) -> tuple[list[_Line], list[str]]:
    """Return the result of every job, and the pins."""
    from tailerd.clock import SystemClock
    from tailerd.storage.lease import Lease

    clock = SystemClock()
    opened, work = await requested.open()
    board = opened.pins(clock)
    assessment = await work.assessment()
    if not is_applying or not any(decision.is_due for decision in assessment.decisions):
        return _lines(table, assessment, {}), await shown_pins(board)
    lease = Lease(opened.location.store, opened.location.root, clock=clock)
    async with lease.hold():
        lines = await _apply(table, work, assessment)
    return lines, await shown_pins(board)


async def _apply(table: str, work: TableMaintenance, assessment: LogAssessment) -> list[_Line]:
    done: dict[str, _Line] = {}
    for _ in range(_ROUNDS):
        due = [each for each in assessment.decisions if each.is_due and each.job not in done]
        if not due:
            break
        for decision in due:
            with Progress(f"{decision.job} of {table}"):
                result = await work.apply(assessment, decision)
            done[decision.job] = _Line(
                table=table, version=assessment.version, decision=decision, result=result
            )
        assessment = await work.assessment()
    return _lines(table, assessment, done)


def _lines(table: str, assessment: LogAssessment, done: dict[str, _Line]) -> list[_Line]:
    return [
        done.get(decision.job) or _Line(table=table, version=assessment.version, decision=decision)
        for decision in assessment.decisions
    ]


def _request_maintenance(
    table: str,
    config_path: Path | None,
    engine: str | None,
    table_format: str,
    allowed_paths: Sequence[str],
) -> ConfiguredMaintenance:
    from tailerd.checks.maintained import ConfiguredMaintenance, configure_maintenance
    from tailerd.cli.configured import find_pipelines, read_config
    from tailerd.formats.maintenance import MaintenancePolicies, no_readers
    from tailerd.maintenance.settings import spark_engine
    from tailerd.storage.stores import Stores

    if (file := find_file(table, config_path)) is not None:
        configured = read_config(file)
        config = configured.config
        table = find_pipelines(config, table)[0]
        if allowed_paths:
            raise UsageError("--allow-path is for a table without --config: set its allowed_paths.")
        return configure_maintenance(_with_engine(config, table, engine), table, configured.stores)
    return ConfiguredMaintenance(
        location=table,
        format=table_format,
        allowed_paths=allowed_paths,
        policies=MaintenancePolicies(engine=spark_engine() if engine == "spark" else None),
        pipelines=no_readers,
        stores=Stores(),
    )


def _with_engine(config: Config, table: str, engine: str | None) -> Config:
    """Return the configuration with another engine of a table's maintenance.

    Raises:
        ConfigError: The table's maintenance contradicts it.
    """
    from tailerd.config.maintenance import read_maintenance

    section = config.tables[table]
    if engine is None:
        return config
    known = section.maintenance
    fields = {} if known is None else known.model_dump(exclude_unset=True)
    where = f"tables.{table_of(table)}.maintenance"
    maintenance = read_maintenance(where, {**fields, "engine": engine}, section.format)
    altered = section.model_copy(update={"maintenance": maintenance})
    return config.model_copy(update={"tables": {**config.tables, table: altered}})


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
