"""The configuration of a command, and the stores that reach its tables and state."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from tailerd.config import Config, Discovery, load_config
from tailerd.errors import UsageError
from tailerd.formats.table_search import discover_tables
from tailerd.pipeline_names import is_named
from tailerd.registry import suggest_name
from tailerd.storage.stores import Stores


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """The configuration and stores of a command.

    Attributes:
        discovery: The configuration, with the tables that its patterns found.
        stores: How files are reached; created once for the command.
    """

    discovery: Discovery
    stores: Stores

    @property
    def config(self) -> Config:
        """The configuration, with the tables that its patterns found."""
        return self.discovery.config


def read_config(
    path: Path, *, engine: str | None = None, is_discovering: bool = True
) -> Configured:
    """Read a configuration file, and find its tables.

    Args:
        path: A YAML file.
        engine: Runs every table, instead of the engines in the file; None keeps those.
        is_discovering: Whether to search for the tables of its patterns.

    Raises:
        ConfigError: Anything about it is wrong.
        StorageError: A bucket cannot be searched for tables.
    """
    config = load_config(path, engine=engine)
    stores = Stores.from_config(config.storage)
    discovery = Discovery(config=config, found={})
    if is_discovering:
        discovery = discover_tables(config, stores)
    return Configured(discovery=discovery, stores=stores)


def find_pipelines(config: Config, name: str) -> list[str]:
    """Return the pipelines of a name: itself, or those of all sinks of a table.

    Raises:
        UsageError: There are none.
    """
    found = [each for each in config.tables if is_named(each, name)]
    if not found:
        raise UsageError(f"There is no table {name!r}.", remedy=suggest_name(name, config.tables))
    return found


def check_name(config: Config, name: str) -> None:
    """Reject a name that is not one pipeline; errors then show commands for it.

    Raises:
        UsageError: It is none, or a table with several sinks.
    """
    if len(found := find_pipelines(config, name)) > 1:
        names = ", ".join(each for each in found if config.tables[each].has_sink)
        raise UsageError(f"{name} has several sinks.", remedy=f"Name one of them: {names}.")
    click.get_current_context().ensure_object(dict)["reader"] = config.reader(name)
