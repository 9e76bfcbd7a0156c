"""What stands in dead letters: as much of a record as the topic of dead letters takes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailerd.records.base import Records
from tailerd.sinks.topics.dead_letters import TOO_LARGE, OversizeRecords

ROOM = 10
TEXTS = st.none() | st.binary(max_size=40)


def refused(keys: list[bytes | None] | None, values: list[bytes | None]) -> OversizeRecords:
    sizes = [len(value or b"") + 5 for value in values]
    kind = pa.large_binary() if len(values) % 2 else pa.binary()
    return OversizeRecords(
        table="orders",
        topic="changes",
        limit_bytes=3,
        records=Records(
            keys=None if keys is None else pa.array(keys, pa.binary()),
            values=pa.array(values, kind),
        ),
        versions=list(range(len(values))),
        sizes_bytes=sizes,
    )


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=8), st.integers(0, 60))
def test_what_fits_is_kept_and_the_rest_is_null(
    rows: list[tuple[bytes | None, bytes | None]], max_bytes: int
) -> None:
    found = refused([key for key, _ in rows], [value for _, value in rows])
    letters = found.letters(max_bytes, ROOM)
    assert letters.keys is not None
    assert letters.keys.to_pylist() == [
        key if key is not None and len(key) + ROOM <= max_bytes else None for key, _ in rows
    ]
    assert letters.values.to_pylist() == [
        value if len(value or b"") + 5 + ROOM <= max_bytes else None for _, value in rows
    ]


@pytest.mark.parametrize("count", [1, 2])
def test_records_without_keys_have_letters_without_keys(count: int) -> None:
    letters = refused(None, [b"x"] * count).letters(100, ROOM)
    assert letters.keys is not None
    assert letters.keys.to_pylist() == [None] * count
    assert letters.values.to_pylist() == [b"x"] * count


def test_headers_say_why_and_where_the_row_is_found() -> None:
    assert refused(None, [b"x", b"yy"]).reasons() == {
        "tailerd.reason": TOO_LARGE,
        "tailerd.table": "orders",
        "tailerd.topic": "changes",
        "tailerd.limit_bytes": "3",
        "tailerd.commit_version": [0, 1],
        "tailerd.size_bytes": [6, 7],
    }
