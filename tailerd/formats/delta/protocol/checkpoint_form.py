"""Determines the columns of a table's checkpoint, by the protocol and the table's properties.

Protocol: PROTOCOL.md#checkpoint-schema, #checkpoints
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tailerd.errors import CorruptLogError
from tailerd.formats.delta.protocol import table_properties as properties
from tailerd.formats.delta.protocol.full_actions import FileRow
from tailerd.formats.delta.protocol.schema import VOID, arrow_type, parse_schema
from tailerd.formats.delta.protocol.snapshot import TableState
from tailerd.formats.delta.protocol.statistics_columns import statistics_type

Types = Mapping[str, pa.DataType]

TEXT_MAP = pa.map_(pa.string(), pa.string())
VECTOR = pa.struct(
    {
        "storageType": pa.string(),
        "pathOrInlineDv": pa.string(),
        "offset": pa.int32(),
        "sizeInBytes": pa.int32(),
        "cardinality": pa.int64(),
    }
)
ADD_TYPES: Types = {
    "path": pa.string(),
    "partitionValues": TEXT_MAP,
    "size": pa.int64(),
    "modificationTime": pa.int64(),
    "dataChange": pa.bool_(),
    "tags": TEXT_MAP,
    "deletionVector": VECTOR,
    "baseRowId": pa.int64(),
    "defaultRowCommitVersion": pa.int64(),
    "clusteringProvider": pa.string(),
}
REMOVE_TYPES: Types = {
    "path": pa.string(),
    "deletionTimestamp": pa.int64(),
    "dataChange": pa.bool_(),
    "extendedFileMetadata": pa.bool_(),
    "partitionValues": TEXT_MAP,
    "size": pa.int64(),
    "deletionVector": VECTOR,
    "baseRowId": pa.int64(),
    "defaultRowCommitVersion": pa.int64(),
}
OTHER_TYPES: Mapping[str, Types] = {
    "txn": {"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()},
    "metaData": {
        "id": pa.string(),
        "name": pa.string(),
        "description": pa.string(),
        "format": pa.struct({"provider": pa.string(), "options": TEXT_MAP}),
        "schemaString": pa.string(),
        "partitionColumns": pa.list_(pa.string()),
        "configuration": TEXT_MAP,
        "createdTime": pa.int64(),
    },
    "protocol": {
        "minReaderVersion": pa.int32(),
        "minWriterVersion": pa.int32(),
        "readerFeatures": pa.list_(pa.string()),
        "writerFeatures": pa.list_(pa.string()),
    },
    "domainMetadata": {
        "domain": pa.string(),
        "configuration": pa.string(),
        "removed": pa.bool_(),
    },
}
STATS, STATS_PARSED, PARTITIONS_PARSED = "stats", "stats_parsed", "partitionValues_parsed"
_OF_ADDS_ALONE = frozenset({*ADD_TYPES, STATS, STATS_PARSED, PARTITIONS_PARSED})
# VACUUM needs none of these, so the protocol omits them from checkpoints.
_LEFT_OUT_OF_REMOVES = frozenset({"tags", "stats", "stats_parsed", "clusteringProvider"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointForm:
    """The columns of one checkpoint's file actions.

    Attributes:
        stats_type: Type of `stats_parsed`; None if statistics are not written as columns.
        partition_types: The same for `partitionValues_parsed`, by physical names.
        has_json_stats: Whether statistics are written as texts.
        known_stats: Type of the statistics of the schema's columns, in either form.
        extra_adds, extra_removes: Columns of unknown fields.
    """

    has_json_stats: bool
    known_stats: pa.StructType
    stats_type: pa.StructType | None
    partition_types: pa.StructType | None
    extra_adds: Types = field(default_factory=dict)
    extra_removes: Types = field(default_factory=dict)

    @classmethod
    def from_state(
        cls, state: TableState, extra_adds: Types | None = None, extra_removes: Types | None = None
    ) -> CheckpointForm:
        """Return the form that the table's properties require."""
        configuration = state.metadata.configuration
        is_struct = properties.is_enabled(configuration, properties.STATS_AS_STRUCT)
        known_stats = statistics_type(state)
        return cls(
            # An invalid value must not disable statistics, which all readers would lose.
            has_json_stats=not properties.is_disabled(configuration, properties.STATS_AS_JSON),
            known_stats=known_stats,
            stats_type=known_stats if is_struct else None,
            partition_types=_partition_types(state) if is_struct else None,
            extra_adds=extra_adds or {},
            extra_removes=extra_removes or {},
        )

    @property
    def add_type(self) -> pa.StructType:
        """Type of the column `add`."""
        members = dict(ADD_TYPES)
        if self.has_json_stats:
            members[STATS] = pa.string()
        if self.stats_type is not None:
            members[STATS_PARSED] = self.stats_type
        if self.partition_types is not None:
            members[PARTITIONS_PARSED] = self.partition_types
        return pa.struct(list({**members, **self.extra_adds}.items()))

    @property
    def remove_type(self) -> pa.StructType:
        """Type of the column `remove`."""
        return pa.struct(list({**REMOVE_TYPES, **self.extra_removes}.items()))


