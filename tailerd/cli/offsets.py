"""`tailerd offsets`: shows and moves the saved offsets of pipelines."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tailerd.cli.completion import table_names
from tailerd.cli.daemon_client import DaemonClient, http_option, token_option
from tailerd.cli.output import print_records
from tailerd.cli.paragraphs import say
from tailerd.cli.record_table import Layout
from tailerd.cli.table_options import config_option, resolve_point
from tailerd.errors import DaemonUnreachableError

if TYPE_CHECKING:
    from tailerd.changefeed.offset import Offset
    from tailerd.config import Config
    from tailerd.errors import StateInUseError
    from tailerd.pipeline.claim import HeldOffset

_LAYOUT = Layout(columns=("table", "engine", "next"), cut=("table",))
_EXAMPLES = """\b
Examples:
  tailerd offsets --config tailerd.yaml
  tailerd offsets --config tailerd.yaml orders --json
  tailerd offsets reset orders --to snapshot --config tailerd.yaml
  tailerd offsets reset orders --to latest --yes --config tailerd.yaml
  tailerd offsets rebind orders --config tailerd.yaml
"""

_RESET_EXAMPLES = """\b
Examples:
  tailerd offsets reset orders --to snapshot --config tailerd.yaml
  tailerd offsets reset orders --to 42 --config tailerd.yaml
  tailerd offsets reset orders --to latest --yes --config tailerd.yaml
"""
_REBIND_EXAMPLE = """\b
Example:
  tailerd offsets rebind orders --config tailerd.yaml
"""
_ACCEPT_EXAMPLE = """\b
Example:
  tailerd offsets accept orders --config tailerd.yaml
