"""Options that several commands share: the configuration, a table's location, points in time."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from tailerd.changefeed.points import resolved_point
from tailerd.errors import UsageError
from tailerd.registry import AUTO
from tailerd.state.ledger import LedgerLocation
from tailerd.storage.stores import Stores

DEFAULT_FILE = Path("tailerd.yaml")
_OWN = ("table_format", "allowed_paths", "ledger", "format_options")
_FILE = "tailerd.file"
CONFIG = "tailerd.config"
"""Key of the context's `meta` with the configuration in which TABLE is a name."""


def config_option(about: str, *, is_required: bool = True) -> Callable[[Any], Any]:
    """Return the option `--config FILE`, by default `./tailerd.yaml`.

    Args:
        about: Help text, without a full stop.
        is_required: Whether the command needs a configuration. Otherwise its `config_path` is None
            if that file does not exist, or if `--http` names a daemon.
    """

    def choose(context: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
        file = context.meta.get(_FILE)
        if path and file:
            raise UsageError("FILE and --config name two files.", remedy="Give one of them.")
        is_found = is_required or (DEFAULT_FILE.is_file() and not context.params.get("url"))
        return path or file or (DEFAULT_FILE if is_found else None)

    return click.option(
        "--config",
        "config_path",
        metavar="FILE",
        type=click.Path(path_type=Path),
        callback=choose,
        help=f"{about}; ./tailerd.yaml by default.",
    )


file_argument = click.argument(
    "file",
    required=False,
    type=click.Path(path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, path: context.meta.update({_FILE: path}),
)
"""FILE as another form of `--config FILE`, for commands that take no other argument."""

allow_path_option = click.option(
    "--allow-path",
    "allowed_paths",
    multiple=True,
    metavar="LOCATION",
    help="A folder outside the table with files that its log may refer to (shallow clones), or to"
    " which a symbolic link may lead; repeatable.",
)

table_format_option = click.option(
    "--table-format",
    default=AUTO,
    show_default=True,
    metavar="FORMAT",
    help="Format of the table, such as delta; auto recognises it.",
)
_ledger_option = click.option(
    "--ledger",
    metavar="FOLDER",
    callback=lambda _, __, folder: None if folder is None else LedgerLocation(folder),
    help="Folder or URL of the ledger of a table without history (Kartothek).",
)


table_config_option = click.option(
    "--config",
    "config_path",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Configuration in which TABLE may be a name; ./tailerd.yaml by default.",
)
_format_option = click.option(
    "--format-option",
    "format_options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=lambda _, __, pairs: _pairs(pairs),
    help="An option of the table's format, such as branch=audit for Iceberg; repeatable.",
)


def _pairs(texts: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    if wrong := [text for text, pair in zip(texts, pairs, strict=True) if not all(pair)]:
        raise UsageError(
            f"--format-option {wrong[0]!r} is not a pair.", remedy="Write it like branch=audit."
        )
    return {name: value for name, _, value in pairs}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTable:
    """A table as the arguments of a command describe it.

    Attributes:
        path: A path or URL.
        table_format: Name of its format; `auto` to detect it.
        allowed_paths: Locations outside the table that its log may name.
        ledger: Location of the ledger of a table without history.
        format_options: Options of its format, by name.
        stores: Access to its files; None: configured by the environment.
    """

    path: str
    table_format: str
    allowed_paths: tuple[str, ...]
    ledger: LedgerLocation | None
    format_options: Mapping[str, object]
    stores: Stores | None


def find_file(table: str, config_path: Path | None) -> Path | None:
    """Return the configuration in which TABLE is a name; None if it is a location."""
    is_name = "/" not in table and not Path(table).exists()
    return config_path or (DEFAULT_FILE if is_name and DEFAULT_FILE.is_file() else None)


def of_configured_table(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that describe TABLE, which may be a name in `--config`.

    The command gets them as `table`, a `NamedTable`: those of the configured table, too.
    """

    @table_format_option
    @_ledger_option
    @allow_path_option
    @_format_option
    @table_config_option
    @wraps(function)
    def command(table: str, config_path: Path | None, **options: Any) -> None:
        given = {name: options.pop(name) for name in _OWN}
        found = NamedTable(path=table, stores=None, **given)
        if (file := find_file(table, config_path)) is not None:
            found = _find_configured(found, file)
        return function(table=found, **options)

    return command


def _find_configured(given: NamedTable, file: Path) -> NamedTable:
    """Return the table whose name in a configuration was given."""
    from tailerd.cli.configured import find_pipelines, read_config
    from tailerd.daemon.tables import locate_ledger

    configured = read_config(file)
    click.get_current_context().meta[CONFIG] = configured.config
    # Its sinks differ in what they deliver, not in where it is.
    table = find_pipelines(configured.config, given.path)[0]
    section = configured.config.tables[table]
    return NamedTable(
        path=section.path,
        table_format=section.format if given.table_format == AUTO else given.table_format,
        allowed_paths=(*given.allowed_paths, *section.allowed_paths),
        ledger=given.ledger or locate_ledger(configured.config, table, is_read_only=True),
        format_options={**section.format_settings(), **given.format_options},
        stores=configured.stores,
    )


def resolve_point(text: str) -> str:
    """Return a version, word or time with `-2h`, `yesterday` and `today` made absolute.

    Raises:
        UsageError: It is too long ago for a time.
    """
    return resolved_point(text, dt.datetime.now(dt.UTC))
