from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.protocol import file_index, file_tally
from tailerd.formats.delta.protocol.commit_file import Commit, CommitScan
from tailerd.formats.delta.protocol.file_index import FileIndex
from tailerd.formats.delta.protocol.file_tally import BINS, SizeHistogram, VectorTally
from tests.formats.delta.log_bodies import add, body_of, make_commit, metadata, remove, vector
from tests.tables.builder import TableBuilder
from tests.tables.naive_log import Action


@pytest.mark.parametrize(
    ("size", "bin_number"),
    [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (1024, 10), (1025, 11), (2**62, 62)],
)
def test_a_size_falls_into_the_bin_of_the_next_power_of_two(size: int, bin_number: int) -> None:
    one, all_at_once = SizeHistogram(), SizeHistogram()
    one.count(size)
    all_at_once.count_all(np.array([size], np.int64))
    assert one.counts == all_at_once.counts
    assert one.counts.index(1) == bin_number
    assert sum(one.counts) == 1


@pytest.mark.parametrize("size", [-5, 2**63 - 1])
def test_sizes_that_cannot_be_are_counted_somewhere(size: int) -> None:
    one, all_at_once = SizeHistogram(), SizeHistogram()
    one.count(size)
    all_at_once.count_all(np.array([size], np.int64))
    assert one.counts == all_at_once.counts
    assert len(one.counts) == BINS


@dataclass(frozen=True)
class File:
    name: int
    size: int
    deleted: int


files = st.builds(File, st.integers(0, 20), st.integers(0, 3000), st.integers(0, 4))
steps = st.lists(st.tuples(st.lists(st.integers(0, 20), max_size=6), st.lists(files, max_size=6)))


def with_vector(file: File) -> Action:
    return vector(f"dv{file.deleted}", cardinality=file.deleted) if file.deleted else {}


def commit_of_step(
    version: int, live: dict[int, File], step: tuple[list[int], list[File]]
) -> Commit:
    """Remove some live files and add others, which replaces files of the same name."""
    gone = {name for name in step[0] if name in live} | {f.name for f in step[1] if f.name in live}
    actions = [remove(f"f{n}", **with_vector(live[n])) for n in sorted(gone)]
    for name in gone:
        del live[name]
    new = {file.name: file for file in step[1]}
    live.update(new)
    actions += [add(f"f{f.name}", size=f.size, **with_vector(f)) for f in new.values()]
    return make_commit(*actions, metadata(), version=version)


@pytest.mark.parametrize(("fold_at_least", "bulk"), [(3, 16_384), (65_536, 4), (65_536, 16_384)])
@settings(max_examples=50, deadline=None)
@given(steps)
def test_tallies_follow_any_commits(
    fold_at_least: int, bulk: int, given_steps: list[tuple[list[int], list[File]]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_index, "FOLD_AT_LEAST", fold_at_least)
        patch.setattr(file_index, "BULK_COMMIT", bulk)
        patch.setattr(file_tally, "FOLD_AT_LEAST", fold_at_least)
        index, live = FileIndex(), dict[int, File]()
        for version, step in enumerate(given_steps):
            index.apply(commit_of_step(version, live, step))
            expected = SizeHistogram()
            for file in live.values():
                expected.count(file.size)
            assert index.sizes.counts == expected.counts
            assert index.num_files == len(live)
            assert index.vectors.count == sum(1 for file in live.values() if file.deleted)
            assert index.vectors.deleted_rows == sum(file.deleted for file in live.values())


def test_forgetting_what_has_no_vector_changes_nothing() -> None:
    tally = VectorTally()
    tally.add([1, 2], [10, 20], [5, 6])
    tally.forget([3, 1, 1])
    assert (tally.count, tally.deleted_rows) == (1, 20)


LAYOUTS: tuple[Literal["v1", "v2-json", "v2-parquet"], ...] = ("v1", "v2-json", "v2-parquet")


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_checkpoint_gives_the_tallies_its_commits_give(
    tmp_path: Path, layout: Literal["v1", "v2-json", "v2-parquet"]
) -> None:
    table = TableBuilder(tmp_path, reader_features=["deletionVectors", "v2Checkpoint"])
    adds = [table.append([{"id": n, "name": "x" * n} for n in range(10)]).adds[0] for _ in range(4)]
    table.delete_rows(adds[0], [0, 3])
    table.delete_rows(adds[1], [1])
    plain = (await LogReader.at(str(tmp_path)).open()).files
    table.checkpoint(layout=layout)
    (table.log / f"{0:020}.json").unlink()
    files = (await LogReader.at(str(tmp_path)).open()).files
    assert files.sizes.counts == plain.sizes.counts
    assert (files.vectors.count, files.vectors.deleted_rows) == (2, 3)
    assert (plain.vectors.count, plain.vectors.deleted_rows) == (2, 3)


def scanned_rows(*actions: Action) -> tuple[int | None, int | None]:
    scan = CommitScan(1, "x.json", with_rows=True)
    scan.feed(body_of(*actions))
    commit = scan.finish()
    return commit.rows_added, commit.rows_removed


def test_rows_are_counted_from_statistics_and_unknown_where_one_file_has_none() -> None:
    four = add("a")
    four["add"]["stats"] = '{"numRecords":4}'
    gone = remove("b")
    gone["remove"]["stats"] = '{"numRecords":9}'
    assert scanned_rows(four, four, gone) == (8, 9)
    assert scanned_rows(four, add("c"), gone) == (None, 9)
    assert scanned_rows(four, remove("c")) == (4, None)
    assert make_commit(four).rows_added is None


def test_a_remove_without_statistics_has_the_rows_of_the_add_of_its_path() -> None:
    marked = add("a", **vector("dv"))
    marked["add"]["stats"] = '{"numRecords":4}'
    assert scanned_rows(remove("a"), marked) == (4, 4)
    assert scanned_rows(remove("b"), marked) == (4, None)
