from __future__ import annotations

import pytest

from tailerd.errors import MissingVersionError, NotATableError
from tailerd.formats.delta.protocol.log_path import LogFile, parse_log_path
from tailerd.formats.delta.protocol.log_segment import LogListing, LogSegment

UUIDS = [f"80a083e8-7026-4e79-81be-64bd76c43a1{n}" for n in range(3)]


def commit(version: int) -> str:
    return f"{version:020}.json"


def checkpoint(version: int, middle: str = "", end: str = "parquet") -> str:
    return f"{version:020}.checkpoint{middle}.{end}"


def part(version: int, number: int, parts: int) -> str:
    return checkpoint(version, f".{number:010}.{parts:010}")


def compaction(first: int, last: int) -> str:
    return f"{first:020}.{last:020}.compacted.json"


def listing(*names: str, empty: tuple[str, ...] = ()) -> LogListing:
    files: list[LogFile] = []
    for name in names:
        file = parse_log_path(name, 0 if name in empty else 10)
        assert file is not None, name
        files.append(file)
    return LogListing.classify(files)


def commits(*versions: int) -> list[str]:
    return [commit(version) for version in versions]


def names(segment: LogSegment) -> tuple[list[str], list[str]]:
    return (
        [file.name for file in segment.checkpoint],
        [file.name for file in segment.ascending_commits],
    )


def test_commits_alone_rebuild_every_version() -> None:
    log = listing(*commits(0, 1, 2))
    for version in range(3):
        segment = LogSegment.for_version(log, version)
        assert names(segment) == ([], commits(*range(version + 1)))
        assert segment.checkpoint_version is None
    assert LogSegment.for_version(log).version == 2


def test_the_newest_checkpoint_not_newer_than_the_target_is_used() -> None:
    log = listing(*commits(*range(6)), checkpoint(1), checkpoint(3))
    assert names(LogSegment.for_version(log)) == ([checkpoint(3)], commits(4, 5))
    assert names(LogSegment.for_version(log, 3)) == ([checkpoint(3)], [])
    assert names(LogSegment.for_version(log, 2)) == ([checkpoint(1)], commits(2))
    assert names(LogSegment.for_version(log, 0)) == ([], commits(0))


def test_a_checkpoint_without_any_commit_is_a_version() -> None:
    log = listing(checkpoint(7))
    assert names(LogSegment.for_version(log)) == ([checkpoint(7)], [])
    assert (log.head_version, log.earliest_commit) == (7, None)


@pytest.mark.parametrize("missing", [0, 1, 3])
def test_a_gap_is_refused_and_named(missing: int) -> None:
    log = listing(*commits(*(version for version in range(6) if version != missing)))
    with pytest.raises(MissingVersionError, match=r"\d"):
        LogSegment.for_version(log)
    for version in range(missing):
        assert LogSegment.for_version(log, version).version == version


def test_a_gap_says_which_version_is_missing() -> None:
    with pytest.raises(MissingVersionError, match=r"Version 2 is missing .* version 4 is there"):
        LogSegment.for_version(listing(*commits(0, 1, 3, 4)))
    with pytest.raises(MissingVersionError, match="Version 5 is missing"):
        LogSegment.for_version(listing(*commits(4, 6), checkpoint(4)))


def test_a_gap_below_a_checkpoint_does_not_matter() -> None:
    log = listing(*commits(0, 3, 4), checkpoint(3))
    assert names(LogSegment.for_version(log)) == ([checkpoint(3)], commits(4))


def test_a_cleaned_up_log_says_what_is_left() -> None:
    log = listing(*commits(5, 6, 7), checkpoint(6))
    assert LogSegment.for_version(log, 6).version == 6
    with pytest.raises(MissingVersionError, match=r"oldest commit is 5 .* checkpoint 6") as raised:
        LogSegment.for_version(log, 5)
    assert "Ask for version 6 or later" in str(raised.value)
    with pytest.raises(MissingVersionError):
        LogSegment.for_version(log, 3)


