from __future__ import annotations

import json
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tailerd.errors import CorruptLogError
from tailerd.formats.delta.protocol.actions import (
    DeletionVectorDescriptor,
    FileAction,
    decode_partition_values,
    num_records_in,
    read_num_records,
)
from tailerd.formats.delta.protocol.checkpoint import record_counts


def action(body: str) -> FileAction:
    return msgspec.json.decode(body.encode(), type=FileAction)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"path":"a"}', ()),
        ('{"path":"a","partitionValues":null}', ()),
        ('{"path":"a","partitionValues":{}}', ()),
        (
            '{"path":"a","partitionValues":{"p":null,"q":"","r":"ü"}}',
            (("p", None), ("q", ""), ("r", "ü")),
        ),
        ('{"path":"a","partitionValues":{"p":"50%25"}}', (("p", "50%25"),)),
    ],
)
def test_partition_values_come_as_they_stand_there(text: str, values: tuple[Any, ...]) -> None:
    assert decode_partition_values(action(text)) == values


@pytest.mark.parametrize("values", ["5", "[]", '"x"', '{"p":[5]}', '{"p":{"q":"r"}}'])
def test_partition_values_that_are_no_texts_are_a_clear_error(values: str) -> None:
    with pytest.raises(CorruptLogError, match=r"partition values of 'a\.parquet'"):
        decode_partition_values(action(f'{{"path":"a.parquet","partitionValues":{values}}}'))


@pytest.mark.parametrize(
    ("stats", "count"),
    [
        (None, None),
        ("", None),
        ("null", None),
        ("{}", None),
        ('{"numRecords":3}', 3),
        ('{"numRecords":null}', None),
        ('{"numRecords":"3"}', None),
        ('{"numRecords":3,"minValues":{"numRecords":9}}', 3),
        ('{"minValues":{"numRecords":9}}', None),
        (' {\t"numRecords" :\r\n3 ,"minValues":{"numRecords":9}}', 3),
        ('{"minValues":{"numRecords":9},"numRecords":3}', 3),
        ('{"numRecords":0}', 0),
        ('{"numRecords":03}', None),
        ('{"numRecords":3.5}', None),
        ('{"numRecords":-3}', None),
        ('{"numRecords":9223372036854775807}', 2**63 - 1),
        ('{"numRecords":9223372036854775808}', None),
        ('{"numRecords":3', None),
        ("no json", None),
        ("[" * 100_000, None),
    ],
    ids=range(20),
)
def test_unreadable_statistics_are_as_good_as_absent(stats: str | None, count: int | None) -> None:
    assert num_records_in(stats) == count
    assert read_num_records(action(json.dumps({"path": "a", "stats": stats}))) == count
    for text in (pa.string(), pa.large_string(), pa.string_view()):
        add = pa.array([{"stats": stats}], pa.struct({"stats": text}))
        assert record_counts(add).to_pylist() == [count]


@pytest.mark.parametrize("stats", ["5", "{}", "[]", "true"])
def test_statistics_that_are_no_text_are_absent(stats: str) -> None:
    assert read_num_records(action(f'{{"path":"a","stats":{stats}}}')) is None


def test_statistics_of_broken_text_are_absent() -> None:
    body = b'{"path":"a","stats":"\xff"}'
    assert read_num_records(msgspec.json.decode(body, type=FileAction)) is None


@pytest.mark.parametrize(("offset", "text"), [(None, "uab"), (0, "uab@0"), (4, "uab@4")])
def test_a_vectors_offset_is_part_of_its_identity_and_none_is_not_zero(
    offset: int | None, text: str
) -> None:
    vector = DeletionVectorDescriptor(
        storage_type="u", path_or_inline_dv="ab", size_in_bytes=1, cardinality=1, offset=offset
    )
    assert vector.unique_id == text
