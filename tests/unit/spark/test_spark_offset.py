"""Offsets in Spark's checkpoint: a repeated first micro-batch starts where it started."""

from __future__ import annotations

import json

import pytest

from tailerd.changefeed.offset import Offset, Phase, Version
from tailerd.errors import OffsetError
from tailerd.spark.spark_offset import batch_start, end_fields, initial_fields, offset_of


def _at(version: int, phase: Phase = Phase.FOLLOW, position: int = 0) -> Offset:
    return Offset(table_id="t", version=Version(version), phase=phase, position=position)


def test_a_first_batch_that_is_repeated_keeps_its_start() -> None:
    began, end = _at(5, Phase.SNAPSHOT), _at(5, Phase.SNAPSHOT, 77)
    logged = end_fields(initial_fields(began), end)
    asked_anew = initial_fields(_at(9, Phase.SNAPSHOT))
    assert offset_of(logged) == end
    assert batch_start(asked_anew, logged) == began
    assert batch_start(initial_fields(began), logged) == began


def test_an_empty_first_batch_that_is_repeated_stays_empty() -> None:
    logged = end_fields(initial_fields(_at(5)), _at(5))
    assert batch_start(initial_fields(_at(9)), logged) == offset_of(logged) == _at(5)


def test_later_batches_start_where_the_one_before_ended() -> None:
    first = end_fields(initial_fields(_at(5)), _at(6))
    second = end_fields(first, _at(7))
    assert batch_start(first, second) == _at(6)
    after_empty = initial_fields(_at(5))
    assert batch_start(after_empty, end_fields(after_empty, _at(8))) == _at(5)


def test_nothing_new_is_the_same_text_to_spark() -> None:
    for start in (
        initial_fields(_at(5)),
        end_fields(initial_fields(_at(5)), _at(6)),
        end_fields(end_fields(initial_fields(_at(5)), _at(6)), _at(7)),
    ):
        from_checkpoint = json.loads(json.dumps(start))
        assert json.dumps(end_fields(from_checkpoint, offset_of(start))) == json.dumps(start)


def test_a_checkpoint_of_a_newer_release_is_refused() -> None:
    with pytest.raises(OffsetError, match="newer tailerd"):
        offset_of({**initial_fields(_at(1)), "format": 99})
    with pytest.raises(OffsetError, match="cannot be read"):
        offset_of({"version": 1})