"""


class _ShowByDefault(click.Group):
    """A group whose plain form, `offsets [NAME]`, is its command `show`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert `show` before arguments that name no command and request no help."""
        own = {*self.commands, *ctx.help_option_names}
        if not args or args[0] not in own:
            args = ["show", *args]
        return super().parse_args(ctx, args)


_config_option = config_option("The configuration of the daemon")
_engine_option = click.option(
    "--engine",
    type=click.Choice(["spark", "arrow"]),
    help="The engine of the daemon, if it was started with --engine.",
)
_json_option = click.option("--json", "is_json", is_flag=True, help="One JSON object a pipeline.")


@click.group("offsets", cls=_ShowByDefault, epilog=_EXAMPLES)
def command() -> None:
    """Show the saved offsets of pipelines, or reset one.

    `tailerd offsets --config FILE [NAME]` shows all pipelines, or one.
    """


@command.command("show")
@click.argument("name", required=False, shell_complete=table_names)
@_config_option
@_json_option
def show(name: str | None, config_path: Path, is_json: bool) -> None:
    """Show the saved offset of every pipeline, or of NAME. Does not disturb a running daemon."""
    from tailerd.cli.configured import find_pipelines, read_config
    from tailerd.daemon.offsets import held_offset

    config = read_config(config_path).config
    names = list(config.tables) if name is None else find_pipelines(config, name)
    delivered = [each for each in names if config.tables[each].has_sink]
    if name is not None and not delivered:
        _check_delivered(config, name)
    lines: list[str | dict[str, object]] = []
    for each in delivered:
        held = asyncio.run(held_offset(config, each))
        lines.append(_as_json(config, each, held) if is_json else _as_record(config, each, held))
    if is_json:
        for line in lines:
            click.echo(line)
        return
    print_records([line for line in lines if isinstance(line, dict)], _LAYOUT, as_json=False)


@command.command("reset", epilog=_RESET_EXAMPLES)
@click.argument("name", shell_complete=table_names)
@click.option(
    "--to",
    required=True,
    help="snapshot, latest, a version (inclusive), or a timestamp (first commit at or after it).",
)
@click.option("--yes", is_flag=True, help="Skip undelivered versions without a question.")
@_config_option
@_engine_option
@http_option
@token_option
def reset(
    name: str,
    to: str,
    yes: bool,
    config_path: Path,
    engine: str | None,
    url: str | None,
    token_file: Path | None,
) -> None:
    """Reset the offset of the pipeline NAME: through the daemon if it runs, else in its state.

    If versions that are not delivered yet lie before the new offset, they never arrive: the command
    shows their number and asks first, and the gap is recorded in the status and the sink. A
    snapshot skips no rows, but deletes before it do not arrive. A file sink removes the rows at or
    after the new offset, also from the middle of a file.
    """
    from tailerd.cli.configured import check_name, read_config
    from tailerd.config.sections import where_of
    from tailerd.daemon.offsets import preview_reset
    from tailerd.errors import StateInUseError, UsageError
    from tailerd.spark.checkpoints import logged_batches, stream_checkpoint

    point = resolve_point(to)
    config = read_config(config_path, engine=engine).config
    check_name(config, name)
    _check_delivered(config, name)
    checkpoint = stream_checkpoint(config, name)
    if config.tables[name].is_stream and logged_batches(checkpoint).logged is not None:
        raise UsageError(
            f"The offset of {name} is kept by Spark, in {checkpoint}.",
            remedy=f"Stop the daemon, remove that folder and set {where_of(name)}.from to {to!r}.",
        )
    # Without the state's lock: a daemon may run, or start while the question waits.
    preview = asyncio.run(preview_reset(config, name, point))
    if preview.offset.phase == "follow":
        # Commits that come from now on are not part of the answer.
        point = str(preview.offset.version)
    if (skipped := preview.skipped) is not None and not yes:
        again = ["offsets", "reset", name, "--to", to, "--yes", "--config", str(config_path)]
        _confirm(f"This reset skips {skipped} of {name}: they are never delivered.", again)
    try:
        offset, skipped_text = asyncio.run(_reset_held(config, name, point))
    except StateInUseError as error:
        offset, skipped_text = _reset_running(error, name, point, url, config_path, token_file)
    done = f"{name} reset: begins at {_location(offset)}."
    click.echo(f"{done} Skipped {skipped_text}; the gap is recorded." if skipped_text else done)


def _confirm(consequence: str, without_question: Sequence[str]) -> None:
    """Ask whether to go on.

    Args:
        without_question: Arguments of the command that does not ask.

    Raises:
        UsageError: There is no terminal to ask in.
        Exit: The answer is no.
    """
    from tailerd.errors import UsageError

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        remedy = f"If that is intended, run `tailerd {shlex.join(without_question)}`."
        raise UsageError(consequence, remedy=remedy)
    say(consequence, err=True)
    if not click.confirm("Skip them?", err=True):
        click.echo("Nothing was changed.", err=True)
        raise click.exceptions.Exit(1)


@command.command("rebind", epilog=_REBIND_EXAMPLE)
@click.argument("name", shell_complete=table_names)
@_config_option
@_engine_option
def rebind(name: str, config_path: Path, engine: str | None) -> None:
    """Keep the offset of the pipeline NAME for the location that is configured now.

    A pipeline is a daemon `name`, a table name and a sink location: a Kafka cluster and a topic, or
    a folder. Where one of them changes, `run` refuses the offset, because rows before it were never
    delivered there. After a move of topics to another cluster, or of a folder to another disk, they
    were: then this keeps the offset, and the pipeline resumes there. Offsets in Kafka are read from
    the new cluster's topic of offsets. No daemon may run on the state meanwhile.
    """
    from tailerd.cli.configured import check_name, read_config
    from tailerd.daemon.offsets import rebind_offset

    config = read_config(config_path, engine=engine).config
    check_name(config, name)
    _check_delivered(config, name)
    held = _while_stopped("rebound", config, name, rebind_offset)
    sink = config.tables[name].sink
    location = sink.identity_location() or sink.kind
    click.echo(f"{name} rebound: resumes at {_location(held.offset)} into {location}.")


@command.command("accept", epilog=_ACCEPT_EXAMPLE)
@click.argument("name", shell_complete=table_names)
@_config_option
@_engine_option
def accept(name: str, config_path: Path, engine: str | None) -> None:
    """Go on from the offset of the pipeline NAME with other columns, conditions or masks.

    `run` refuses the offset if they have changed, because the rows before it were delivered with
    the former ones. This keeps it: rows before it stay as they are, later ones get the new form. No
    daemon may run on the state meanwhile.
    """
    from tailerd.cli.configured import check_name, read_config
    from tailerd.daemon.offsets import accept_view

    config = read_config(config_path, engine=engine).config
    check_name(config, name)
    _check_delivered(config, name)
    held = _while_stopped("accepted", config, name, accept_view)
    click.echo(f"{name} accepted: resumes at {_location(held.offset)} with the new form.")


def _while_stopped(
    word: str, config: Config, name: str, change: Callable[..., Awaitable[HeldOffset]]
) -> HeldOffset:
    """Change the offset of a pipeline while no daemon runs, and return it."""
    from tailerd.clock import SystemClock
    from tailerd.daemon.offsets import open_state
    from tailerd.errors import StateInUseError

    async def run() -> HeldOffset:
        state = open_state(config, clock=SystemClock())
        async with state.hold():
            return await change(config, name, state=state)

    try:
        return asyncio.run(run())
    except StateInUseError as error:
        raise StateInUseError(
            f"{name} cannot be {word} while a daemon runs: {error.message}",
            remedy="Stop that daemon, repeat this command, and start it again.",
        ) from error


async def _reset_held(config: Config, name: str, to: str) -> tuple[Offset, str]:
    """Reset while no daemon runs; return the new offset and the skipped versions.

    Raises:
        StateInUseError: One does.
    """
    from tailerd.clock import SystemClock
    from tailerd.daemon.offsets import open_state, reset_offset

    state = open_state(config, clock=SystemClock())
    async with state.hold():
        done = await reset_offset(config, name, to, state=state)
        return done.offset, str(done.skipped or "")


def _reset_running(
    error: StateInUseError,
    name: str,
    to: str,
    url: str | None,
    config_path: Path,
    token_file: Path | None,
) -> tuple[Offset, str]:
    """Reset through the daemon that holds the state folder; returns the same.

    Raises:
        DaemonUnreachableError: It has no address, or does not answer; the message names it.
        UsageError, DaemonRefusedError: It refuses.
    """
    from tailerd.changefeed.offset import Offset

    try:
        answer = DaemonClient.from_options(url, config_path, token_file).reset(name, to)
    except DaemonUnreachableError as refusal:
        raise DaemonUnreachableError(
            f"{error.message} {refusal.message}",
            remedy="Give that daemon's address with --http, or stop it.",
        ) from refusal
    skipped = answer.get("skipped")
    text = str(skipped.get("text")) if isinstance(skipped, dict) else ""
    return Offset.from_json(json.dumps(answer.get("offset"))), text


def _check_delivered(config: Config, name: str) -> None:
    from tailerd.errors import UsageError

    if not config.tables[name].has_sink:
        raise UsageError(
            f"{name} has no sink, so there is no offset: its log is maintained only.",
            remedy="`tailerd maintain` shows its state.",
        )


def _location(offset: Offset) -> str:
    if offset.phase == "snapshot":
        begun = ", partly delivered" if offset.position else ""
        return f"snapshot of version {offset.version}{begun}"
    if offset.position:
        return f"version {offset.version}, after its first {offset.position} files"
    return f"version {offset.version}"


def _as_record(config: Config, name: str, held: HeldOffset | None) -> dict[str, object]:
    engine = config.select_engine(name)
    if held is None:
        return {"table": name, "engine": engine, "next": "nothing saved"}
    return {"table": name, "engine": engine, "next": _location(held.offset)}


def _as_json(config: Config, name: str, held: HeldOffset | None) -> str:
    fields = None if held is None else json.loads(held.offset.to_json())
    return json.dumps(
        {
            "table": name,
            "engine": config.select_engine(name),
            "offset": fields,
        }
    )
