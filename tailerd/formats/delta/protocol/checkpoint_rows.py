"""File actions as rows of a checkpoint: from commits, and from an earlier checkpoint.

Protocol: PROTOCOL.md#checkpoint-schema
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tailerd.errors import CorruptLogError
from tailerd.formats.delta.protocol.actions import DeletionVectorDescriptor
from tailerd.formats.delta.protocol.checkpoint_form import (
    ADD_TYPES,
    PARTITIONS_PARSED,
    REMOVE_TYPES,
    STATS,
    STATS_PARSED,
    TEXT_MAP,
    VECTOR,
    CheckpointForm,
)
from tailerd.formats.delta.protocol.full_actions import FileRow
from tailerd.formats.delta.protocol.partition_values import parse_partition_value
from tailerd.formats.delta.protocol.statistics_columns import parse_statistics, statistics_texts

_ATTRIBUTES = {
    name: FileRow.__struct_fields__[at] for at, name in enumerate(FileRow.__struct_encode_fields__)
}


def build_adds(rows: Sequence[FileRow], form: CheckpointForm) -> pa.StructArray:
    """Return `add` actions of commits as the column `add`."""
    texts = [row.stats for row in rows]
    columns = {name: _column(rows, name, kind) for name, kind in ADD_TYPES.items()}
    columns["dataChange"] = _no_change(len(rows))
    if form.has_json_stats:
        columns[STATS] = pa.array(texts, pa.string())
    if form.stats_type is not None:
        columns[STATS_PARSED] = parse_statistics(texts, form.stats_type)
    if form.partition_types is not None:
        columns[PARTITIONS_PARSED] = parsed_partitions(
            columns["partitionValues"], form.partition_types
        )
    for name, kind in form.extra_adds.items():
        columns[name] = _extra(rows, name, kind)
    return _struct(columns, form.add_type)


def build_removes(rows: Sequence[FileRow], form: CheckpointForm) -> pa.StructArray:
    """Return `remove` actions of commits as the column `remove`."""
    columns = {name: _column(rows, name, kind) for name, kind in REMOVE_TYPES.items()}
    columns["dataChange"] = _no_change(len(rows))
    for name, kind in form.extra_removes.items():
        columns[name] = _extra(rows, name, kind)
    return _struct(columns, form.remove_type)


def _column(rows: Sequence[FileRow], name: str, kind: pa.DataType) -> pa.Array:
    attribute = _ATTRIBUTES[name]
    values: list[Any] = [getattr(row, attribute) for row in rows]
    if kind is VECTOR:
        values = [_vector_row(value) for value in values]
    elif kind is TEXT_MAP:
        values = [None if value is None else list(value.items()) for value in values]
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError) as error:
        raise _unfit(name, kind, error) from error


def _vector_row(vector: DeletionVectorDescriptor | None) -> dict[str, Any] | None:
    if vector is None:
        return None
    return {
        "storageType": vector.storage_type,
        "pathOrInlineDv": vector.path_or_inline_dv,
        "offset": vector.offset,
        "sizeInBytes": vector.size_in_bytes,
        "cardinality": vector.cardinality,
    }


def _extra(rows: Sequence[FileRow], name: str, kind: pa.DataType) -> pa.Array:
    values = [row.extras.get(name) for row in rows]
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        if not pa.types.is_string(kind):
            raise _unfit(name, kind, error) from error
        return _as_texts(values)


def _as_texts(values: Sequence[Any]) -> pa.StringArray:
    return pa.array(
        [
            value
            if value is None or isinstance(value, str)
            else msgspec.json.encode(value).decode()
            for value in values
        ],
        pa.string(),
    )


def _unfit(name: str, kind: pa.DataType, error: Exception) -> CorruptLogError:
    return CorruptLogError(
        f"A file's {name} does not fit a checkpoint's {kind}: {error}.",
        remedy="The writer of that log entry is broken; no checkpoint is written.",
    )


def conformed_adds(add: pa.StructArray, form: CheckpointForm) -> pa.StructArray:
    """Return the column `add` of an earlier checkpoint in this checkpoint's form.

    Args:
        add: Entries of files, without nulls.
    """
    columns = {
        item.name: _member(add, item.name, item.type)
        for item in form.add_type
        if item.name not in (STATS, STATS_PARSED, PARTITIONS_PARSED)
    }
    columns["dataChange"] = _no_change(len(add))
    if form.has_json_stats:
        columns[STATS] = _build_texts(add, form.known_stats)
    if form.stats_type is not None:
        columns[STATS_PARSED] = _build_parsed(add, form.stats_type)
    if form.partition_types is not None:
        columns[PARTITIONS_PARSED] = parsed_partitions(
            columns["partitionValues"], form.partition_types
        )
    return _struct(columns, form.add_type)


def conformed_removes(remove: pa.StructArray, form: CheckpointForm) -> pa.StructArray:
    """Return the column `remove` of an earlier checkpoint in this checkpoint's form."""
    columns = {item.name: _member(remove, item.name, item.type) for item in form.remove_type}
    columns["dataChange"] = _no_change(len(remove))
    return _struct(columns, form.remove_type)


