"""Extend a configuration with the tables that its patterns found."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from tailerd.config.models import Config, check_no_conflict
from tailerd.config.sections import TableConfig, is_table_name, split_sinks
from tailerd.errors import ConfigError
from tailerd.registry import is_remote, with_first_scheme

_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_FILE_URL = re.compile(r"(?i:file):(?://(?:localhost)?)?(/.*)", re.DOTALL)
"""Everything that `storage.stores`, a higher layer, treats as a file."""
_WILDCARD = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """The tables that the patterns of a configuration found.

    Attributes:
        config: The configuration including the tables found.
        found: Name of each pipeline of a table found -> name of the pattern's section.
        rejected: (folder, reason) of folders that look like tables but cannot be used.
    """

    config: Config
    found: dict[str, str]
    rejected: tuple[tuple[str, str], ...] = ()


def with_tables_found(
    config: Config,
    folders: Mapping[str, Sequence[str]],
    named_before: Mapping[str, str] | None = None,
) -> Discovery:
    """Return a configuration with the tables its patterns found, after those it names itself.

    A folder that the configuration names as a table is not added again. If several folders have the
    same table name, the previous owner of the name keeps it, because the saved offset belongs to
    it. Otherwise a folder with exactly that name precedes one whose name had to be adjusted.

    Args:
        config: The configuration.
        folders: Name of each pattern's section -> folders of tables, in order.
        named_before: Casefolded name of a table found before -> its folder; no other folder gets
            that name, so omit folders that no longer exist.
    """
    if not config.discover:
        return Discovery(config=config, found={})
    tables: dict[str, TableConfig] = dict(config.tables)
    seen: dict[str, str] = {}
    for name, table in tables.items():
        check_no_conflict(seen, name, table)
    found: dict[str, str] = {}
    rejected: list[tuple[str, str]] = []
    owners = {name: _location(folder) for name, folder in (named_before or {}).items()}
    candidates = sorted(_candidates(config, folders), key=lambda each: each.rank(owners))
    for each in candidates:
        name, group = each.name, config.discover[each.section]
        try:
            each.check(owners)
            pipelines = split_sinks(name, group.template.table(name, each.folder))
            for pipeline, table in pipelines.items():
                check_no_conflict(seen, pipeline, table)
        except ConfigError as error:
            rejected.append((each.folder, str(error)))
            continue
        tables |= pipelines
        found |= dict.fromkeys(pipelines, each.section)
    expanded = config.model_copy(update={"tables": tables})
    return Discovery(config=expanded, found=found, rejected=tuple(rejected))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A folder that may become a table."""

    section: str
    folder: str
    location: str
    name: str
    is_called_so: bool

    def rank(self, owners: Mapping[str, str]) -> int:
        """Return its sort rank; `owners`: casefolded name -> location that had it before."""
        if owners.get(self.name.casefold()) == self.location:
            return 0
        return 1 if self.is_called_so else 2

    def check(self, owners: Mapping[str, str]) -> None:
        """Check that its name is valid and not owned by another folder."""
        if not is_table_name(self.name):
            raise ConfigError("its name cannot be a table name.", remedy="Name it in `tables`.")
        owner = owners.get(self.name.casefold())
        if owner is not None and owner != self.location:
            raise ConfigError(
                f"it and {owner} both have the name {self.name!r}, which {owner} had first, so"
                " their output or state would mix.",
                remedy="Name it in `tables`, with another name.",
            )


def _candidates(config: Config, folders: Mapping[str, Sequence[str]]) -> Iterator[_Candidate]:
    """Yield each folder once, for the first pattern that found it."""
    taken = {_location(table.path) for table in config.tables.values()}
    for section, group in config.discover.items():
        for folder in folders.get(section, ()):
            # Computed once: it needs the file system, and there may be thousands of folders.
            location = _location(folder)
            if location in taken:
                continue
            taken.add(location)
            name = table_name(group.path, folder)
            yield _Candidate(
                section=section,
                folder=folder,
                location=location,
                name=name,
                is_called_so=name == _own_name(group.path, folder),
            )


def table_name(pattern: str, folder: str) -> str:
    """Return the name of the table in a folder that a pattern found.

    Case A: the last part has a wildcard: that part is the name.
    Case B: it has none: the name consists of all parts from the first wildcard on.
    """
    return _NO_NAME.sub("-", _own_name(pattern, folder)).lstrip("._-")


def _own_name(pattern: str, folder: str) -> str:
    """Return a folder's own name, which may not be a valid table name."""
    levels = _levels(pattern)
    first = next((n for n, level in enumerate(levels) if _WILDCARD.search(level)), -1)
    # Case A; Case B.
    begin = -1 if _WILDCARD.search(levels[-1]) else first
    return "-".join(_levels(folder)[begin:])


def _levels(path: str) -> list[str]:
    return [level for level in path.removeprefix("file://").split("/") if level]


def _location(path: str) -> str:
    if is_remote(path):
        return with_first_scheme(path).rstrip("/")
    if match := _FILE_URL.fullmatch(path):
        path = "/" + unquote(match[1]).lstrip("/")
    return str(Path(os.path.abspath(path)).resolve())  # noqa: PTH100 - as `locate` reads `..`
