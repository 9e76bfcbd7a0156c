"""Keys are made of columns that values do not have."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from tailerd.changefeed.change_batch import is_hidden
from tailerd.changefeed.change_task import ChangeType
from tailerd.errors import UsageError
from tailerd.records.base import FormatOptions, RecordPart, Records, RecordSchema
from tailerd.sinks.record_formats import TableRecords
from tests.transforms.batches import change_batch, view_of
from tests.transforms.test_mask import hashed

ROWS: dict[str, list[Any]] = {"id": [1, 2, 2], "name": ["a", "b", "c"], "region": ["x", None, "y"]}
KINDS = ["delete", "update_preimage", "update_postimage"]
FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "json": ("json", {}),
    "debezium": ("debezium", {}),
    "debezium with schemas": ("debezium", {"schemas": True}),
    "avro": ("avro", {}),
    "avro envelopes": ("avro", {"envelope": "debezium"}),
    "protobuf": ("protobuf", {}),
    "json_schema": ("json_schema", {}),
    "json_schema envelopes": ("json_schema", {"envelope": "debezium"}),
}


class Registry:
    """Gives equal schemas equal ids."""

    def earlier(self, part: RecordPart, name: str) -> str:
        return ""

    def ids(self, schemas: Sequence[RecordSchema]) -> Sequence[int]:
        return [zlib.crc32(schema.text.encode()) & 0xFFFF for schema in schemas]


def records(
    name: str, rows: Mapping[str, Any] | pa.RecordBatch, key: list[str], kinds: Any = KINDS
) -> Records:
    kind, options = FORMATS[name]
    made = TableRecords(kind, FormatOptions(name="s", table="t", key=key, **options), Registry())
    return made.records(change_batch(rows, kinds), now_us=0)


@pytest.mark.parametrize("name", FORMATS)
def test_values_have_what_is_delivered_and_keys_what_they_are_made_of(name: str) -> None:
    view = view_of(columns=["name"], key=["id"], extra=["id"])
    seen = {}
    for kinds in (KINDS, ChangeType.INSERT):
        batch = change_batch(ROWS, kinds)
        found = view.bind(batch.rows.schema).apply(batch)
        assert found is not None
        seen[str(kinds)] = records(name, found.rows, ["id"], kinds)
    assert seen[str(KINDS)].keys == records(name, ROWS, ["id"]).keys
    only = records(name, {"name": ROWS["name"]}, [], ChangeType.INSERT)
    assert seen[str(ChangeType.INSERT)].values == only.values


def test_a_column_that_is_delivered_is_not_hidden() -> None:
    view = view_of(columns=["name", "id"], key=["id"], extra=["id", "region"])
    schema = view.schema(change_batch(ROWS).rows.schema)
    assert [(field.name, is_hidden(field)) for field in schema] == [
        ("name", False),
        ("id", False),
        ("region", True),
    ]
    assert view.source_columns([]) == ("name", "id", "region")


def test_keys_have_the_new_names_and_masked_values() -> None:
    view = view_of(
        columns={"exclude": ["id"]},
        rename={"id": "no"},
        mask={"id": "hash"},
        mask_key="k",
        key=["no"],
        extra=["no"],
    )
    batch = change_batch(ROWS)
    view.check(batch.rows.schema)
    seen = view.bind(batch.rows.schema).apply(batch)
    assert seen is not None
    assert seen.rows.column("no").to_pylist() == [hashed(str(each), "k") for each in ROWS["id"]]
    assert seen.to_arrow().schema.names[:2] == ["name", "region"]


@pytest.mark.parametrize("mask", ["redact", "null", "partial"])
def test_a_key_is_only_masked_by_hash(mask: str) -> None:
    view = view_of(mask={"id": mask}, key=["id"])
    with pytest.raises(UsageError, match="Mask it with hash"):
        view.check(change_batch(ROWS).rows.schema)