def _no_change(count: int) -> pa.BooleanArray:
    return pa.repeat(False, count)


def _has(array: pa.StructArray, name: str) -> bool:
    return bool(array.type.get_field_index(name) >= 0)


def _member(array: pa.StructArray, name: str, kind: pa.DataType) -> pa.Array:
    if not _has(array, name):
        return pa.nulls(len(array), kind)
    return conform_column(pc.struct_field(array, name), kind, name)


def conform_column(array: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """Return a column in another type, structs member by member.

    Raises:
        CorruptLogError: A value does not fit.
    """
    if array.type == kind:
        return array
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        members = [_member(array, item.name, item.type) for item in kind]
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=pc.is_null(array))
    try:
        return array.cast(kind)
    except pa.ArrowException as error:
        if not pa.types.is_string(kind):
            raise _unfit(name, kind, error) from error
        return _as_texts(array.to_pylist())


def _build_texts(add: pa.StructArray, known: pa.StructType) -> pa.Array:
    texts = _member(add, STATS, pa.string())
    if texts.null_count and _has(add, STATS_PARSED):
        parsed = pc.struct_field(add, STATS_PARSED)
        if parsed.null_count < len(parsed):
            # Only the schema shows which times have a zone: INT96 has none.
            return pc.coalesce(texts, statistics_texts(_lenient(parsed, known)))
    return texts


def _build_parsed(add: pa.StructArray, kind: pa.StructType) -> pa.Array:
    texts = _member(add, STATS, pa.string())
    if not _has(add, STATS_PARSED):
        return parse_statistics(texts.to_pylist(), kind)
    parsed = pc.struct_field(add, STATS_PARSED)
    if parsed.type != kind:
        parsed = _lenient(parsed, kind)
    lacking = pc.and_(pc.is_null(parsed), pc.is_valid(texts))
    if pc.any(lacking).as_py():
        chosen = pc.if_else(lacking, texts, pa.scalar(None, pa.string()))
        return pc.if_else(lacking, parse_statistics(chosen.to_pylist(), kind), parsed)
    return parsed


def _lenient(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return statistics of an earlier schema in this one, without bounds that do not fit."""
    if array.type == kind:
        return array
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        members = [
            _lenient(pc.struct_field(array, item.name), item.type)
            if _has(array, item.name)
            else pa.nulls(len(array), item.type)
            for item in kind
        ]
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=pc.is_null(array))
    try:
        return array.cast(kind)
    except pa.ArrowException:
        return pa.nulls(len(array), kind)


def parsed_partitions(values: pa.MapArray, kind: pa.StructType) -> pa.StructArray:
    """Return partition values, which are texts by name, as typed columns.

    Timestamps without a zone are UTC in these columns, regardless of `partition_timezone`.

    Raises:
        CorruptLogError: A text is not a value of its column's type, or a value has a key that is
            not a partition column, while that of a column is missing.
    """
    members = []
    foreign = set(values.keys.unique().to_pylist()) - {item.name for item in kind}
    for item in kind:
        if foreign:
            _check_keys(values, item.name, foreign)
        texts = pc.map_lookup(values, pa.scalar(item.name), "first").dictionary_encode()
        known = [
            parse_partition_value(text, item.type, item.name)
            for text in texts.dictionary.to_pylist()
        ]
        members.append(pa.array(known, item.type).take(texts.indices))
    return pa.StructArray.from_arrays(members, fields=list(kind))


def _check_keys(values: pa.MapArray, name: str, foreign: Set[str]) -> None:
    for row in values.to_pylist():
        keys = {key for key, _ in row or ()}
        if name not in keys and (found := sorted(keys & foreign)):
            raise CorruptLogError(
                f"A file has no partition value of the column {name}, but one of {found[0]!r},"
                " which is not a partition column in this spelling.",
                remedy="Its writer is broken: rewrite the file's partition.",
            )


def _struct(columns: dict[str, pa.Array], kind: pa.StructType) -> pa.StructArray:
    return pa.StructArray.from_arrays([columns[item.name] for item in kind], fields=list(kind))