def test_an_empty_log_is_no_table() -> None:
    for log in (listing(), listing(f"{3:020}.crc"), listing(part(3, 1, 2))):
        with pytest.raises(NotATableError, match="/lake/x"):
            LogSegment.for_version(log, location="/lake/x")


def test_a_version_that_does_not_exist_yet_is_refused() -> None:
    with pytest.raises(MissingVersionError, match=r"Version 9 does not exist yet: the newest is 1"):
        LogSegment.for_version(listing(*commits(0, 1)), 9)


def test_a_checkpoint_that_lacks_a_part_is_passed_over() -> None:
    log = listing(*commits(*range(4)), part(2, 1, 3), part(2, 3, 3), checkpoint(1))
    assert names(LogSegment.for_version(log)) == ([checkpoint(1)], commits(2, 3))


def test_parts_are_read_in_order_and_parts_of_two_checkpoints_are_not_mixed() -> None:
    log = listing(*commits(*range(4)), part(2, 2, 2), part(2, 3, 3), part(2, 1, 3), part(2, 1, 2))
    assert names(LogSegment.for_version(log)) == ([part(2, 1, 2), part(2, 2, 2)], commits(3))


def test_of_two_checkpoints_at_one_version_the_newer_form_comes_first() -> None:
    v2 = checkpoint(2, f".{UUIDS[0]}", "json")
    all_kinds = [v2, checkpoint(2), part(2, 1, 2), part(2, 2, 2)]
    for order in (all_kinds, all_kinds[::-1]):
        log = listing(*commits(0, 1, 2), *order)
        excluded: set[str] = set()
        for expected in ([v2], [checkpoint(2)], [part(2, 1, 2), part(2, 2, 2)], []):
            segment = LogSegment.for_version(log, excluded=frozenset(excluded))
            assert names(segment)[0] == expected
            excluded.update(expected)


def test_an_empty_checkpoint_file_is_none() -> None:
    log = listing(*commits(0, 1), checkpoint(1), empty=(checkpoint(1),))
    assert names(LogSegment.for_version(log)) == ([], commits(0, 1))


def test_an_excluded_checkpoint_is_passed_over() -> None:
    log = listing(*commits(*range(4)), checkpoint(1), checkpoint(3))
    segment = LogSegment.for_version(log, excluded=frozenset([checkpoint(3)]))
    assert names(segment) == ([checkpoint(1)], commits(2, 3))


def test_a_compaction_is_not_used_while_its_commits_are_there() -> None:
    log = listing(*commits(*range(5)), compaction(1, 3))
    segment = LogSegment.for_version(log)
    assert names(segment) == ([], commits(*range(5)))
    assert segment.compactions == ()


def test_a_compaction_stands_for_commits_that_are_gone() -> None:
    log = listing(*commits(0, 4), compaction(1, 3), compaction(1, 2))
    segment = LogSegment.for_version(log)
    assert names(segment) == ([], [commit(0), compaction(1, 3), commit(4)])
    assert [file.name for file in segment.compactions] == [compaction(1, 3)]
    assert names(LogSegment.for_version(log, 2)) == ([], [commit(0), compaction(1, 2)])
    with pytest.raises(MissingVersionError, match="Version 1 is missing"):
        LogSegment.for_version(log, 1)


def test_a_compaction_from_zero_can_begin_a_log() -> None:
    log = listing(commit(3), compaction(0, 2))
    assert names(LogSegment.for_version(log)) == ([], [compaction(0, 2), commit(3)])


def test_a_compaction_of_the_newest_versions_tells_that_they_are_there() -> None:
    log = listing(commit(0), compaction(1, 3))
    assert names(LogSegment.for_version(log)) == ([], [commit(0), compaction(1, 3)])
    assert log.head_version == 3


def test_a_compaction_that_begins_at_another_version_is_of_no_use() -> None:
    with pytest.raises(MissingVersionError):
        LogSegment.for_version(listing(*commits(0, 4), compaction(2, 3)))


def test_a_checksum_belongs_to_its_version_only() -> None:
    log = listing(*commits(0, 1), f"{1:020}.crc")
    assert LogSegment.for_version(log).checksum_version == 1
    assert LogSegment.for_version(log, 0).checksum_version is None
