"""The sections of a configuration file. Each sink's section is in the sink's own package."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    Field,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_validator,
)

from tailerd.config.explain import describe_error, prefix_with
from tailerd.config.freshness import FreshnessConfig
from tailerd.config.locations import parse_bucket, refuse_credentials, refuse_other_stores
from tailerd.config.maintenance import MaintenanceConfig, read_maintenance
from tailerd.config.transforms import SECTION, TransformConfig
from tailerd.config.values import Seconds, SizeBytes, Start, TimeZone
from tailerd.errors import ConfigError
from tailerd.registry import (
    AUTO,
    format_names,
    is_remote,
    sink_config_class,
    sink_kinds,
    suggest_name,
)

Engine = Literal["auto", "spark", "arrow"]

NO_SINK = "none"
"""The kind for a missing section `sink`: the table is maintained but not delivered."""

_SEARCH_SECONDS = 60.0
_SEARCH_BUCKET_SECONDS = 600.0
_WILDCARD = re.compile(r"[*?\[]")
_TABLE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MASTER = re.compile(r"local(\[[^\]]+\])?|spark://.+|yarn|k8s://.+")


class SinkConfig(BaseModel):
    """Base of every sink's section; a kind adds its own fields.

    Attributes:
        engines: The engines that can write to this kind.
        implementation: `module:Class` of the `Sink`; empty where only Spark can write to it.
    """

    model_config = SECTION
    engines: ClassVar[frozenset[str]] = frozenset({"spark", "arrow"})
    implementation: ClassVar[str] = ""

    kind: str = Field(description="Kind of the sink.", examples=["file"])

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Return the columns of a record's key; empty without a key."""
        return ()

    def location(self) -> str:
        """Return the destination that two tables must not share; empty if they may share it."""
        return ""

    def identity_location(self) -> str:
        """Return the destination that identifies a pipeline with this kind of sink, or nothing."""
        location = self.location()
        return str(Path(location).resolve()) if location.startswith("/") else location

    def offsets_location(self) -> str:
        """Return where this sink itself stores the offset, for messages; empty if it does not."""
        return ""

    def guarantee(self) -> str:
        """Return the delivery guarantee, as a value of `delivery`."""
        return "at-least-once"

    def columns_by_field(self) -> Mapping[str, tuple[str, ...]]:
        """Return the table's columns that this sink needs, by the field that names them."""
        return {}


