from __future__ import annotations

import pytest

from tailerd.formats.delta.changes.commit_cache import TableStateHistory
from tailerd.formats.delta.protocol.actions import Metadata, Protocol
from tailerd.formats.delta.protocol.commit_file import Commit
from tailerd.formats.delta.protocol.snapshot import TableState


def metadata(name: str) -> Metadata:
    return Metadata(id=name, schema_string="{}")


def state(version: int) -> TableState:
    return TableState(
        version=version,
        protocol=Protocol(min_reader_version=1, min_writer_version=2),
        metadata=metadata(f"m{version}"),
    )


def timeline() -> TableStateHistory:
    """Versions 3 to 8; the metadata changes at 5 and 7."""
    found = TableStateHistory()
    found.restart(3, state(3))
    for version in range(4, 9):
        changed = metadata(f"m{version}") if version in (5, 7) else None
        found.extend(Commit(version, metadata=changed))
    return found


def test_each_version_has_the_state_of_its_last_change() -> None:
    found = timeline()
    names = [found.at(version).metadata.id for version in range(3, 9)]
    assert names == ["m3", "m3", "m5", "m5", "m7", "m7"]


@pytest.mark.parametrize(("version", "is_known"), [(2, False), (3, True), (8, True), (9, False)])
def test_only_looked_at_versions_are_known(version: int, is_known: bool) -> None:
    assert timeline().knows(version) is is_known


@pytest.mark.parametrize("version", [3, 8, 10])
def test_a_commit_that_is_not_the_next_teaches_nothing(version: int) -> None:
    found = timeline()
    found.extend(Commit(version, metadata=metadata("other")))
    assert not found.knows(9)
    assert found.at(8).metadata.id == "m7"


@pytest.mark.parametrize("until", range(3, 10))
def test_forgetting_keeps_what_later_versions_need(until: int) -> None:
    found = timeline()
    expected = [found.at(version).metadata.id for version in range(until, 9)]
    found.forget_before(until)
    assert [found.at(version).metadata.id for version in range(until, 9)] == expected
    assert all(found.knows(version) for version in range(until, 9))


def test_a_new_timeline_knows_nothing() -> None:
    assert not TableStateHistory().knows(0)
