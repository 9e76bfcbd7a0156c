"""The whole configuration: its sections, and the rules between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, PrivateAttr, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from tailerd.config.http import HttpConfig, WebConfig
from tailerd.config.locations import parse_bucket
from tailerd.config.maintenance import read_maintenance
from tailerd.config.notifications import NotificationsConfig
from tailerd.config.positions import FieldPath, nearest_position, positions
from tailerd.config.sections import (
    DiscoverConfig,
    Engine,
    SinkConfig,
    SparkConfig,
    TableConfig,
    is_table_name,
    read_sinks,
    split_sinks,
    where_of,
)
from tailerd.config.storage import StorageConfig
from tailerd.config.values import Seconds, SizeBytes
from tailerd.errors import ConfigError
from tailerd.java import choose_engine
from tailerd.registry import AUTO, format_names, is_remote
from tailerd.remedies import Reader, pipeline_reader

ENV_PREFIX = "TAILERD__"


class Config(BaseSettings):
    """The whole configuration of `tailerd run`. Built by `load_config`, or from nested dicts."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        env_prefix=ENV_PREFIX,
        validate_default=False,
        hide_input_in_errors=True,
    )

    engine: Engine = Field(
        default="auto",
        description="What runs the pipelines: a local Spark session, this process itself (`arrow`),"
        " or `auto`: Spark if PySpark and Java are installed, else this process.",
        examples=["auto"],
    )
    name: str = Field(
        default="tailerd",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="Name of this daemon. With a table's name and the location of its sink it"
        " identifies the pipeline of an offset, so two daemons that deliver tables of one name into"
        " one topic need different names.",
        examples=["tailerd"],
    )
    state: str = Field(
        default="./state",
        min_length=1,
        description="Directory (or bucket prefix) for persistent state, used by one daemon at a"
        " time: a folder, or a prefix of a bucket, where checkpoints of sinks of `kind: stream`"
        " cannot be stored.",
        examples=["./state", "s3://bucket/tailerd"],
    )
    shutdown_timeout: Seconds = Field(
        default=30.0,
        ge=0.0,
        le=3600,
        description="How long to finish pending deliveries after SIGTERM, with a unit.",
        examples=["30s"],
    )
    http: HttpConfig = Field(default_factory=HttpConfig, description="The HTTP listener.")
    web: WebConfig = Field(default_factory=WebConfig, description="The page at `/`.")
    spark: SparkConfig = Field(default_factory=SparkConfig, description="The Spark session.")
    storage: StorageConfig = Field(
        default_factory=StorageConfig, description="Tables in buckets of S3, Azure and Google."
    )
    notifications: NotificationsConfig | None = Field(
        default=None,
        description="Queue of notifications about new commits in buckets, for all tables there.",
    )
    table_metrics: bool = Field(
        default=True,
        description="Whether to track the sizes of tables and logs (`tailerd_table_*`), which opens"
        " each table's files once, in addition to deliveries, and takes about 21 bytes a file.",
        examples=[True],
    )
    memory: SizeBytes = Field(
        default=256 * 1024**2,
        ge=16 * 1024**2,
        le=1024**4,
        description="Bytes of rows that all tables on the Arrow engine together read ahead of their"
        " sinks, and the bound of what reading one file takes: a file with a line, page or row that"
        " does not fit is refused as `too_large`. The process may take 128 MiB more for it.",
        examples=["256MiB"],
    )
    tables: dict[str, TableConfig] = Field(
        default_factory=dict, description="The tables, by a name of your choice."
    )
    discover: dict[str, DiscoverConfig] = Field(
        default_factory=dict,
        description="Patterns that find further tables, by a name of your choice.",
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Use only what `load_config` merged."""
        return (init_settings,)

    _file: Path | None = PrivateAttr(default=None)
    _auto: tuple[Engine, str] | None = PrivateAttr(default=None)

    def set_file(self, path: Path) -> None:
        """Note the file that this configuration was read from."""
        self._file = path.absolute()

    def format_position(self, path: FieldPath) -> str:
        """Return `file:line:column` of a field, or of the nearest section in the file."""
        if self._file is None:
            return "the configuration"
        at = nearest_position(path, positions(self._file.read_text(encoding="utf-8")))
        name = self._file.name
        return name if at is None else f"{name}:{at.line}:{at.column}"

    def reader(self, table: str) -> Reader:
        """Return the words of remedies for a table's pipeline."""
        return pipeline_reader(table, str(self._file or "FILE"))

    def select_engine(self, table: str) -> Engine:
        """Return the engine of a configured table on this machine; may start Java."""
        section = self.tables[table]
        return self.resolve_engine(section.engine, section.sink.engines)

    def resolve_engine(
        self, engine: Engine | None, engines: frozenset[str] = SinkConfig.engines
    ) -> Engine:
        """Return the engine of a section whose sink can be written by `engines`."""
        engine = engine or self.engine
        if engine != "auto":
            return engine
        self._auto = self._auto or choose_engine()
        return self._auto[0] if self._auto[0] in engines else "spark"

    def explain_engines(self) -> tuple[str, str]:
        """Return the engines of the tables, and why they run them."""
        engines = {self.select_engine(name) for name in self.tables} or {self.resolve_engine(None)}
        return ", ".join(sorted(engines)), self._auto[1] if self._auto else "it is configured"

    @field_validator("state")
    @classmethod
    def _is_served(cls, path: str) -> str:
        parse_bucket(path, "a prefix of its own: {}://bucket/prefix")
        return path

    @field_validator("tables", mode="before")
    @classmethod
    def _read_sinks(cls, tables: object) -> object:
        if not isinstance(tables, dict):
            return tables
        return {name: _with_sink(str(name), table) for name, table in tables.items()}

    @field_validator("tables")
    @classmethod
    def _split_sinks(cls, tables: dict[str, TableConfig]) -> dict[str, TableConfig]:
        split = [split_sinks(name, table) for name, table in tables.items()]
        return {name: table for pipelines in split for name, table in pipelines.items()}

    @field_validator("discover", mode="before")
    @classmethod
    def _read_templates(cls, groups: object) -> object:
        if not isinstance(groups, dict):
            return groups
        return {name: _with_template(str(name), group) for name, group in groups.items()}

    @model_validator(mode="after")
    def _tables_keep_apart(self) -> Config:
        if not self.tables and not self.discover:
            raise ConfigError(
                "tables is missing or empty, and so is discover: there is nothing to do.",
                remedy="Name at least one table, or a pattern that finds some.",
                where="tables",
            )
        seen: dict[str, str] = {}
        self._check_state()
        for name, table in self.tables.items():
            _check_engine(where_of(name), table.engine or self.engine, table)
            check_no_conflict(seen, name, table)
        for name, group in self.discover.items():
            _check_template(name, group, self.engine)
        return self

    def _check_state(self) -> None:
        """Reject Spark's checkpoints in a bucket: Spark would need its own file system for it."""
        if not is_remote(self.state):
            return
        streams = [where_of(name) for name, table in self.tables.items() if table.is_stream]
        streams += [
            f"discover.{name}.template"
            for name, group in self.discover.items()
            if group.template.is_stream
        ]
        for where in streams:
            raise ConfigError(
                f"state is {self.state}, but {where} has a sink of Spark's own, whose checkpoint"
                " needs a folder.",
                remedy=f"Give {where} another sink, or set state to a folder.",
                where="state",
            )


def check_no_conflict(seen: dict[str, str], name: str, table: TableConfig) -> None:
    """Check that a table does not conflict with those in `seen`, and add it there.

    Raises:
        ConfigError: It has the name or the destination of another table.
    """
    keys = [f"the name {name.casefold()!r}"]
    if table.sink.location():
        keys.append(f"the location {table.sink.location()!r}")
    for key in keys:
        if key in seen:
            raise ConfigError(
                f"{where_of(name)} and {where_of(seen[key])} both have {key}, so their output or"
                " state would mix.",
                remedy="Give each its own.",
                where=where_of(name),
            )
    seen.update(dict.fromkeys(keys, name))


def _with_template(name: str, group: Any) -> object:
    where = f"discover.{name}.template"
    template = group.get("template") if isinstance(group, dict) else None
    return {**group, "template": _read(where, template)} if isinstance(template, dict) else group


def _read(where: str, table: dict[str, Any]) -> dict[str, Any]:
    """Return a table's section with sinks and `maintenance` parsed by their own classes."""
    read = dict(table)
    read_sinks(where, read)
    if isinstance(requested := table.get("maintenance"), dict):
        table_format = table.get("format", AUTO)
        # An unknown format is reported by the field `format`.
        named = table_format if table_format in format_names() else AUTO
        read["maintenance"] = read_maintenance(f"{where}.maintenance", requested, named)
    return read


def _check_template(name: str, group: DiscoverConfig, engine: str) -> None:
    where = f"discover.{name}.template"
    first, second = (
        split_sinks(table, group.template.table(table, f"/{table}", where=where)).values()
        for table in ("first", "second")
    )
    for one, other in zip(first, second, strict=True):
        _check_engine(where, group.template.engine or engine, one)
        if one.sink.location() and one.sink.location() == other.sink.location():
            raise ConfigError(
                f"{where}.sink gives every table the location {one.sink.location()!r}, so their"
                " output would mix.",
                remedy="Write {name} in it, which is the table's name.",
                where=f"{where}.sink",
            )


def _with_sink(name: str, table: Any) -> object:
    where = f"tables.{name}"
    if not is_table_name(name):
        raise ConfigError(
            f"{where}: {name!r} is not a valid table name, because names become file names and"
            " labels.",
            where=where,
            remedy="Use up to 100 letters, digits, `.`, `_` and `-`, first a letter or digit.",
        )
    if not isinstance(table, dict):
        return table
    is_delivered = table.get("sink") is not None or table.get("sinks")
    if not is_delivered and "path" in table and table.get("maintenance") is None:
        raise ConfigError(
            f"{where}.sink is required: where the changes go.",
            where=f"{where}.sink",
            remedy="A table without a sink needs `maintenance`: then its log is maintained only.",
        )
    return _read(where, table)


def _check_engine(where: str, engine: str, table: TableConfig) -> None:
    """Check that an engine supports the section at `where`."""
    sink = table.sink
    for field in ("on_gap", "on_corrupt_commit"):
        if table.is_stream and getattr(table, field) != "stop":
            raise ConfigError(
                f"{where}.{field} is {getattr(table, field)!r}, but a sink of Spark's own has the"
                " offset in its checkpoint, which cannot leave anything out.",
                remedy=f"Choose another sink, or set {field} to stop.",
                where=f"{where}.{field}",
            )
    if table.is_stream and table.reads_net:
        field = "net" if table.net is not None else "changes"
        raise ConfigError(
            f"{where}.{field} requests several commits as one difference, which Spark's own sinks"
            " do not receive.",
            remedy=f"Choose another sink, or leave {field} out.",
            where=f"{where}.{field}",
        )
    if engine != "auto" and engine not in sink.engines:
        raise ConfigError(
            f"{where}.sink.kind is {sink.kind!r}, which the {engine} engine cannot write to.",
            remedy=f"Set {where}.engine to {' or '.join(sorted(sink.engines))}.",
            where=f"{where}.sink.kind",
        )
