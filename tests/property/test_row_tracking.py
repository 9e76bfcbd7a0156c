"""Row tracking tells what a commit carried over, and which old and new row are one update.

Random histories of a table with ids, by writers that keep them and by one that does not. The model
of a row is its id, the commit that changed it last, and its value; what the changes must be follows
from the values alone, but for the updates, which follow from the ids.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeType
from tailerd.changefeed.limits import BatchLimit
from tests.property.test_exact_changes import changes_by_version
from tests.tables.builder import TableBuilder
from tests.tables.naive_log import Action

PRESERVED = {"delta.rowTracking.preserved": "true"}
ID, VERSION = "_row-id-col", "_row-commit-version-col"
TRACKED = {
    "delta.enableRowTracking": "true",
    "delta.rowTracking.materializedRowIdColumnName": ID,
    "delta.rowTracking.materializedRowCommitVersionColumnName": VERSION,
}
Value = tuple[int, str | None]
"""Column `value`, and the partition."""


@dataclass(frozen=True)
class Row:
    """What the model knows of a row."""

    id: int
    version: int
    value: int


@dataclass
class LiveFile:
    """A file of the table, the rows in it, and those that a vector deletes."""

    add: Action
    rows: list[Row]
    partition: str | None
    deleted: frozenset[int] = frozenset()

    def live(self) -> list[Row]:
        return [row for position, row in enumerate(self.rows) if position not in self.deleted]


def tracked_table(folder: Path, **properties: str) -> TableBuilder:
    return TableBuilder(
        folder,
        fields=[("value", "long"), ("p", "string")],
        partition_by=["p"],
        reader_features=["deletionVectors"],
        writer_features=["rowTracking", "domainMetadata"],
        properties={**TRACKED, **properties},
    )


@dataclass
class History:
    """Writes random commits; `snapshots` has the live rows of each version by their ids."""

    data: st.DataObject
    folder: Path
    values: st.SearchStrategy[int]
    builder: TableBuilder = field(init=False)
    files: list[LiveFile] = field(default_factory=list)
    states: list[list[LiveFile]] = field(default_factory=list)
    snapshots: list[dict[int, Value]] = field(default_factory=list)
    is_preserved: list[bool] = field(default_factory=list)
    next_id: int = 0

    def __post_init__(self) -> None:
        self.builder = tracked_table(self.folder)
        self.files = [self._fresh(0) for _ in range(self.data.draw(st.integers(1, 3)))]
        self.builder.create(*(file.add for file in self.files))
        self._note(is_preserved=True)

    def commit(self) -> None:
        """Write one commit: files removed, rewritten, given vectors, brought back, and added."""
        version = self.builder.version + 1
        is_preserved = self.data.draw(st.sampled_from([True, True, False]))
        if len(self.states) > 1 and self.data.draw(st.integers(0, 4)) == 0:
            actions = self._restored()
        else:
            actions = self._changed(version, is_preserved)
        tags = PRESERVED if is_preserved else None
        self.builder.commit(*self.data.draw(st.permutations(actions)), tags=tags)
        self._note(is_preserved=is_preserved)

    def _changed(self, version: int, is_preserved: bool) -> list[Action]:
        actions: list[Action] = []
        for file in list(self.files):
            match self.data.draw(st.sampled_from(["keep", "remove", "rewrite", "vector"])):
                case "remove":
                    self.files.remove(file)
                    actions.append(self.builder.remove(file.add))
                case "rewrite":
                    self.files.remove(file)
                    actions.append(self.builder.remove(file.add))
                    actions += self._rewritten(file, version, is_preserved)
                case "vector":
                    actions += self._with_vector(file)
        for _ in range(self.data.draw(st.integers(0, 1))):
            self.files.append(self._fresh(version))
            actions.append(self.files[-1].add)
        return actions

    def _restored(self) -> list[Action]:
        expected = self.data.draw(st.sampled_from(self.states))
        there = [file.add for file in self.files]
        back = [file.add for file in expected]
        actions = [self.builder.remove(add) for add in there if add not in back]
        actions += [add for add in back if add not in there]
        self.files = [LiveFile(f.add, f.rows, f.partition, f.deleted) for f in expected]
        return actions

    def _rewritten(self, file: LiveFile, version: int, is_preserved: bool) -> list[Action]:
        rows: list[Row] = []
        for row in self.data.draw(st.permutations(file.live())):
            match self.data.draw(st.sampled_from(["same", "same", "change", "as it was", "drop"])):
                case "same":
                    rows.append(row)
                case "change":
                    rows.append(Row(row.id, version, self.data.draw(self.values)))
                case "as it was":
                    rows.append(Row(row.id, version, row.value))
        if not rows:
            return []
        partition = self.data.draw(st.sampled_from([file.partition, file.partition, "b"]))
        if partition != file.partition:
            rows = [Row(row.id, version, row.value) for row in rows]
        first = self.next_id
        if not is_preserved:
            rows = [Row(first + at, version, row.value) for at, row in enumerate(rows)]
        self.files.append(self._file(rows, partition, version))
        return [self.files[-1].add]

    def _with_vector(self, file: LiveFile) -> list[Action]:
        more = self.data.draw(st.frozensets(st.integers(0, len(file.rows) - 1), min_size=1))
        if more <= file.deleted:
            return []
        removed = self.builder.remove(file.add)
        file.deleted |= more
        file.add = self.builder.with_vector(file.add, file.deleted)
        return [removed, file.add]

    def _fresh(self, version: int) -> LiveFile:
        values = self.data.draw(st.lists(self.values, min_size=1, max_size=5))
        rows = [Row(self.next_id + at, version, value) for at, value in enumerate(values)]
        return self._file(rows, self.data.draw(st.sampled_from([None, "a"])), version)

    def _file(self, rows: list[Row], partition: str | None, version: int) -> LiveFile:
        ids, versions = [row.id for row in rows], [row.version for row in rows]
        first, self.next_id = self.next_id, self.next_id + len(rows)
        defaults = list(range(first, self.next_id))
        columns = {"value": pa.array([row.value for row in rows], pa.int64())}
        # A writer may leave out what follows from the action, in a row or in all of them.
        if ids != defaults or self.data.draw(st.booleans()):
            columns[ID] = self._sparse(ids, defaults)
        if set(versions) != {version} or self.data.draw(st.booleans()):
            columns[VERSION] = self._sparse(versions, [version] * len(rows))
        add = self.builder.data_file(
            pa.table(columns),
            partition={"p": partition},
            row_group_size=self.data.draw(st.integers(1, 4)),
            baseRowId=first,
            defaultRowCommitVersion=version,
        )
        return LiveFile(add, rows, partition)

    def _sparse(self, values: Sequence[int], defaults: Sequence[int]) -> pa.Array:
        is_left_out = self.data.draw(st.booleans())
        pairs = zip(values, defaults, strict=True)
        return pa.array(
            [None if is_left_out and one == two else one for one, two in pairs], "int64"
        )

    def _note(self, *, is_preserved: bool) -> None:
        self.states.append([LiveFile(f.add, f.rows, f.partition, f.deleted) for f in self.files])
        self.snapshots.append(
            {row.id: (row.value, file.partition) for file in self.files for row in file.live()}
        )
        self.is_preserved.append(is_preserved)


def list_rows(batches: Sequence[ChangeBatch]) -> list[tuple[str, Value]]:
    """Return kind and row of each change, in order."""
    found: list[tuple[str, Value]] = []
    for batch in batches:
        columns = (batch.rows.column(name).to_pylist() for name in ("value", "p"))
        rows = list(zip(*columns, strict=True))
        found += zip(batch.change_types().to_pylist(), rows, strict=True)
    return found


VALUES = st.sampled_from([st.integers(0, 2), st.integers(0, 10**12)])


@given(VALUES, st.integers(1, 4), st.integers(1, 5), st.data())
@settings(max_examples=150, deadline=None)
def test_changes_follow_from_the_values_and_updates_from_the_ids(
    values: st.SearchStrategy[int], commits: int, batch_rows: int, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        history = History(data, Path(folder), values)
        for _ in range(commits):
            history.commit()
        limit = BatchLimit(max_rows=batch_rows)
        found = asyncio.run(changes_by_version(Path(folder), commits, limit))
    for version, batches in enumerate(found, 1):
        before, after = history.snapshots[version - 1 : version + 1]
        check(list_rows(batches), before, after, is_preserved=history.is_preserved[version])


def check(
    rows: list[tuple[str, Value]],
    before: dict[int, Value],
    after: dict[int, Value],
    *,
    is_preserved: bool,
) -> None:
    """Check the changes of one commit against the rows of its two versions by their ids."""
    kinds = [kind for kind, _ in rows]
    old, new = ChangeType.UPDATE_PREIMAGE, ChangeType.UPDATE_POSTIMAGE
    models = Counter(before.values()), Counter(after.values())
    assert Counter(v for k, v in rows if k in (ChangeType.DELETE, old)) == models[0] - models[1]
    assert Counter(v for k, v in rows if k in (ChangeType.INSERT, new)) == models[1] - models[0]
    is_delete = [kind == ChangeType.DELETE for kind in kinds]
    assert is_delete == sorted(is_delete, reverse=True), "deletes come first"
    at = [position for position, kind in enumerate(kinds) if kind == old]
    assert (
        [kinds[position + 1] for position in at]
        == [new] * len(at)
        == [k for k in kinds if k == new]
    )
    pairs = [(rows[position][1], rows[position + 1][1]) for position in at]
    both = before.keys() & after.keys()
    expected = Counter((before[i], after[i]) for i in both if before[i] != after[i])
    if not is_preserved:
        assert not pairs
    elif max([*models[0].values(), *models[1].values()], default=1) == 1 and not (
        models[0].keys() & models[1].keys() - {before[i] for i in both if before[i] == after[i]}
    ):
        assert Counter(pairs) == expected
    else:
        # Which of several equal rows are left over is not said.
        assert not Counter(pairs) - expected


def two_versions(folder: Path, tags: dict[str, str] | None, **properties: str) -> TableBuilder:
    """Write a table, and a commit that gives each row its id again with another value."""
    table = tracked_table(folder, **properties)
    ids: dict[str, Any] = {"baseRowId": 0, "defaultRowCommitVersion": 0}
    first = table.data_file(pa.table({"value": [1, 2]}), partition={"p": None}, **ids)
    table.create(first)
    columns = {"value": [3, 4], ID: [0, 1], VERSION: [0, 0]}
    ids = {"baseRowId": 2, "defaultRowCommitVersion": 1}
    again = table.data_file(pa.table(columns), partition={"p": None}, **ids)
    table.commit(table.remove(first), again, tags=tags)
    return table


def list_changes(folder: Path) -> list[tuple[str, Any]]:
    [batches] = asyncio.run(changes_by_version(folder, 1, BatchLimit()))
    return [(kind, value) for kind, (value, _) in list_rows(batches)]


def test_what_has_its_id_and_version_still_is_not_even_read(tmp_path: Path) -> None:
    # The other values would be an update, had they been read.
    two_versions(tmp_path, PRESERVED)
    assert list_changes(tmp_path) == []


COMPARED = [("delete", 1), ("delete", 2), ("insert", 3), ("insert", 4)]


@pytest.mark.parametrize(
    ("tags", "properties"),
    [
        (None, {}),
        ({"delta.rowTracking.preserved": "false"}, {}),
        (PRESERVED, {"delta.enableRowTracking": "false"}),
        (PRESERVED, {"delta.rowTrackingSuspended": "true"}),
        (PRESERVED, {"delta.rowTracking.materializedRowIdColumnName": ""}),
    ],
)
def test_where_ids_do_not_tell_values_are_compared(
    tmp_path: Path, tags: dict[str, str] | None, properties: dict[str, str]
) -> None:
    two_versions(tmp_path, tags, **properties)
    assert list_changes(tmp_path) == COMPARED


def test_ids_of_versions_before_row_tracking_do_not_count(tmp_path: Path) -> None:
    table = two_versions(tmp_path, PRESERVED)
    body = (
        table.commit_path(0).read_bytes().replace(b'"delta.enableRowTracking": "true"', b'"a": ""')
    )
    table.raw_commit(body, version=0)
    lines = table.commit_path(1).read_bytes().splitlines()
    metadata = json.dumps(table.metadata()).encode()
    table.raw_commit(b"\n".join([metadata, *lines]), version=1)
    assert list_changes(tmp_path) == COMPARED


@pytest.mark.parametrize("base", [None, -1, 2**63 - 1, 2**70])
def test_a_file_without_a_sensible_id_is_compared_by_values(
    tmp_path: Path, base: int | None
) -> None:
    table = two_versions(tmp_path, PRESERVED)
    lines = table.commit_path(1).read_text()
    text = lines.replace(
        '"baseRowId": 2', '"ignored": 0' if base is None else f'"baseRowId": {base}'
    )
    assert text != lines
    table.raw_commit(text.encode(), version=1)
    assert list_changes(tmp_path) == COMPARED


def test_a_table_with_a_column_of_that_name_is_compared_by_values(tmp_path: Path) -> None:
    table = tracked_table(tmp_path)
    table.fields.append({**table.fields[0], "name": "_metadata.row_id"})
    ids: dict[str, Any] = {"baseRowId": 0, "defaultRowCommitVersion": 0}
    columns: dict[str, list[int]] = {"value": [1], "_metadata.row_id": [7]}
    first = table.data_file(pa.table(columns), partition={"p": None}, **ids)
    table.create(first)
    columns |= {"value": [2], ID: [0], VERSION: [0]}
    again = table.data_file(pa.table(columns), partition={"p": None}, **ids)
    table.commit(table.remove(first), again, tags=PRESERVED)
    assert list_changes(tmp_path) == [("delete", 1), ("insert", 2)]
