from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailerd.changefeed.offset import ConsecutiveVersions, Offset, Phase, Version
from tailerd.errors import OffsetError

OFFSETS = st.builds(
    Offset,
    table_id=st.text(),
    version=st.integers(0, 2**63 - 1).map(Version),
    phase=st.sampled_from(Phase),
    position=st.integers(0, 2**64 - 1),
)

VERSIONS = ConsecutiveVersions()


@given(OFFSETS)
def test_an_offset_survives_its_text_form_on_one_line(offset: Offset) -> None:
    text = offset.to_json()
    assert "\n" not in text
    assert Offset.from_json(text) == offset


def test_the_text_form_is_stable() -> None:
    offset = Offset(table_id="t", version=Version(3), phase=Phase.SNAPSHOT, position=7)
    assert offset.to_json() == (
        '{"format":1,"table_id":"t","version":3,"phase":"snapshot","position":7}'
    )


def test_offsets_come_in_the_order_of_the_work_they_point_at() -> None:
    first = Offset(table_id="t", version=Version(3), phase=Phase.SNAPSHOT, position=2**64 - 1)
    ascending = [
        replace(first, position=0),
        first,
        Offset(table_id="t", version=Version(3)),
        Offset(table_id="t", version=Version(3), position=4),
        first.after_version(VERSIONS),
        first.after_version(VERSIONS).at(1),
    ]
    for index, offset in enumerate(ascending):
        for other in ascending[index + 1 :]:
            assert offset.is_before(other)
            assert not other.is_before(offset)
        assert not offset.is_before(offset)


def test_the_version_after_a_snapshot_is_followed_from_its_start() -> None:
    offset = Offset(table_id="t", version=Version(3), phase=Phase.SNAPSHOT, position=9)
    assert offset.after_version(VERSIONS) == Offset(table_id="t", version=Version(4))


def test_offsets_of_a_table_that_was_replaced_compare_by_what_they_count() -> None:
    before = Offset(table_id="a", version=Version(1))
    assert before.is_before(Offset(table_id="b", version=Version(2)))
    assert not Offset(table_id="b", version=Version(2)).is_before(before)


def test_the_last_version_is_the_one_partly_before_an_offset() -> None:
    start = Offset(table_id="t", version=Version(3))
    assert [start.last_version(VERSIONS), start.at(1).last_version(VERSIONS)] == [2, 3]
    assert replace(start, phase=Phase.SNAPSHOT).last_version(VERSIONS) == 3


GOOD = json.loads(Offset(table_id="t", version=Version(3)).to_json())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "[]",
        "null",
        "{",
        *(json.dumps({k: v for k, v in GOOD.items() if k != name}) for name in GOOD),
        json.dumps({**GOOD, "format": 2}),
        json.dumps({**GOOD, "version": -1}),
        json.dumps({**GOOD, "position": -1}),
        json.dumps({**GOOD, "version": "three"}),
        json.dumps({**GOOD, "phase": "later"}),
    ],
)
def test_a_text_that_is_no_offset_is_an_error(text: str) -> None:
    with pytest.raises(OffsetError):
        Offset.from_json(text)


def test_an_offset_of_a_newer_release_says_so() -> None:
    with pytest.raises(OffsetError, match="newer"):
        Offset.from_json(json.dumps({**GOOD, "format": 2}))
