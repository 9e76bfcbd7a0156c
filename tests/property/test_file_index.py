"""The index of live files is what a dictionary would be, whatever came and in whichever form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailerd.formats.delta.protocol import file_index
from tailerd.formats.delta.protocol.commit_file import Commit
from tailerd.formats.delta.protocol.file_index import CheckpointFiles, FileIndex

LARGEST = 2**64 - 1

keys = st.integers(0, 6) | st.sampled_from([2**63 - 1, 2**63, LARGEST - 1, LARGEST])
entries = st.lists(st.tuples(keys, st.integers(0, 2**40)), max_size=6)
commits = st.lists(st.tuples(entries, st.lists(keys, max_size=6)), max_size=8)
bounds = st.lists(keys, max_size=3)


@dataclass
class Model:
    """Live files as a dictionary: key to (size, where it is written down)."""

    files: dict[int, tuple[int, tuple[str, int]]]

    def start(self, checkpoint: list[tuple[int, int]]) -> None:
        for row, (key, size) in enumerate(checkpoint):
            self.files[key] = (size, ("row", row))

    def apply(self, version: int, adds: list[tuple[int, int]], removes: list[int]) -> None:
        for key in removes:
            self.files.pop(key, None)
        for key, size in adds:
            self.files[key] = (size, ("version", version))


def index_of(version: int, checkpoint: list[tuple[int, int]], parts: int) -> FileIndex:
    rows = list(enumerate(checkpoint))
    cut = -(-len(rows) // parts) or 1
    stretches = [rows[start : start + cut] for start in range(0, len(rows), cut)]
    return FileIndex.from_checkpoint(
        version,
        [
            CheckpointFiles(
                keys=np.array([key for _, (key, _) in part], np.uint64),
                sizes=np.array([size for _, (_, size) in part], np.int64),
                rows=np.array([row for row, _ in part], np.uint32),
            )
            for part in stretches
        ],
    )


def make_commit(version: int, adds: list[tuple[int, int]], removes: list[int]) -> Commit:
    return Commit(
        version,
        added_keys=[key for key, _ in adds],
        added_sizes=[size for _, size in adds],
        removed_keys=list(removes),
    )


def origins_of(index: FileIndex, first: int, until: int | None) -> dict[int, tuple[str, int]]:
    found = index.origins_between(first, until)
    assert found.checkpoint_rows.tolist() == sorted(found.checkpoint_rows.tolist())
    assert found.commit_keys.tolist() == sorted(found.commit_keys.tolist())
    rows = zip(found.checkpoint_keys.tolist(), found.checkpoint_rows.tolist(), strict=True)
    versions = zip(found.commit_keys.tolist(), found.commit_versions.tolist(), strict=True)
    origins = {key: ("row", row) for key, row in rows}
    origins |= {key: ("version", version) for key, version in versions}
    assert len(origins) == found.count
    return origins


@pytest.mark.parametrize(
    ("fold_at_least", "bulk_commit"),
    [(65_536, 16_384), (0, 16_384), (2, 3), (65_536, -1), (0, -1), (65_536, 2)],
    ids=["dict", "fold", "mixed", "bulk", "fold and bulk", "some bulk"],
)
@given(
    checkpoint=entries,
    parts=st.integers(1, 3),
    history=commits,
    ranges=bounds,
    looks=st.sets(st.integers(0, 8)),
)
def test_any_history_of_commits_gives_the_dictionarys_files(
    fold_at_least: int,
    bulk_commit: int,
    checkpoint: list[tuple[int, int]],
    parts: int,
    history: list[tuple[list[tuple[int, int]], list[int]]],
    ranges: list[int],
    looks: set[int],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_index, "FOLD_AT_LEAST", fold_at_least)
        patch.setattr(file_index, "BULK_COMMIT", bulk_commit)
        index, model = index_of(10, checkpoint, parts), Model({})
        model.start(checkpoint)
        for version, (adds, removes) in enumerate(history, start=11):
            index.apply(make_commit(version, adds, removes))
            model.apply(version, adds, removes)
            assert index.num_files == len(model.files)
            assert index.size_bytes == sum(size for size, _ in model.files.values())
            if version - 11 in looks:
                # Looking folds, which later commits must not notice.
                assert_same(index, model)
        assert_same(index, model)
        for first in ranges:
            for until in (None, *ranges):
                expected = {
                    key: origin
                    for key, (_, origin) in model.files.items()
                    if key >= first and (until is None or key < until)
                }
                if until is None or until >= first:
                    assert origins_of(index, first, until) == expected


def assert_same(index: FileIndex, model: Model) -> None:
    found, sizes = index.sorted_files()
    assert found.tolist() == sorted(model.files)
    assert sizes.tolist() == [model.files[key][0] for key in sorted(model.files)]
    assert origins_of(index, 0, None) == {key: origin for key, (_, origin) in model.files.items()}


def test_an_index_without_a_checkpoint_counts_versions_from_zero() -> None:
    index = FileIndex()
    index.apply(make_commit(0, [(1, 10)], []))
    index.apply(make_commit(1, [(2, 20)], [1]))
    assert origins_of(index, 0, None) == {2: ("version", 1)}


def test_an_empty_index_has_nothing() -> None:
    for index in (FileIndex(), FileIndex.from_checkpoint(3, [])):
        index.apply(make_commit(4, [], [1, 2]))
        assert (index.num_files, index.size_bytes) == (0, 0)
        assert origins_of(index, 0, None) == {}
