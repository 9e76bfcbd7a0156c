"""The sections of a configuration file. The section of a sink is beside the sink."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from tailerd.config.explain import explain, prefixed
from tailerd.config.values import Address, Listen, Seconds, SizeBytes, Start, parse_address
from tailerd.errors import ConfigError
from tailerd.registry import sink_config_class, sink_kinds

Engine = Literal["spark", "arrow"]

ENV_PREFIX = "TAILERD__"

_TABLE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SECTION = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


class SinkConfig(BaseModel):
    """Base of every sink's section; a kind adds its own fields.

    Attributes:
        engines: The engines that can write to this kind.
        implementation: `module:Class` of the `Sink` for the Arrow engine; empty where only Spark
            can write to it.
    """

    model_config = _SECTION
    engines: ClassVar[frozenset[str]] = frozenset({"spark", "arrow"})
    implementation: ClassVar[str] = ""

    kind: str = Field(description="Which sink.", examples=["file"])

    def place(self) -> str:
        """Return what two tables must not share, or nothing if they may share this sink."""
        return ""


class HttpConfig(BaseModel):
    """The HTTP listener: /metrics, /healthz, /readyz, /status."""

    model_config = _SECTION

    listen: Listen | None = Field(
        default="127.0.0.1:9464",
        description="Address of the read-only pages, host:port. Port 0 takes a free one; null"
        " switches the listener off.",
        examples=["127.0.0.1:9464"],
    )

    def address(self) -> Address | None:
        """Return the address, None when the listener is off."""
        return None if self.listen is None else parse_address(self.listen)


class SparkConfig(BaseModel):
    """The Spark session of the tables with `engine: spark`."""

    model_config = _SECTION

    master: str = Field(default="local[*]", description="Spark master.", examples=["local[2]"])
    conf: dict[str, str] = Field(
        default_factory=dict,
        description="Spark properties, passed on as they are.",
        examples=[{"spark.sql.shuffle.partitions": "4"}],
        json_schema_extra={"additionalProperties": {"type": ["string", "number", "boolean"]}},
    )

    @field_validator("conf", mode="before")
    @classmethod
    def _spell_as_spark_does(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        # YAML knows booleans; Spark knows "true" and "false".
        return {k: str(v).lower() if isinstance(v, bool) else v for k, v in value.items()}


class TableConfig(BaseModel):
    """One table and where its changes go."""

    model_config = _SECTION

    path: str = Field(
        min_length=1,
        description="Folder of the table, or a file:// URL. A relative one counts from the current"
        " directory of the process.",
        examples=["/data/orders"],
    )
    create: Literal["demo"] | None = Field(
        default=None,
        description="`demo` makes a small Delta table at `path` when there is none.",
        examples=["demo"],
    )
    engine: Engine | None = Field(
        default=None, description="Overrides the engine of the file.", examples=["arrow"]
    )
    start: Start = Field(
        default="latest",
        alias="from",
        description="Where to begin when no offset is saved: `snapshot` (every row, then what"
        " follows), `latest` (only what comes next), a version (inclusive) or a timestamp (first"
        " commit at or after it).",
        examples=["snapshot"],
    )
    changes: Literal["auto", "cdf", "files"] = Field(
        default="auto",
        description="How rows are found: Delta's change data feed, the files of each commit, or"
        " whichever the commit offers.",
        examples=["auto"],
    )
    max_files_per_batch: int = Field(
        default=1000, ge=1, le=1_000_000, description="Files one step admits.", examples=[1000]
    )
    max_bytes_per_batch: SizeBytes = Field(
        default=256 * 1024**2,
        ge=1024,
        le=1024**4,
        description="Bytes one step admits; the first file always is.",
        examples=["256MiB"],
    )
    poll_interval: Seconds = Field(
        default=2.0,
        ge=0.01,
        le=86400,
        description="Longest time between two looks at the log, with a unit; a change seen by the"
        " file watcher is looked at at once.",
        examples=["2s"],
    )
    on_gap: Literal["stop", "snapshot", "latest"] = Field(
        default="stop",
        description="What to do where the next version is gone or the table was dropped and created"
        " again: `stop`, or go on with a new `snapshot` or with what comes next (`latest`). What is"
        " missing is told to the log, the metrics, /status and the sink. Arrow engine.",
        examples=["stop"],
    )
    on_poison: Literal["stop", "skip-and-record"] = Field(
        default="stop",
        description="What to do with a commit whose data, change or deletion-vector file is missing"
        " or damaged: `stop`, or deliver nothing of it and record it in <state>/poison"
        " (`skip-and-record`, which reads every commit twice). Arrow engine.",
        examples=["stop"],
    )
    max_attempts: int | None = Field(
        default=None,
        ge=1,
        description="Failed attempts in a row after which the pipeline stops; without it, what may"
        " pass is tried again for ever.",
        examples=[10],
    )
    allowed_paths: list[str] = Field(
        default_factory=list,
        description="Folders outside the table's own that its log may name files in.",
        examples=[["/data/shared"]],
    )
    sink: SerializeAsAny[SinkConfig] = Field(description="Where the changes go.")

    @field_validator("path")
    @classmethod
    def _is_local(cls, path: str) -> str:
        return _refuse_other_stores(path)


class Config(BaseSettings):
    """The whole configuration of `tailerd run`. Built by `load_config`, or from nested dicts."""

    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, env_prefix=ENV_PREFIX, validate_default=False
    )

    engine: Engine = Field(
        default="spark",
        description="What runs the pipelines: a local Spark session, or this process itself.",
        examples=["spark"],
    )
    state: str = Field(
        default="./state",
        min_length=1,
        description="Folder of offsets and Spark checkpoints; one daemon at a time.",
        examples=["./state"],
    )
    shutdown_timeout: Seconds = Field(
        default=30.0,
        ge=0.0,
        le=3600,
        description="How long to finish what is in flight after SIGTERM, with a unit.",
        examples=["30s"],
    )
    http: HttpConfig = Field(default_factory=HttpConfig, description="The HTTP listener.")
    spark: SparkConfig = Field(default_factory=SparkConfig, description="The Spark session.")
    tables: dict[str, TableConfig] = Field(
        min_length=1, description="The tables, by a name of your choice."
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
        """Take what `load_config` merged and nothing else."""
        return (init_settings,)

    def engine_of(self, table: str) -> Engine:
        """Return the engine of a configured table."""
        return self.tables[table].engine or self.engine

    @field_validator("state")
    @classmethod
    def _is_local(cls, path: str) -> str:
        return _refuse_other_stores(path)

    @field_validator("tables", mode="before")
    @classmethod
    def _read_sinks(cls, tables: object) -> object:
        if not isinstance(tables, dict):
            return tables
        return {name: _with_sink(str(name), table) for name, table in tables.items()}

    @model_validator(mode="after")
    def _tables_keep_apart(self) -> Config:
        seen: dict[str, str] = {}
        for name, table in self.tables.items():
            _check_engine(name, self.engine_of(name), table)
            keys = [f"the name {name.casefold()!r}"]
            if table.sink.place():
                keys.append(f"the place {table.sink.place()!r}")
            for key in keys:
                if key in seen:
                    raise ConfigError(
                        f"tables.{name} and tables.{seen[key]} both have {key}, so their output or"
                        " state would mix.",
                        hint="Give each its own.",
                    )
                seen[key] = name
        return self


def _with_sink(name: str, table: Any) -> object:
    where = f"tables.{name}"
    if not _TABLE_NAME.fullmatch(name):
        raise ConfigError(
            f"{where}: {name!r} is no table name, because names become file names and labels.",
            hint="Use up to 100 letters, digits, `.`, `_` and `-`, first a letter or digit.",
        )
    if not isinstance(table, dict):
        return table
    if "maintenance" in table:
        raise ConfigError(
            f"{where}.maintenance is not in this release: nothing would be maintained.",
            hint="Remove the section.",
        )
    sink = table.get("sink")
    return {**table, "sink": _read_sink(f"{where}.sink", sink)} if isinstance(sink, dict) else table


def _read_sink(where: str, section: dict[str, Any]) -> SinkConfig:
    kind = section.get("kind")
    if not isinstance(kind, str):
        raise ConfigError(
            f"{where}.kind is missing or no text.", hint=f"Name one of {', '.join(sink_kinds())}."
        )
    try:
        model = sink_config_class(kind)
    except ConfigError as error:
        raise ConfigError(f"{where}.kind: {error.message}", hint=error.hint) from error
    if not issubclass(model, SinkConfig):
        raise ConfigError(f"{where}.kind: the part {kind!r} brings no sink configuration.")
    try:
        return model.model_validate(section)
    except ValidationError as error:
        raise ConfigError(explain(error, model, prefixed(where))) from error


def _check_engine(name: str, engine: str, table: TableConfig) -> None:
    sink = table.sink
    for field in ("on_gap", "on_poison"):
        if engine == "spark" and getattr(table, field) != "stop":
            raise ConfigError(
                f"tables.{name}.{field} is {getattr(table, field)!r}, but Spark keeps the offset in"
                " its checkpoint and cannot leave anything out.",
                hint=f"Set tables.{name}.engine to arrow, or {field} to stop.",
            )
    if engine not in sink.engines:
        raise ConfigError(
            f"tables.{name}.sink.kind is {sink.kind!r}, which the {engine} engine cannot write to.",
            hint=f"Set tables.{name}.engine to {' or '.join(sorted(sink.engines))}.",
        )


def _refuse_other_stores(path: str) -> str:
    scheme, separator, _ = path.partition("://")
    if separator and scheme != "file":
        raise ValueError(f"{scheme}:// is not in this release; give a folder or a file:// URL")
    return path
