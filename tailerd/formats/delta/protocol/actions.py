"""Every action of the protocol, decoded from a line of JSON.

Unknown actions and fields are ignored, as the protocol requires. `stats` and `partitionValues` of
file actions stay raw bytes until they are needed: they are most of a commit's size. `commitInfo` is
free-form, so it stays raw too and is parsed leniently.

Protocol: PROTOCOL.md#actions
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from tailerd.errors import CorruptLogError

NO_RAW = Raw(b"")

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors raised when decoding invalid JSON, or JSON of another shape."""


Bytes = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""Range of the index's signed 64-bit numbers; larger values are not valid file sizes."""


class DeletionVectorDescriptor(Struct, rename="camel", gc=False, frozen=True):
    """Where the deletion vector of a file is stored (#deletion-vector-descriptor-schema)."""

    storage_type: str
    path_or_inline_dv: str
    size_in_bytes: int
    cardinality: int
    offset: int | None = None

    @property
    def unique_id(self) -> str:
        """Identity of the vector for one file."""
        if self.offset is None:
            return self.storage_type + self.path_or_inline_dv
        return f"{self.storage_type}{self.path_or_inline_dv}@{self.offset}"


class FileAction(Struct, rename="camel", gc=False):
    """The body of `add`, `remove` or `cdc`; each uses some of the fields."""

    path: str
    data_change: bool = True
    size: Bytes | None = None
    partition_values: Raw = NO_RAW
    deletion_vector: DeletionVectorDescriptor | None = None
    stats: Raw = NO_RAW
    modification_time: int = 0
    deletion_timestamp: int | None = None
    base_row_id: int | None = None
    default_row_commit_version: int | None = None
    clustering_provider: str | None = None


class Format(Struct, gc=False, frozen=True):
    """Encoding of the table's files."""

    provider: str = "parquet"
    options: dict[str, str] = {}


class Metadata(Struct, rename="camel", frozen=True):
    """`metaData` (#change-metadata).

    Attributes:
        schema_string: Null, absent or empty if a table is created without columns.
    """

    id: str
    schema_string: str | None = None
    format: Format = Format()
    name: str | None = None
    description: str | None = None
    partition_columns: list[str] = []
    configuration: dict[str, str] = {}
    created_time: int | None = None

    @property
    def schema_text(self) -> str:
        """The schema; empty if the table has no columns yet."""
        return self.schema_string or ""


class Protocol(Struct, rename="camel", frozen=True):
    """`protocol` (#protocol-evolution)."""

    min_reader_version: int
    min_writer_version: int
    reader_features: list[str] | None = None
    writer_features: list[str] | None = None


class Transaction(Struct, rename="camel", gc=False, frozen=True):
    """`txn` (#transaction-identifiers)."""

    app_id: str
    version: int
    last_updated: int | None = None


class DomainMetadata(Struct, rename="camel", gc=False, frozen=True):
    """`domainMetadata` (#domain-metadata)."""

    domain: str
    configuration: str = ""
    removed: bool = False


class Sidecar(Struct, rename="camel", gc=False, frozen=True):
    """`sidecar`, in V2 checkpoints only (#sidecar-file-information)."""

    path: str
    size_in_bytes: int = 0
    modification_time: int = 0


class CheckpointMetadata(Struct, gc=False, frozen=True):
    """`checkpointMetadata`, in V2 checkpoints only."""

    version: int


class Line(Struct, gc=False):
    """One line of a commit, compaction or JSON checkpoint: exactly one field is set, or none."""

    add: FileAction | None = None
    remove: FileAction | None = None
    cdc: FileAction | None = None
    meta_data: Metadata | None = msgspec.field(default=None, name="metaData")
    protocol: Protocol | None = None
    txn: Transaction | None = None
    domain_metadata: DomainMetadata | None = msgspec.field(default=None, name="domainMetadata")
    commit_info: Raw = msgspec.field(default=NO_RAW, name="commitInfo")
    sidecar: Sidecar | None = None
    checkpoint_metadata: CheckpointMetadata | None = msgspec.field(
        default=None, name="checkpointMetadata"
    )


