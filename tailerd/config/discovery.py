"""Tables found by pattern: the configuration with them in it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from tailerd.config.models import Config, check_apart
from tailerd.config.sections import TableConfig, is_in_bucket, is_table_name
from tailerd.errors import ConfigError

_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_FILE_URL = re.compile(r"(?i:file):(?://(?:localhost)?)?(/.*)", re.DOTALL)
"""All that `storage.locate`, which is above this, takes for a file."""
_WILDCARD = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """What the patterns of a configuration found.

    Attributes:
        config: The configuration with the tables found among its own.
        found: Name of each table found -> name of the pattern's section.
        rejected: (folder, reason) of what looks like a table and cannot be one here.
    """

    config: Config
    found: dict[str, str]
    rejected: tuple[tuple[str, str], ...] = ()


def with_tables_found(config: Config, folders: Mapping[str, Sequence[str]]) -> Discovery:
    """Return a configuration with the tables its patterns found; those named in it come first.

    A folder that the configuration names as a table is that table, not another.

    Args:
        config: The configuration.
        folders: Name of each pattern's section -> folders of tables, in order.
    """
    if not config.discover:
        return Discovery(config=config, found={})
    tables: dict[str, TableConfig] = dict(config.tables)
    taken = {_place(table.path) for table in tables.values()}
    seen: dict[str, str] = {}
    for name, table in tables.items():
        check_apart(seen, name, table)
    found: dict[str, str] = {}
    rejected: list[tuple[str, str]] = []
    for section, group in config.discover.items():
        for folder in folders.get(section, ()):
            if _place(folder) in taken:
                continue
            taken.add(_place(folder))
            name = table_name(group.path, folder)
            try:
                if not is_table_name(name):
                    raise ConfigError("its name gives no table name.", hint="Name it in `tables`.")
                table = group.template.table(name, folder)
                check_apart(seen, name, table)
            except ConfigError as error:
                rejected.append((folder, str(error)))
                continue
            tables[name] = table
            found[name] = section
    expanded = config.model_copy(update={"tables": tables})
    return Discovery(config=expanded, found=found, rejected=tuple(rejected))


def table_name(pattern: str, folder: str) -> str:
    """Return the name of the table in a folder that a pattern found.

    Case A: the last part has a wildcard, and tells tables apart.
    Case B: it has none: all from the first wildcard on tells them apart.
    """
    levels = _levels(pattern)
    first = next((n for n, level in enumerate(levels) if _WILDCARD.search(level)), -1)
    # Case A; Case B.
    begin = -1 if _WILDCARD.search(levels[-1]) else first
    return _NO_NAME.sub("-", "-".join(_levels(folder)[begin:])).lstrip("._-")


def _levels(path: str) -> list[str]:
    return [level for level in path.removeprefix("file://").split("/") if level]


def _place(path: str) -> str:
    if is_in_bucket(path):
        return "s3://" + path.partition("://")[2].rstrip("/")
    if match := _FILE_URL.fullmatch(path):
        path = "/" + unquote(match[1]).lstrip("/")
    return str(Path(os.path.abspath(path)).resolve())  # noqa: PTH100 - as `locate` reads `..`
