"""Load a `Config` from a file and the environment; the environment takes precedence.

`TAILERD__TABLES__ORDERS__SINK__PATH=/out` is `tables.orders.sink.path`. Case does not matter, and
in a table's name any character that is not a letter or digit is written as `_`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource, SettingsError

from tailerd.config.explain import Mistake
from tailerd.config.mistakes import Origin, all_mistakes, mistakes_message
from tailerd.config.models import ENV_PREFIX, Config
from tailerd.config.positions import positions, yaml_mistake
from tailerd.config.sections import where_of
from tailerd.config.substitution import Substitution
from tailerd.errors import ConfigError, MissingExtraError
from tailerd.registry import suggest_name

_LARGEST_FILE_BYTES = 16 * 1024**2
_FIXED = ("state", "http", "web", "spark", "memory", "table_metrics")
"""Sections that a running process cannot change."""


def load_config(path: Path, *, engine: str | None = None) -> Config:
    """Read a configuration file and the environment.

    Args:
        path: A YAML file.
        engine: Overrides the engine of every table; None uses file and environment.

    Raises:
        ConfigError: The configuration is invalid, or an engine is not installed; the message names
            the field.
    """
    config = parse_config(_read_file(path), os.environ, where=str(path), engine=engine)
    config.set_file(path)
    require_engines(config)
    _require_names(config, where=str(path))
    return config


def _require_names(config: Config, *, where: str) -> None:
    """Refuse paths that the locale cannot encode, because no file could be opened with them."""
    locations = {"state": config.state}
    for name, table in config.tables.items():
        locations[f"{where_of(name)}.path"] = table.path
        locations[f"{where_of(name)}.sink.path"] = str(getattr(table.sink, "path", ""))
    for field, location in locations.items():
        try:
            os.fsencode(location)
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"In {where}: {field} is {location!a}, which has no name in this locale: its"
                f" encoding is {error.encoding}.",
                remedy="Set LC_ALL=C.UTF-8, or PYTHONUTF8=1.",
            ) from error


def parse_config(
    text: str,
    environment: Mapping[str, str],
    *,
    where: str,
    engine: str | None = None,
    substitutes: bool = True,
) -> Config:
    """Parse the text of a file and an environment into a configuration.

    Args:
        text: YAML.
        environment: All variables; those without our prefix are ignored.
        where: Source of the text, for errors.
        engine: As in `load_config`.
        substitutes: Whether `${VAR}` and `${file:...}` are replaced; False if the file is for
            another machine.

    Raises:
        ConfigError: The configuration is invalid; lists all mistakes, each with its position.
    """
    content = _parse(text, where)
    own = _read_environment(environment)
    origin = Origin(where=where, positions=positions(text), environment=own)
    references = Substitution(environment) if substitutes else None
    unknown: list[Mistake] = []
    if references is not None:
        try:
            content = references.fill(content)
        except ConfigError as error:
            unknown = [Mistake(path=path, text=text) for path, text in error.mistakes]
    merged = _merge(content, own)
    if engine is not None:
        merged = _with_engine(merged, engine)
    try:
        config = Config(**merged)
    except (ValidationError, ConfigError) as error:
        found = all_mistakes(merged, error, lambda rest: Config(**rest))
    else:
        found = []
        if not unknown:
            return config
    known_paths = {mistake.path for mistake in unknown}
    found = [*unknown, *(mistake for mistake in found if mistake.path not in known_paths)]
    text = mistakes_message(found, origin, merged)
    # Pydantic's messages quote values, also in the traceback of `--debug`.
    raise ConfigError(text if references is None else references.hide_values(text)) from None


def _with_engine(content: dict[str, Any], engine: str) -> dict[str, Any]:
    tables = content.get("tables")
    if not isinstance(tables, dict):
        return {**content, "engine": engine}
    own = {
        name: {k: v for k, v in table.items() if k != "engine"}
        if isinstance(table, dict)
        else table
        for name, table in tables.items()
    }
    return {**content, "engine": engine, "tables": own}


class _Loader(yaml.SafeLoader):
    """Rejects duplicate keys in mappings: PyYAML would silently use the last."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Construct a value; report an invalid number or date with its position."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError):
            raise yaml.MarkedYAMLError(
                problem="a number or date is invalid",
                problem_mark=node.start_mark,
                note="Write it in quotes if it is text.",
            ) from None


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[object, object]:
    loader.flatten_mapping(node)
    seen: dict[object, int] = {}
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str | int | float | bool):
            raise yaml.MarkedYAMLError(
                problem="a key is no text",
                problem_mark=key_node.start_mark,
                note="Write a name before the colon.",
            )
        if key in seen:
            raise yaml.MarkedYAMLError(
                problem=f"the key `{key}` is there twice, first in line {seen[key]}",
                problem_mark=key_node.start_mark,
                note="Remove one of the two, or rename it.",
            )
        seen[key] = key_node.start_mark.line + 1
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def _read_file(path: Path) -> str:
    try:
        if path.stat().st_size > _LARGEST_FILE_BYTES:
            raise ConfigError(f"{path} is larger than 16 MiB, too large for a configuration file.")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"The configuration file {path} cannot be read: {error.strerror}.",
            remedy="Name another with --config, or write one: `tailerd init FOLDER >"
            " tailerd.yaml`.",
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text, so it is not a YAML file.") from error


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        content = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        position, mistake, remedy = yaml_mistake(error, text)
        # The error's text quotes the file, which may contain a secret.
        raise ConfigError(
            f"{where}{position} is not valid YAML: {mistake}.", remedy=remedy
        ) from None
    if not isinstance(content, dict):
        raise ConfigError(
            f"{where} has no mapping at top level.", remedy="It needs at least a section `tables`."
        )
    return {str(key): value for key, value in content.items()}