class CommitInfo(Struct, frozen=True):
    """The fields of `commitInfo` that tailerd uses; all of them are optional."""

    operation: str = ""
    in_commit_timestamp: int | None = None
    operation_metrics: dict[str, str] = {}
    operation_parameters: dict[str, str] = {}
    engine_info: str = ""
    user_metadata: str = ""
    txn_id: str = ""
    tags: dict[str, str] = {}

    @classmethod
    def from_json(cls, raw: bytes) -> CommitInfo:
        """Parse free-form provenance; a field of an unexpected shape counts as absent."""
        fields = _object(raw)
        timestamp = fields.get("inCommitTimestamp")
        return cls(
            operation=_text(fields.get("operation")),
            in_commit_timestamp=timestamp if type(timestamp) is int else None,
            operation_metrics=_texts(fields.get("operationMetrics")),
            operation_parameters=_texts(fields.get("operationParameters")),
            engine_info=_text(fields.get("engineInfo")),
            user_metadata=_text(fields.get("userMetadata")),
            txn_id=_text(fields.get("txnId")),
            tags=_texts(fields.get("tags")),
        )


def _object(raw: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(raw) if raw else {}
    except UNREADABLE:
        return {}
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {str(key): item if isinstance(item, str) else str(item) for key, item in value.items()}


_PROPERTY_MAPS = ("configuration", "options")


def plain_action(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a non-file action without nulls, and with its properties as texts.

    Some writers serialize absent fields as nulls, and properties as numbers or booleans; Delta
    Spark reads both.
    """
    plain: dict[str, Any] = {}
    for key, value in body.items():
        if value is None:
            continue
        if key in _PROPERTY_MAPS and isinstance(value, dict):
            known = {name: item for name, item in value.items() if item is not None}
            plain[key] = {name: _scalar_text(item) for name, item in known.items()}
        else:
            plain[key] = plain_action(value) if isinstance(value, dict) else value
    return plain


def plain_line(text: bytes) -> bytes:
    """Return a line of the log whose actions are as `plain_action` has them.

    Raises:
        UNREADABLE: It is not JSON.
    """
    line = msgspec.json.decode(text)
    if not isinstance(line, dict):
        return text
    for kind, body in line.items():
        if kind != "commitInfo" and isinstance(body, dict):
            values = body.get("partitionValues")
            line[kind] = plain_action(body) | (
                {"partitionValues": values} if isinstance(values, dict) else {}
            )
    return msgspec.json.encode(line)


def _scalar_text(value: object) -> object:
    return msgspec.json.encode(value).decode() if isinstance(value, bool | int | float) else value


_PARTITION_VALUES = msgspec.json.Decoder(dict[str, str | None] | None)
_SCALARS = msgspec.json.Decoder(dict[str, Raw])


def decode_partition_values(action: FileAction) -> tuple[tuple[str, str | None], ...]:
    """Decode `partitionValues` as (physical name, serialized value) pairs; empty if absent.

    A number or boolean is taken as its text, as in Delta Spark.

    Raises:
        CorruptLogError: They are not a map of texts.
    """
    if not action.partition_values:
        return ()
    try:
        return tuple((_PARTITION_VALUES.decode(action.partition_values) or {}).items())
    except msgspec.ValidationError as error:
        with suppress(*UNREADABLE):
            raw = _SCALARS.decode(action.partition_values)
            if not any(bytes(value)[:1] in (b"[", b"{") for value in raw.values()):
                return tuple((name, _serialize(bytes(value))) for name, value in raw.items())
        raise _refuse_partition_values(action, error) from error
    except UNREADABLE as error:
        raise _refuse_partition_values(action, error) from error


def _serialize(raw: bytes) -> str | None:
    if raw[:1] == b'"' or raw == b"null":
        value: str | None = msgspec.json.decode(raw)
        return value
    return raw.decode()


def _refuse_partition_values(action: FileAction, error: Exception) -> CorruptLogError:
    return CorruptLogError(
        f"The partition values of {action.path!r} are not a map of texts: {error}.",
        remedy="The writer is broken: restore the log entry from a backup.",
    )


class _Stats(Struct, rename="camel", gc=False):
    num_records: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None


_STATS_TEXT = msgspec.json.Decoder(str | None)
_STATS = msgspec.json.Decoder(_Stats)


def num_records_in(stats: str | bytes | None) -> int | None:
    """Return `numRecords` of a statistics text; None if there is none, or it is unreadable.

    Statistics are optional everywhere, so unreadable ones count as absent.
    """
    if not stats:
        return None
    try:
        return _STATS.decode(stats).num_records
    except UNREADABLE:
        return None


def read_num_records(action: FileAction) -> int | None:
    """Return the physical number of rows in the file; None without statistics."""
    if not action.stats:
        return None
    try:
        return num_records_in(_STATS_TEXT.decode(action.stats))
    except UNREADABLE:
        return None