class SparkConfig(BaseModel):
    """The Spark session of the tables with `engine: spark`."""

    model_config = SECTION

    master: str = Field(
        default="local[*]",
        description="Spark master: `local[N]`, `spark://HOST:PORT`, `yarn` or `k8s://URL`.",
        examples=["local[2]"],
    )
    conf: dict[str, str] = Field(
        default_factory=dict,
        description="Spark properties, passed on unchanged.",
        examples=[{"spark.sql.shuffle.partitions": "4"}],
        json_schema_extra={"additionalProperties": {"type": ["string", "number", "boolean"]}},
    )

    @field_validator("master")
    @classmethod
    def _know_the_master(cls, value: str) -> str:
        if value.startswith("sc://"):
            raise ValueError(
                f"{value} is Spark Connect, whose driver is elsewhere, and queries are supervised"
                " from within their driver; name the cluster itself, or read format tailerd in a"
                " program of your own"
            )
        if not _MASTER.fullmatch(value):
            raise ValueError(
                f"{value!r} is not a Spark master; write local[N], spark://HOST:PORT, yarn or"
                " k8s://URL"
            )
        return value

    @field_validator("conf", mode="before")
    @classmethod
    def _spell_as_spark_does(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        # YAML has booleans; Spark expects "true" and "false".
        return {k: str(v).lower() if isinstance(v, bool) else v for k, v in value.items()}


Changes = Literal["auto", "compare", "cdf", "files", "net"]
GapPolicy = Literal["stop", "snapshot", "latest", "net"]


class NamedSinkConfig(TransformConfig):
    """One of several sinks of a table. Fields that it does not set are those of the table."""

    model_config = SECTION

    start: Start | None = Field(
        default=None, alias="from", description="As of a table.", examples=["snapshot"]
    )
    changes: Changes | None = Field(default=None, description="As of a table.", examples=["auto"])
    on_gap: GapPolicy | None = Field(default=None, description="As of a table.", examples=["stop"])
    sink: SerializeAsAny[SinkConfig] = Field(
        description="Where the changes go.", examples=[{"kind": "console"}]
    )


class NetConfig(BaseModel):
    """When a table's commits are read as one difference."""

    model_config = SECTION

    above_versions: int = Field(
        ge=1,
        description="With more new versions than this the newest one is compared with the one"
        " delivered last, and those between them are not read. Delta, Arrow engine.",
        examples=[100],
    )


class TableConfig(TransformConfig):
    """One table and where its changes go."""

    model_config = SECTION

    path: str = Field(
        min_length=1,
        description="Folder of the table, a file:// URL, or a URL of a bucket (s3:, az:, gs:). A"
        " relative folder counts from the current directory of the process.",
        examples=["/data/orders"],
    )
    create: Literal["demo"] | None = Field(
        default=None,
        description="`demo` creates a small Delta table at `path` if there is none.",
        examples=["demo"],
    )
    format: str = Field(
        default="auto",
        min_length=1,
        description="Format of the table, such as `delta`; `auto` recognises it when it is opened.",
        examples=["delta"],
    )
    engine: Engine | None = Field(
        default=None, description="Overrides the engine of the file.", examples=["arrow"]
    )
    start: Start = Field(
        default="latest",
        alias="from",
        description="Where to begin when no offset is saved: `snapshot` (every row, then later"
        " changes), `latest` (only later commits), a version (inclusive) or a timestamp (first"
        " commit at or after it).",
        examples=["snapshot"],
    )
    changes: Changes = Field(
        default="auto",
        description="How rows are found. `auto`: exactly the rows that changed, from the change"
        " files of a commit or, where it has none, by comparing the rows it removes with those it"
        " adds. `compare`: always by comparing, for tables whose change files are wrong. `cdf`:"
        " Delta's change data feed only. `files`: every row of removed files is deleted, every row"
        " of added files inserted. `net`: all commits up to the newest as one"
        " difference, without the states between (Delta, Arrow engine).",
        examples=["auto"],
    )
    net: NetConfig | None = Field(
        default=None,
        description="With `changes: auto`, when commits are still read as one difference.",
    )
    identity: list[str] = Field(
        default_factory=list,
        description="Columns that identify a row. Where rows are compared (`changes: auto`), a"
        " deleted and an inserted row of one commit with the same values there are the two images"
        " of an update. The sink's `key` does so too.",
        examples=[["order_id"]],
    )
    max_files_per_batch: int = Field(
        default=1000, ge=1, le=1_000_000, description="Maximum files per batch.", examples=[1000]
    )
    max_bytes_per_batch: SizeBytes = Field(
        default=256 * 1024**2,
        ge=1024,
        le=1024**4,
        description="Maximum bytes per batch; the first file is always included.",
        examples=["256MiB"],
    )
    poll_interval: Seconds | None = Field(
        default=None,
        ge=0.01,
        le=86400,
        description="Maximum time between two polls of the log, with a unit; a change seen by the"
        " file watcher is read at once. Default: 30 s if inotify watches a disk of this machine"
        " (longer for more than 240 tables), 2 s otherwise.",
        examples=["2s"],
    )
    on_gap: GapPolicy = Field(
        default="stop",
        description="What to do if the next version or a data file of it no longer exists (VACUUM),"
        " or the table was dropped and created again: `stop`, or continue with a new `snapshot`,"
        " with the next commit (`latest`), or, while the version that was delivered last can still"
        " be read, with one difference from there to the newest (`net`, Delta and Lance). Gaps are"
        " reported in the log, metrics, /status and the sink.",
        examples=["stop"],
    )
    on_corrupt_commit: Literal["stop", "skip-and-record"] = Field(
        default="stop",
        description="What to do with a commit whose data, change or deletion-vector file is missing"
        " or damaged: `stop`, or skip it and record it in <state>/corrupt_commits"
        " (`skip-and-record`, which reads every commit twice). Arrow engine.",
        examples=["stop"],
    )
    max_attempts: int | None = Field(
        default=None,
        ge=1,
        description="Failed attempts in a row after which the pipeline stops; by default,"
        " transient failures are retried indefinitely.",
        examples=[10],
    )
    freshness: FreshnessConfig | None = Field(
        default=None,
        description="How late rows may be, and for which share of the time. The page shows the"
        " error budget of 30 days.",
    )
    allowed_paths: list[str] = Field(
        default_factory=list,
        description="Folders outside the table's own that its log may name files in, or symbolic"
        " links in the table may lead to.",
        examples=[["/data/shared"]],
    )
    partition_timezone: TimeZone | None = Field(
        default=None,
        description="Zone of partition timestamps that have none in the log, by its IANA name."
        " Without it they are taken as UTC, with a warning.",
        examples=["Europe/Berlin"],
    )
    format_options: dict[str, str] = Field(
        default_factory=dict,
        description="Options of the table's format: for Iceberg `branch: NAME`, for TileDB"
        " `on_late`, for Kartothek `spool: link`; for a format of another distribution, what that"
        " documents.",
        examples=[{}],
    )
    ledger: str | None = Field(
        default=None,
        min_length=1,
        description="Folder or URL of the ledger of a table without history (Kartothek), instead of"
        " the one below `state`.",
        examples=["/var/lib/tailerd/ledger/orders"],
    )
    sink: SerializeAsAny[SinkConfig] = Field(
        default=SinkConfig(kind=NO_SINK),
        description="Where the changes go; may be left out where there is `maintenance`.",
    )
    sinks: dict[str, NamedSinkConfig] = Field(
        default_factory=dict,
        description="Several sinks by a name of your choice, instead of `sink`. Each is a pipeline"
        " TABLE/SINK with its own offset, and may set `from`, `changes`, `on_gap`, `columns`,"
        " `rename`, `where`, `mask`, `mask_key`, `unchanged` and `commits` for itself.",
        examples=[{}],
    )
    maintenance: SerializeAsAny[MaintenanceConfig] | None = Field(
        default=None,
        description="Maintenance of the table's log; without this section, no maintenance is done.",
    )

    def format_settings(self) -> dict[str, object]:
        """Return the options with which the table's format is opened, by name."""
        return {**self.format_options, "partition_timezone": self.partition_timezone}

    @field_validator("format")
    @classmethod
    def _is_known(cls, name: str) -> str:
        names = (AUTO, *format_names())
        if name not in names:
            raise ValueError(f"there is no table format {name!r}. {suggest_name(name, names)}")
        return name

    @field_validator("sinks")
    @classmethod
    def _have_names(cls, sinks: dict[str, NamedSinkConfig]) -> dict[str, NamedSinkConfig]:
        for name in sinks:
            if not is_table_name(name):
                raise ValueError(
                    f"{name!r} is not a valid name of a sink: use up to 100 letters, digits, `.`,"
                    " `_` and `-`, first a letter or digit"
                )
        return sinks

    @field_validator("path")
    @classmethod
    def _is_served(cls, path: str) -> str:
        refuse_credentials(path)
        return path if is_remote(path) else refuse_other_stores(path)

    @model_validator(mode="after")
    def _has_something_to_do(self) -> Self:
        if self.create is not None and is_remote(self.path):
            raise ValueError("create: demo makes a table in a folder, and path is in a bucket")
        if self.net is not None and self.changes != "auto":
            raise ValueError(f"net goes with `changes: auto`, and changes is {self.changes!r}")
        if self.reads_net and self.on_corrupt_commit != "stop":
            raise ValueError(
                "on_corrupt_commit skips single commits, and with `net` several come as one: set it"
                " to stop"
            )
        if self.commits is not None:
            for field, value, is_whole in (
                ("from", self.start, self.start == "snapshot"),
                ("on_gap", self.on_gap, self.on_gap in ("snapshot", "net")),
                ("changes", self.changes, self.changes == "net"),
                ("net", "given", self.net is not None),
            ):
                if is_whole:
                    raise ValueError(
                        f"commits leaves out commits, and with {field}: {value} the rows of all"
                        " commits come"
                    )
        if self.has_sink and self.sinks:
            raise ValueError("it has `sink` and `sinks`: move the first below `sinks`")
        if not self.has_sink and not self.sinks and self.maintenance is None:
            raise ValueError("sink is missing: say where the changes go, or give `maintenance`")
        return self

    @property
    def pairing_columns(self) -> tuple[str, ...]:
        """Return the columns by which deletes and inserts are paired to updates; empty for none.

        Includes the columns of the records' key, because an update that changes the key must delete
        the old one first.
        """
        if not self.identity:
            return self.sink.key_columns
        return tuple(dict.fromkeys((*self.identity, *self.sink.key_columns)))

    @property
    def reads_net(self) -> bool:
        """Whether several commits may be read as one difference."""
        return self.changes == "net" or self.net is not None or self.on_gap == "net"

    @property
    def is_stream(self) -> bool:
        """Whether Spark itself writes to the sink, and stores the offset."""
        return self.has_sink and not self.sink.implementation

    @property
    def has_sink(self) -> bool:
        """Whether the table's changes are delivered; otherwise its log is only maintained."""
        return self.sink.kind != NO_SINK


class TemplateConfig(TableConfig):
    """What all tables of one pattern have in common; `{name}` in its texts is the table's name."""

    path: str = Field(default="", description="Set by the pattern.")

    @model_validator(mode="after")
    def _check_template(self) -> TemplateConfig:
        for name in ("path", "create"):
            if name in self.model_fields_set:
                raise ValueError(f"`{name}` is not for a template: each table found has its own")
        return self

    def table(self, name: str, path: str, *, where: str = "") -> TableConfig:
        """Return the section of one discovered table.

        Args:
            name, path: Of the table.
            where: The template's path in the configuration, for errors; may be empty.

        Raises:
            ConfigError: With this name, a field is invalid.
        """
        section = _fill_field(self.model_dump(by_alias=True, exclude_unset=True), name)
        filled = {**section, "path": path}
        read_sinks(where, filled)
        if isinstance(requested := filled.get("maintenance"), dict):
            at = f"{where}.maintenance".removeprefix(".")
            filled["maintenance"] = read_maintenance(at, requested, self.format)
        try:
            return TableConfig.model_validate(filled)
        except ValidationError as error:
            location = prefix_with(where) if where else str
            raise describe_error(error, TableConfig, location, where) from None


class DiscoverConfig(BaseModel):
    """Tables found by a pattern: every folder that matches it and has a `_delta_log`."""

    model_config = SECTION

    path: str = Field(
        min_length=1,
        description="Pattern of table folders, with `*`, `?` and `[...]`, in a folder or a bucket."
        " A table is named after its folder; where that is not a wildcard, after all path parts"
        " from the first wildcard on: /lake/*/orders finds eu-orders. A TileDB group is a pattern"
        " of its arrays.",
        examples=["/lake/*"],
    )
    every: Seconds | None = Field(
        default=None,
        ge=0.1,
        le=86400,
        description="Time between two searches for added or removed tables, with a unit. Without"
        " it 60 s, and 10 minutes in a bucket.",
        examples=["60s"],
    )
    template: TemplateConfig = Field(
        description="Fields of each table found, as in `tables` but without `path`; `{name}` in a"
        " text is the table's name."
    )

    @field_validator("path")
    @classmethod
    def _is_served(cls, path: str) -> str:
        if _WILDCARD.search(parse_bucket(path, "a pattern of folders in it: {}://bucket/lake/*")):
            raise ValueError(
                "a bucket's name cannot be a pattern: write one section for each bucket"
            )
        return path

    @property
    def interval_seconds(self) -> float:
        """Time between two searches."""
        if self.every is not None:
            return self.every
        return _SEARCH_BUCKET_SECONDS if is_remote(self.path) else _SEARCH_SECONDS


def is_table_name(name: str) -> bool:
    """Return whether `name` is a valid table name, for use in files and labels."""
    return _TABLE_NAME.fullmatch(name) is not None


def _fill_field(value: Any, name: str) -> Any:
    if isinstance(value, str):
        return value.replace("{name}", name)
    if isinstance(value, dict):
        return {key: _fill_field(item, name) for key, item in value.items()}
    return [_fill_field(item, name) for item in value] if isinstance(value, list) else value


def split_sinks(name: str, table: TableConfig) -> dict[str, TableConfig]:
    """Return the pipelines of a table by name: itself, or one for each of its sinks.

    A table with several sinks and maintenance is also there without a sink.

    Raises:
        ConfigError: A field of a sink does not fit the table's.
    """
    if not table.sinks:
        return {name: table}
    apart = {"sink", "sinks", "maintenance"}
    common = table.model_dump(by_alias=True, exclude_unset=True, exclude=apart)
    pipelines = {}
    if table.maintenance is not None:
        pipelines[name] = table.model_copy(update={"sinks": {}})
    for each, section in table.sinks.items():
        own = section.model_dump(by_alias=True, exclude_unset=True, exclude=apart)
        where = where_of(f"{name}/{each}")
        try:
            pipelines[f"{name}/{each}"] = TableConfig.model_validate(
                {**common, **own, "sink": section.sink}
            )
        except ValidationError as error:
            raise describe_error(error, TableConfig, prefix_with(where), where) from None
    return pipelines


def section_of(pipeline: str) -> tuple[str, ...]:
    """Return the path of a pipeline's section in the configuration."""
    table, _, sink = pipeline.partition("/")
    return ("tables", table, "sinks", sink) if sink else ("tables", table)


def where_of(pipeline: str) -> str:
    """Return the path of a pipeline's section as text."""
    return ".".join(section_of(pipeline))


def read_sinks(where: str, table: dict[str, Any]) -> None:
    """Parse the sinks of a table's section with their kinds' models, in it.

    Raises:
        ConfigError: As `read_sink`.
    """
    if isinstance(sink := table.get("sink"), dict):
        table["sink"] = read_sink(f"{where}.sink".removeprefix("."), sink)
    if isinstance(sinks := table.get("sinks"), dict):
        table["sinks"] = {
            name: {**each, "sink": read_sink(f"{where}.sinks.{name}.sink", each["sink"])}
            if isinstance(each, dict) and isinstance(each.get("sink"), dict)
            else each
            for name, each in sinks.items()
        }


def read_sink(where: str, section: dict[str, Any]) -> SinkConfig:
    """Parse the section of a sink with its kind's model; `where` is its path, for errors.

    Raises:
        ConfigError: The kind is unknown, or a field is invalid.
    """
    kind = section.get("kind")
    if not isinstance(kind, str):
        raise ConfigError(
            f"{where}.kind is missing or not a text.",
            remedy=f"Name one of {', '.join(sink_kinds())}.",
            where=f"{where}.kind",
        )
    try:
        model = sink_config_class(kind)
    except ConfigError as error:
        raise ConfigError(
            f"{where}.kind: {error.message}", remedy=error.remedy, where=f"{where}.kind"
        ) from error
    if not issubclass(model, SinkConfig):
        raise ConfigError(
            f"{where}.kind: the part {kind!r} brings no sink configuration.", where=f"{where}.kind"
        )
    try:
        return model.model_validate(section)
    except ValidationError as error:
        raise describe_error(error, model, prefix_with(where), where) from None
