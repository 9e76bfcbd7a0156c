"""Batches of encoded records become what producers send, without a record lost or out of order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailerd.errors import ConfigError, SinkRefusedError
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.record_batches.partitioning import assign_partitions
from tailerd.sinks.kafka.routing import TopicShape
from tailerd.spark.deliveries import Tally, summed
from tailerd.spark.encoded_records import RecordPiece
from tailerd.spark.kafka.record_pieces import Partitioner, outgoing_piece
from tailerd.spark.packed_records import packed, unpacked
from tests.unit.spark.record_rows import piece_of

CONFIG = KafkaSinkConfig(kind="kafka", bootstrap_servers=["127.0.0.1:9092"], topic="t", key=["id"])
NOW_MS = 2_000_000
KEYS = st.one_of(st.none(), st.binary(max_size=3))


@st.composite
def rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    made = draw(
        st.lists(
            st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), KEYS, st.integers(1, 3)),
            max_size=30,
        )
    )
    made.sort(key=lambda row: (row[0], row[3]))
    has_headers = draw(st.booleans())
    return [
        {
            "table": table,
            "topic": topic,
            "partition": draw(st.sampled_from([None, None, 2])),
            "key": key,
            "value": draw(st.sampled_from([b"%d" % number, None])),
            "headers": [("v", b"%d" % version)] if has_headers else [],
            "_change_type": draw(st.sampled_from(["insert", "delete"])),
            "_commit_version": version,
            "_commit_timestamp": 1_000_000_000 + version * 1000,
            "_order": number,
        }
        for number, (table, topic, key, version) in enumerate(made)
    ]


def pieces_of(made: list[dict[str, Any]]) -> Iterator[RecordPiece]:
    """Return the records as tasks get them: those of a table, topic and commit together."""
    for _, own in groupby(made, key=itemgetter("table", "topic", "_commit_version")):
        yield piece_of(list(own))


def sent(made: list[dict[str, Any]], count: int = 4, config: KafkaSinkConfig = CONFIG) -> list[Any]:
    """Return (table, topic, partition, key, value, headers, time, version) of each record."""
    shape = TopicShape(partitions=count, max_bytes=1 << 20, retention_ms=5_000_000)
    partitioner = Partitioner(batch_id=3)
    found = []
    for each in unpacked(packed(pieces_of(made))):
        table, topic = each.table, each.topic
        piece = outgoing_piece(
            each,
            config=config,
            partitioner=partitioner,
            shape=shape,
            more_headers={"tailerd.batch": b"g/3"},
            now_ms=NOW_MS,
        )
        out = piece.outgoing
        number = len(out.records)
        keys = [None] * number if out.records.keys is None else out.records.keys.to_pylist()
        headers = tuple((each.name, each.value) for each in out.headers)
        times = np.broadcast_to(out.timestamps_ms, number).tolist()
        columns = (
            np.broadcast_to(out.partitions, number).tolist(),
            keys,
            out.records.values.to_pylist(),
            [headers] * number,
            times,
            np.broadcast_to(piece.versions, number).tolist(),
        )
        found += [(table, topic, *record) for record in zip(*columns, strict=True)]
    return found


@given(rows())
def test_every_record_goes_out_once_and_in_order_within_its_table_and_topic(
    made: list[dict[str, Any]],
) -> None:
    found = sent(made)
    for table in "ab":
        for topic in "xy":
            assert [
                (key, value, headers[:-1], time_ms, version)
                for t, p, _, key, value, headers, time_ms, version in found
                if (t, p) == (table, topic)
            ] == [
                (
                    row["key"],
                    row["value"],
                    tuple(row["headers"]),
                    row["_commit_timestamp"] // 1000,
                    row["_commit_version"],
                )
                for row in made
                if (row["table"], row["topic"]) == (table, topic)
            ]
    assert all(record[5][-1] == ("tailerd.batch", b"g/3") for record in found)
    assert len(found) == len(made)


@given(st.lists(st.binary(max_size=5), min_size=1, max_size=50), st.integers(1, 7))
def test_a_key_has_the_partition_that_the_arrow_engine_gives_it(
    keys: list[bytes], count: int
) -> None:
    named = pa.nulls(len(keys), pa.int32())
    column = pa.array(keys, pa.binary())
    chosen = Partitioner(batch_id=9).partitions("t", named, column, count)
    assert chosen.tolist() == assign_partitions(column, len(keys), count).partitions.tolist()


def test_records_without_keys_go_on_where_the_micro_batch_before_began() -> None:
    named, keys = pa.nulls(1, pa.int32()), pa.nulls(1, pa.binary())
    chosen = [
        Partitioner(batch_id=each).partitions("t", named, keys, 3).tolist() for each in range(4)
    ]
    assert chosen == [[0], [1], [2], [0]]


def row(**fields: Any) -> dict[str, Any]:
    base = {"table": "a", "topic": "x", "partition": None, "key": b"1", "value": b"v"}
    times = {"_commit_version": 1, "_commit_timestamp": 1_000_000_000, "_order": 0}
    return {**base, "headers": [], "_change_type": "insert", **times, **fields}


def test_what_a_topic_cannot_take_is_refused() -> None:
    with pytest.raises(ConfigError, match="partition is 4, and the topic x has the partitions 0"):
        sent([row(partition=4)])
    old = KafkaSinkConfig.model_validate({**CONFIG.model_dump(), "timestamp": "commit"})
    with pytest.raises(SinkRefusedError, match="Version 1 is of 1969"):
        sent([row(_commit_timestamp=-4_000_000_000)], config=old)
    delivery = KafkaSinkConfig.model_validate({**CONFIG.model_dump(), "timestamp": "delivery"})
    [record] = sent([row(_commit_timestamp=-4_000_000_000)], config=delivery)
    assert record[6] == NOW_MS


def test_a_piece_whose_partition_is_chosen_goes_there_if_the_topic_has_it() -> None:
    piece = replace(piece_of([row(), row()]), partition=3)
    assert Partitioner(batch_id=0).of_piece(piece, 4) == 3
    with pytest.raises(ConfigError, match="partition is 3, and the topic x has the partitions 0"):
        Partitioner(batch_id=0).of_piece(piece, 3)


@given(rows())
def test_tallies_of_parts_add_up_to_that_of_the_whole(made: list[dict[str, Any]]) -> None:
    def tallies(some: list[dict[str, Any]]) -> dict[str, Tally]:
        found: dict[str, Tally] = {}
        for piece in pieces_of(some):
            found.setdefault(piece.table, Tally()).count(piece)
        return found

    whole = tallies(made)
    assert summed([tallies(made[::2]), tallies(made[1::2])]) == whole
    for table, tally in whole.items():
        mine = [row for row in made if row["table"] == table]
        versions = [row["_commit_version"] for row in mine]
        told = tally.delivery(table)
        assert sum(told.rows.values()) == sum(row["value"] is not None for row in mine)
        assert (told.first_version, told.last_version) == (min(versions), max(versions))
        sizes = (len(row["key"] or b"") + len(row["value"] or b"") for row in mine)
        assert told.size_bytes == sum(sizes)
