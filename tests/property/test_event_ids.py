"""Ids of records: whoever leaves out the ids it has seen has every record once.

Deliveries are broken off at random locations and repeated from the saved offset by a process with
other limits, which cuts steps, commits and batches elsewhere.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.changefeed.limits import BatchLimit, ReadLimit
from tailerd.formats.base import OpenRequest
from tailerd.pipeline.change_stream import ChangeStream
from tailerd.records.base import FormatOptions
from tailerd.records.event_ids import ID_HEADER
from tailerd.sinks.record_formats import TableRecords
from tests.property.test_exact_changes import KEYED, History
from tests.tables.opened import open_delta

Event = tuple[str, bytes | None, bytes | None]

LIMITS = st.builds(
    lambda files, rows, working: (
        ReadLimit(max_files=files, max_bytes=1 << 40),
        BatchLimit(max_rows=rows, max_bytes=working),
    ),
    st.integers(1, 4),
    st.integers(1, 5),
    st.sampled_from([64, 1 << 20]),
)


async def delivered(
    folder: Path,
    form: str,
    *,
    is_keyed: bool,
    start: str,
    limits: list[tuple[ReadLimit, BatchLimit]],
    failures: list[int],
) -> list[Event]:
    """Return the records of all deliveries, one of which ends after each number of batches."""
    key = ["k"] if is_keyed else []
    records = TableRecords(form, FormatOptions(name="lake", table="t", key=key, has_ids=True))
    events: list[Event] = []
    at = None
    for turn in range(1_000):
        source = await open_delta(str(folder), OpenRequest(identity=key))
        read_limit, batch_limit = limits[turn % len(limits)]
        at = at or await source.initial_offset(start)
        left = failures[turn] if turn < len(failures) else None
        while (end := await source.latest_offset(at, read_limit)) != at:
            stream = ChangeStream(source, at, end, limit=batch_limit, key=key)
            is_broken = False
            async for batch in stream.batches():
                if left == 0:
                    is_broken = True
                    break
                left = None if left is None else left - 1
                found = records.records(batch, now_us=0)
                [ids] = [each.value for each in found.headers if each.name == ID_HEADER]
                assert isinstance(ids, pa.Array)
                keys = [None] * len(found) if found.keys is None else found.keys.to_pylist()
                events += zip(ids.to_pylist(), keys, found.values.to_pylist(), strict=True)
            if is_broken:
                break
            at = end
        else:
            return events
    raise AssertionError("deliveries never end")


@given(
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from(["json", "debezium"]),
    st.sampled_from(["1", "snapshot"]),
    st.lists(LIMITS, min_size=1, max_size=3),
    st.lists(st.integers(0, 4), max_size=4),
    st.data(),
)
@settings(max_examples=25, deadline=None)
def test_records_without_those_seen_before_are_all_records_once(
    commits: int,
    is_keyed: bool,
    form: str,
    start: str,
    limits: list[tuple[ReadLimit, BatchLimit]],
    failures: list[int],
    data: st.DataObject,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        history = History(data, KEYED, Path(folder))
        for _ in range(commits):
            history.commit()
        once, several = (
            asyncio.run(
                delivered(
                    Path(folder),
                    form,
                    is_keyed=is_keyed,
                    start=start,
                    limits=those,
                    failures=broken,
                )
            )
            for those, broken in (([(ReadLimit(), BatchLimit())], []), (limits, failures))
        )
    assert len({event[0] for event in once}) == len(once), "ids are unique"
    assert set(several) == set(once), "an id is of one record, whichever delivery brings it"