def _partition_types(state: TableState) -> pa.StructType | None:
    schema = parse_schema(state.metadata.schema_text)
    members = []
    for name in state.metadata.partition_columns:
        item = schema.find_field(name)
        if item is None:
            raise CorruptLogError(
                f"The table is partitioned by {name!r}, which is not a column of its schema.",
                remedy="The metaData action is damaged: restore the log entry from a backup.",
            )
        if item.type != VOID:
            members.append((item.physical_name(state.column_mapping), arrow_type(item.type, name)))
    return pa.struct(members) if members else None


class ExtraColumns:
    """Collects unknown fields of file actions, and determines their types.

    Attributes:
        adds, removes: By name.
    """

    def __init__(self) -> None:
        self.adds: dict[str, pa.DataType] = {}
        self.removes: dict[str, pa.DataType] = {}

    def take_column(self, kind: str, column: pa.DataType) -> None:
        """Add the column `add` or `remove` of an earlier checkpoint."""
        found, known = self._select_extras(kind)
        for item in column:
            if item.name not in known and not pa.types.is_null(item.type):
                found[item.name] = merged_type(found.get(item.name), item.type)

    def take_row(self, kind: str, row: FileRow) -> None:
        """Add an `add` or `remove` of a commit."""
        if row.extras:
            found, _ = self._select_extras(kind)
            for name, value in row.extras.items():
                found[name] = merged_type(found.get(name), inferred_type(value))

    def _select_extras(self, kind: str) -> tuple[dict[str, pa.DataType], Iterable[str]]:
        if kind == "add":
            return self.adds, _OF_ADDS_ALONE
        return self.removes, {*REMOVE_TYPES, *_LEFT_OUT_OF_REMOVES}


def inferred_type(value: Any) -> pa.DataType:
    """Return a type for a value of an unknown field; text if none fits."""
    try:
        kind = pa.infer_type([value])
    except (pa.ArrowException, TypeError, OverflowError):
        return pa.string()
    return kind if _is_storable(kind) else pa.string()


def _is_storable(kind: pa.DataType) -> bool:
    """Return whether Parquet has this type: it has neither empty structs nor untyped nulls."""
    if pa.types.is_null(kind):
        return False
    if pa.types.is_struct(kind) and kind.num_fields == 0:
        return False
    return all(_is_storable(kind.field(index).type) for index in range(kind.num_fields))


def merged_type(known: pa.DataType | None, new: pa.DataType) -> pa.DataType:
    """Return a type for values of both; text (JSON) if there is no other."""
    if known is None or known == new:
        return new
    try:
        schemas = [pa.schema({"x": known}), pa.schema({"x": new})]
        return pa.unify_schemas(schemas, promote_options="permissive").field("x").type
    except pa.ArrowException:
        return pa.string()
