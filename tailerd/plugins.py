"""The stable names for plug-ins: formats, stores, sinks and value formats of others.

A plug-in is a distribution with an entry point in the group of its kind (`tailerd.formats`,
`tailerd.stores`, `tailerd.sinks`, `tailerd.value_formats`): `tailerd help architecture`. Names in
this module keep their meaning from one minor version to the next; other modules of tailerd may
change with any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import (
    ChangeMode,
    ChangeSourceKind,
    ChangeTask,
    ChangeType,
    TaskGroup,
)
from tailerd.changefeed.column_filter import UNKNOWN, ColumnFilter, may_pass
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT, BatchLimit, ReadLimit
from tailerd.changefeed.offset import BEFORE_ALL, ConsecutiveVersions, Offset, Phase, Version
from tailerd.changefeed.points import StartWord, parse_point, parse_start, to_ms
from tailerd.changefeed.row_positions import RowPositions
from tailerd.errors import (
    BugError,
    ConfigError,
    FileExistsAlreadyError,
    FileMissingError,
    MissingExtraError,
    MissingVersionError,
    NotATableError,
    SinkError,
    StorageError,
    TableError,
    TableRecreatedError,
    TailerdError,
    UnsupportedFeatureError,
    UsageError,
)
from tailerd.formats.base import (
    Backlog,
    Capabilities,
    ChangeSource,
    CommitNames,
    History,
    OpenRequest,
    Ordering,
    SchemaStep,
    TableFormat,
    TableIdentity,
    TaskReader,
)
from tailerd.formats.comparing_source import open_log
from tailerd.formats.inspection import Inspector
from tailerd.formats.parts import OptionalParts
from tailerd.formats.table_log import StepPlan, TableLog
from tailerd.records.base import (
    Envelope,
    FormatOptions,
    Header,
    RecordPart,
    Records,
    RecordSchema,
    SchemaRegistry,
)
from tailerd.remedies import RESET_PIPELINE
from tailerd.sinks.base import Delivery, RemoteDelivery, RowWriter, Sink, WritesRemotely
from tailerd.sinks.record_formats import TableRecords
from tailerd.sinks.resources import SinkResources
from tailerd.storage.base import FileMeta, ObjectStore, RemoteFile, StoreProvider
from tailerd.storage.stores import Stores
from tailerd.storage.table_location import TableLocation, locate_table

if TYPE_CHECKING:
    from tailerd.config import SinkConfig

__all__ = [
    "BEFORE_ALL",
    "DEFAULT_BATCH_LIMIT",
    "RESET_PIPELINE",
    "UNKNOWN",
    "Backlog",
    "BatchLimit",
    "BugError",
    "Capabilities",
    "ChangeBatch",
    "ChangeMode",
    "ChangeSource",
    "ChangeSourceKind",
    "ChangeTask",
    "ChangeType",
    "ColumnFilter",
    "CommitNames",
    "ConfigError",
    "ConsecutiveVersions",
    "Delivery",
    "Envelope",
    "FileExistsAlreadyError",
    "FileMeta",
    "FileMissingError",
    "FormatOptions",
    "Header",
    "History",
    "Inspector",
    "MissingExtraError",
    "MissingVersionError",
    "NotATableError",
    "ObjectStore",
    "Offset",
    "OpenRequest",
    "OptionalParts",
    "Ordering",
    "Phase",
    "ReadLimit",
    "RecordPart",
    "RecordSchema",
    "Records",
    "RemoteDelivery",
    "RemoteFile",
    "RowPositions",
    "RowWriter",
    "SchemaRegistry",
    "SchemaStep",
    "Sink",
    "SinkConfig",
    "SinkError",
    "SinkResources",
    "StartWord",
    "StepPlan",
    "StorageError",
    "StoreProvider",
    "Stores",
    "TableError",
    "TableFormat",
    "TableIdentity",
    "TableLocation",
    "TableLog",
    "TableRecords",
    "TableRecreatedError",
    "TailerdError",
    "TaskGroup",
    "TaskReader",
    "UnsupportedFeatureError",
    "UsageError",
    "Version",
    "WritesRemotely",
    "locate_table",
    "may_pass",
    "open_log",
    "parse_point",
    "parse_start",
    "to_ms",
]


def __getattr__(name: str) -> object:
    """Load models of configuration when one is used: processes that read rows have none."""
    if name == "SinkConfig":
        from tailerd.config import SinkConfig

        return SinkConfig
    raise AttributeError(f"module 'tailerd.plugins' has no attribute {name!r}")
