"""Tables found by pattern: which folders are there now, and the configuration with them in it."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tailerd.config.models import Config, check_apart
from tailerd.config.sections import TableConfig, is_table_name
from tailerd.errors import ConfigError

_LOG = "_delta_log"
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")


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


def discover_tables(config: Config) -> Discovery:
    """Look for the tables of every pattern; blocking. Tables named in the file come first.

    A folder that the file names as a table is that table, not another.
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
        for folder in _folders(group.path):
            if _place(folder) in taken:
                continue
            taken.add(_place(folder))
            name = _NO_NAME.sub("-", Path(folder).name).lstrip("._-")
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


def _folders(pattern: str) -> Iterator[str]:
    """Yield folders that match and hold a log, sorted."""
    # `Path.glob` takes no absolute pattern.
    for folder in sorted(glob.glob(pattern.removeprefix("file://"))):  # noqa: PTH207
        if (Path(folder) / _LOG).is_dir():
            yield folder.rstrip("/")


def _place(path: str) -> str:
    return str(Path(path.removeprefix("file://")).resolve())
