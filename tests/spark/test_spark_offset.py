"""Offsets in Spark's checkpoint: a repeated first micro-batch starts where it started."""

from __future__ import annotations

import json

import pytest

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.offset import Offset, Phase, Version
from tailerd.errors import OffsetError
from tailerd.spark.spark_offset import (
    batch_start,
    check_continues,
    check_repeats,
    end_fields,
    initial_fields,
    planned_changes,
    read_offset,
)


def _at(version: int, phase: Phase = Phase.FOLLOW, position: int = 0) -> Offset:
    return Offset(table_id="t", version=Version(version), phase=phase, position=position)


def test_a_first_batch_that_is_repeated_keeps_its_start() -> None:
    began, end = _at(5, Phase.SNAPSHOT), _at(5, Phase.SNAPSHOT, 77)
    logged = end_fields(initial_fields(began), end)
    asked_anew = initial_fields(_at(9, Phase.SNAPSHOT))
    assert read_offset(logged) == end
    assert batch_start(asked_anew, logged) == began
    assert batch_start(initial_fields(began), logged) == began


def test_an_empty_first_batch_that_is_repeated_stays_empty() -> None:
    logged = end_fields(initial_fields(_at(5)), _at(5))
    assert batch_start(initial_fields(_at(9)), logged) == read_offset(logged) == _at(5)


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
        assert json.dumps(end_fields(from_checkpoint, read_offset(start))) == json.dumps(start)


def test_a_checkpoint_of_a_newer_release_is_refused() -> None:
    with pytest.raises(OffsetError, match="newer tailerd"):
        read_offset({**initial_fields(_at(1)), "format": 99})
    with pytest.raises(OffsetError, match="cannot be read"):
        read_offset({"version": 1})


def test_the_end_of_a_batch_says_with_which_changes_it_was_planned() -> None:
    end = end_fields(initial_fields(_at(5)), _at(6), 3, ChangeMode.FILES)
    assert planned_changes(end) == "files"
    assert read_offset(end) == _at(6)
    assert planned_changes(end_fields(end, _at(6), 3, ChangeMode.AUTO)) == "files"
    assert planned_changes(end_fields(end, _at(7), 3, ChangeMode.AUTO)) == "auto"
    assert planned_changes(initial_fields(_at(5))) is None


@pytest.mark.parametrize("location", [_at(5), _at(5, Phase.SNAPSHOT, 77)])
def test_other_changes_may_go_on_where_no_commit_is_begun(location: Offset) -> None:
    check_continues(location, "files", ChangeMode.AUTO)


def test_other_changes_cannot_go_on_within_a_commit() -> None:
    check_continues(_at(5, position=1), "files", ChangeMode.FILES)
    check_continues(_at(5, position=1), None, ChangeMode.FILES)
    with pytest.raises(OffsetError, match=r"within version 5 .* 'files' .* 'auto'.* back to files"):
        check_continues(_at(5, position=1), "files", ChangeMode.AUTO)


def test_a_batch_of_commits_is_not_repeated_with_other_changes() -> None:
    snapshot = _at(5, Phase.SNAPSHOT)
    check_repeats(snapshot, snapshot.at(77), "files", ChangeMode.AUTO)
    check_repeats(_at(5), _at(7), None, ChangeMode.AUTO)
    check_repeats(_at(5), _at(7), "auto", ChangeMode.AUTO)
    check_repeats(_at(7), _at(7), "files", ChangeMode.AUTO)
    for start in (_at(5), snapshot):
        with pytest.raises(
            OffsetError, match=r"from version 5 until version 7 is not done .* back to files"
        ):
            check_repeats(start, _at(7), "files", ChangeMode.AUTO)
