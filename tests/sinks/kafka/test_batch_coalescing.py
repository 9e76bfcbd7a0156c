"""Small commits go out together: nothing is lost, nothing overtakes."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa

from tailerd.records.base import Header, Records
from tailerd.sinks.kafka.batch_coalescing import BatchCoalescer, Versioned
from tailerd.sinks.kafka.produce_request import ProduceRequest

# topic, value, partition, timestamp, version, headers
Flat = tuple[str, bytes | None, int, int, int, tuple[Header, ...]]


def piece(
    topic: str, values: list[bytes | None], *, version: int, headers: tuple[Header, ...] = ()
) -> Versioned:
    kind = pa.large_binary() if version % 2 else pa.binary()
    keys = pa.array([b"k" if value is None else value[:3] for value in values], kind)
    partitions = np.arange(len(values), dtype=np.int32) % 3 if version % 3 else 1
    return Versioned(
        request=ProduceRequest(
            topic=topic,
            records=Records(keys=keys, values=pa.array(values, kind)),
            partitions=partitions,
            timestamps_ms=1000 + version,
            headers=headers,
            max_bytes=1_000_000,
        ),
        versions=version,
    )


def flat(pieces: list[Versioned]) -> dict[str, list[Flat]]:
    found: dict[str, list[Flat]] = {}
    for each in pieces:
        sent = each.request
        for row, value in enumerate(sent.records.values.to_pylist()):
            found.setdefault(sent.topic, []).append(
                (
                    sent.topic,
                    value,
                    at(sent.partitions, row),
                    at(sent.timestamps_ms, row),
                    at(each.versions, row),
                    sent.headers,
                )
            )
    return found


def at(numbers: int | np.ndarray, row: int) -> int:
    return numbers if isinstance(numbers, int) else int(numbers[row])


def test_whatever_is_added_comes_out_once_and_in_its_order(seed: int) -> None:
    source = random.Random(seed)
    added: list[Versioned] = []
    sent: list[Versioned] = []
    merger = BatchCoalescer()
    for version in range(60):
        size = source.choice([10, 10, 10, 50_000, 3_000_000])
        values = [
            source.choice([None, bytes([version]) * size]) for _ in range(source.choice([1, 7]))
        ]
        headers = (Header(name="v", value=bytes([source.choice([0, 0, 0, 1])])),)
        added.append(piece(source.choice("ab"), values, version=version, headers=headers))
        sent += merger.add(added[-1])
    sent += merger.rest()
    assert flat(sent) == flat(added)
    assert list(merger.rest()) == []


def test_many_small_commits_become_few_pieces() -> None:
    merger = BatchCoalescer()
    sent = [out for n in range(1000) for out in merger.add(piece("t", [b"x" * 500], version=n))]
    sent += merger.rest()
    assert len(sent) <= 3
    assert sum(len(each.request.records) for each in sent) == 1000


def test_what_is_held_back_for_many_topics_is_bounded() -> None:
    merger = BatchCoalescer()
    held = 0
    for number in range(100):
        sent = list(merger.add(piece(f"t{number}", [b"x" * 1_000_000], version=number)))
        held += 1_000_000 - sum(each.request.records.values.nbytes for each in sent)
        assert held < 10 * 1024**2


def test_headers_of_each_record_are_joined_with_the_records() -> None:
    def headed(version: int, ids: list[str], source: bytes = b"s") -> Versioned:
        headers = (Header(name="source", value=source), Header(name="id", value=pa.array(ids)))
        values: list[bytes | None] = [b"x" for _ in ids]
        return piece("t", values, version=version, headers=headers)

    merger = BatchCoalescer()
    early = [*merger.add(headed(1, ["a", "b"])), *merger.add(headed(2, ["c"]))]
    assert early == []
    [first] = merger.add(headed(3, ["d"], b"other"))
    constant, ids = first.request.headers
    assert constant.value == b"s"
    assert isinstance(ids.value, pa.Array)
    assert ids.value.to_pylist() == ["a", "b", "c"]
    [second] = merger.rest()
    assert second.request.headers[0].value == b"other"