def _read_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    fields = tuple(Config.model_fields)
    for name in environment:
        if name.upper().startswith(ENV_PREFIX):
            first = name[len(ENV_PREFIX) :].partition("__")[0].lower()
            if first not in fields:
                # A misspelt variable must not be ignored silently.
                raise ConfigError(
                    f"The environment variable {name} sets `{first}`, which is not a known field.",
                    remedy=suggest_name(first, fields),
                )
    try:
        source = EnvSettingsSource(
            Config, case_sensitive=False, env_prefix=ENV_PREFIX, env_nested_delimiter="__"
        )
        source.env_vars = {name.lower(): value for name, value in environment.items()}
        values = source()
    except SettingsError as error:
        raise ConfigError(
            f"An environment variable {ENV_PREFIX}... is unreadable: {error}."
        ) from None
    return dict(values)


def _merge(file: dict[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(file)
    spelled = {_plain(key): key for key in file}
    for key, value in environment.items():
        own = spelled.get(_plain(key), key)
        below = merged.get(own)
        if isinstance(value, dict) and isinstance(below, dict):
            merged[own] = _merge(below, value)
        else:
            merged[own] = value
    return merged


def _plain(key: str) -> str:
    return re.sub(r"[^a-z0-9]", "_", str(key).lower())


def require_engines(config: Config) -> None:
    """Check that the engines of all tables are installed: PySpark is an extra.

    Raises:
        MissingExtraError: An engine is not installed.
    """
    if find_spec("pyspark") is not None:
        return
    engines = {where_of(name): config.select_engine(name) for name in config.tables}
    for name, group in config.discover.items():
        engines[f"discover.{name}"] = config.resolve_engine(group.template.engine)
    wanting = [name for name, engine in engines.items() if engine == "spark"]
    if wanting:
        raise MissingExtraError(
            f"The engine of {wanting[0]} is spark, but PySpark is not installed here.",
            remedy="Install it: pip install 'tailerd[spark]' (an image: the one with Spark). Or set"
            " engine: arrow, which needs no Java either.",
        )


def check_fixed(before: Config, after: Config) -> None:
    """Refuse a configuration with changes that need a restart of the process.

    Raises:
        ConfigError: A fixed section differs; the message names the fields.
    """
    changed = [name for name in _FIXED if getattr(before, name) != getattr(after, name)]
    if changed:
        raise ConfigError(
            f"{', '.join(changed)} cannot change while the daemon runs, so the new file was"
            " rejected.",
            remedy="Set it back, or restart the daemon.",
        )
