from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailerd.errors import CorruptLogError
from tailerd.formats.delta.protocol.actions import Metadata, Protocol
from tailerd.formats.delta.protocol.commit_timestamp import commit_time_ms, monotonic_file_times
from tailerd.formats.delta.protocol.log_path import LogFile, LogFileKind
from tailerd.formats.delta.protocol.snapshot import TableState
from tests.formats.delta.log_bodies import PROTOCOL, SCHEMA, make_commit
from tests.tables.naive_log import Action


def files(times: dict[int, int]) -> dict[int, LogFile]:
    return {
        version: LogFile(
            name="", kind=LogFileKind.COMMIT, version=version, end_version=version, mtime_ms=time
        )
        for version, time in times.items()
    }


def state(*, is_in_commit: bool) -> TableState:
    configuration = {"delta.enableInCommitTimestamps": "true"} if is_in_commit else {}
    return TableState(
        version=1,
        protocol=Protocol(min_reader_version=1, min_writer_version=2),
        metadata=Metadata(id="t", schema_string=SCHEMA, configuration=configuration),
    )


def test_times_that_grow_stay_as_they_are() -> None:
    assert monotonic_file_times(files({3: 10, 4: 20, 5: 21})) == {3: 10, 4: 20, 5: 21}


def test_a_time_that_does_not_grow_is_one_after_its_predecessors() -> None:
    times = {0: 100, 1: 100, 2: 50, 3: 102, 4: 103, 5: 500, 6: 7}
    adjusted = {0: 100, 1: 101, 2: 102, 3: 103, 4: 104, 5: 500, 6: 501}
    assert monotonic_file_times(files(times)) == adjusted


@given(st.dictionaries(st.integers(0, 50), st.integers(-1000, 1000)))
def test_adjusted_times_grow_are_never_earlier_and_do_not_depend_on_order(
    times: dict[int, int],
) -> None:
    adjusted = monotonic_file_times(files(times))
    assert adjusted == monotonic_file_times(files(dict(sorted(times.items()))))
    values = [adjusted[version] for version in sorted(adjusted)]
    assert all(one < next_ for one, next_ in itertools.pairwise(values))
    assert all(adjusted[version] >= time for version, time in times.items())
    if times:
        assert max(values) <= max(times.values()) + len(times)


INFO: Action = {"commitInfo": {"inCommitTimestamp": 5, "timestamp": 6}}


def test_the_commits_own_time_counts_where_it_is_enabled() -> None:
    assert commit_time_ms(make_commit(INFO), state(is_in_commit=True), 7) == 5


def test_the_files_time_counts_where_it_is_not_whatever_the_commit_says() -> None:
    assert commit_time_ms(make_commit(INFO), state(is_in_commit=False), 7) == 7
    assert commit_time_ms(make_commit(PROTOCOL), state(is_in_commit=False), 7) == 7


@pytest.mark.parametrize(
    "actions",
    [(PROTOCOL,), (PROTOCOL, INFO), ({"commitInfo": {"timestamp": 6}},), ({"x": {}}, INFO)],
)
def test_a_commit_that_lacks_the_time_it_must_carry_is_refused(actions: tuple[Action, ...]) -> None:
    with pytest.raises(CorruptLogError, match="Version 1 has no inCommitTimestamp"):
        commit_time_ms(make_commit(*actions), state(is_in_commit=True), 7)
