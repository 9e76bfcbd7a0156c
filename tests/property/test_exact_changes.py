"""Changes without a feed are the exact difference: for random tables of every type.

The model is `collections.Counter`: what version v - 1 has and v has not is deleted, and the other
way round. Rows are compared by their meaning (`tests.rows.random_tables`).
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeMode, ChangeType
from tailerd.changefeed.limits import BatchLimit
from tailerd.formats.base import OpenRequest
from tests.rows.random_tables import (
    Model,
    RandomTable,
    Row,
    meaning,
    tables,
    values_by_type,
)
from tests.tables import delta_schema
from tests.tables.builder import TableBuilder
from tests.tables.feed import EVERYTHING, read_batches
from tests.tables.naive_log import Action
from tests.tables.opened import open_delta

_DELTA_TYPES: dict[pa.DataType, str] = {
    **{kind: name for name, kind in delta_schema._ARROW.items()},
    pa.large_string(): "string",
    pa.null(): "void",
    pa.decimal128(10, 2): "decimal(10,2)",
    pa.decimal128(38, 0): "decimal(38,0)",
}
FEATURES = ("deletionVectors", "variantType", "timestampNtz")


def delta_type(item: pa.Field) -> delta_schema.DeltaType:
    """Return the Delta type of an Arrow field."""
    kind = item.type
    if item.metadata or kind in _DELTA_TYPES:
        return "variant" if item.metadata else _DELTA_TYPES[kind]
    if pa.types.is_struct(kind):
        return delta_schema.struct(*(delta_schema.field(c.name, delta_type(c)) for c in kind))
    if pa.types.is_list(kind):
        return delta_schema.array(delta_type(kind.value_field))
    return delta_schema.map_of(delta_type(kind.key_field), delta_type(kind.item_field))


@dataclass
class LiveFile:
    """A file of the table as it is: its action, its rows, and those a vector deletes."""

    add: Action
    rows: list[Row]
    partition: str | None
    deleted: frozenset[int] = frozenset()

    def live(self) -> list[Row]:
        return [row for position, row in enumerate(self.rows) if position not in self.deleted]


@dataclass
class History:
    """Writes random commits and keeps the multiset of rows of each version."""

    data: st.DataObject
    table: RandomTable
    folder: Path
    builder: TableBuilder = field(init=False)
    files: list[LiveFile] = field(default_factory=list)
    snapshots: list[Counter[Model]] = field(default_factory=list)

    def __post_init__(self) -> None:
        fields = [delta_schema.field(item.name, delta_type(item)) for item in self.table.schema]
        self.builder = TableBuilder(
            self.folder,
            fields=[*fields, delta_schema.field("p", "string")],
            partition_by=["p"],
            reader_features=FEATURES,
        )
        self.builder.create(*self._added(1, 3))
        self._note()

    def _rows(self, pool: Sequence[Row]) -> list[Row]:
        fresh = self.table.rows
        rows = st.lists(st.sampled_from(pool) | fresh if pool else fresh, min_size=1, max_size=6)
        return self.data.draw(rows)

    def _file(self, rows: list[Row], partition: str | None) -> LiveFile:
        written = pa.Table.from_batches([self.table.batch(rows)])
        add = self.builder.data_file(
            written,
            partition={"p": partition},
            stats=self.data.draw(st.booleans()),
            row_group_size=self.data.draw(st.integers(1, 4)),
        )
        return LiveFile(add, rows, partition)

    def _added(self, least: int, most: int, pool: Sequence[Row] = ()) -> list[Action]:
        added = [
            self._file(self._rows(pool), self.data.draw(st.sampled_from([None, "", "a"])))
            for _ in range(self.data.draw(st.integers(least, most)))
        ]
        self.files += added
        return [file.add for file in added]

    def commit(self) -> None:
        """Write one commit: files removed, rewritten, given other vectors, and added."""
        actions: list[Action] = []
        pool: list[Row] = []
        for file in list(self.files):
            match self.data.draw(st.sampled_from(["keep", "remove", "rewrite", "vector"])):
                case "remove":
                    self._remove(file, actions)
                    pool += file.rows
                case "rewrite":
                    self._remove(file, actions)
                    rows = self._rewritten(file.live())
                    if rows:
                        self.files.append(self._file(rows, file.partition))
                        actions.append(self.files[-1].add)
                case "vector":
                    actions += self._with_vector(file)
        actions += self._added(0, 2, pool)
        self.builder.commit(*self.data.draw(st.permutations(actions)))
        self._note()

    def _remove(self, file: LiveFile, actions: list[Action]) -> None:
        self.files.remove(file)
        stats = file.add["add"].get("stats")
        known = {"stats": stats} if stats and self.data.draw(st.booleans()) else {}
        actions.append(self.builder.remove(file.add, **known))

    def _rewritten(self, rows: list[Row]) -> list[Row]:
        if self.data.draw(st.booleans()):
            rows = self.data.draw(st.permutations(rows))
        keeps = st.sampled_from(["same", "same", "change", "drop", "twice"])
        found: list[Row] = []
        for row in rows:
            match self.data.draw(keeps):
                case "same":
                    found.append(row)
                case "change":
                    found.append(self.data.draw(self.table.rows))
                case "twice":
                    found += [row, row]
        return found

    def _with_vector(self, file: LiveFile) -> list[Action]:
        positions = st.frozensets(st.integers(0, len(file.rows) - 1), min_size=1)
        deleted = self.data.draw(positions)
        if deleted == file.deleted:
            return []
        removed = self.builder.remove(file.add)
        file.add = self.builder.with_vector(file.add, deleted)
        file.deleted = deleted
        return [removed, file.add]

    def _note(self) -> None:
        self.snapshots.append(
            Counter(
                (*model, file.partition)
                for file in self.files
                for model in self.table.model(file.live())
            )
        )


def multiset(batches: Iterable[ChangeBatch], *kinds: ChangeType) -> Counter[Model]:
    """Return the rows of some changes, by meaning."""
    found: Counter[Model] = Counter()
    for batch in batches:
        fields = list(batch.rows.schema)
        columns = [column.to_pylist() for column in batch.rows.columns]
        for kind, row in zip(
            batch.change_types().to_pylist(), zip(*columns, strict=True), strict=True
        ):
            if kind in kinds:
                *values, partition = row
                model = (meaning(v, f) for v, f in zip(values, fields[:-1], strict=True))
                found[(*model, partition)] += 1
    return found


async def changes_by_version(
    folder: Path, versions: int, limit: BatchLimit, identity: Sequence[str] = ()
) -> list[list[ChangeBatch]]:
    """Return the batches of each commit from version 1 on."""
    source = await open_delta(
        str(folder), OpenRequest(changes=ChangeMode.AUTO, identity=tuple(identity))
    )
    at = await source.initial_offset("1")
    found: list[list[ChangeBatch]] = [[] for _ in range(versions)]
    while (end := await source.latest_offset(at, EVERYTHING)) != at:
        for batch in await read_batches(source, at, end, limit):
            found[batch.version - 1].append(batch)
        at = end
    return found


@given(tables(), st.integers(1, 3), st.integers(1, 5), st.data())
@settings(max_examples=150, deadline=None)
def test_changes_are_minimal_and_lead_from_each_snapshot_to_the_next(
    table: RandomTable, commits: int, batch_rows: int, data: st.DataObject
) -> None:
    check_history(table, commits, batch_rows, data)


def check_history(table: RandomTable, commits: int, batch_rows: int, data: st.DataObject) -> None:
    """Make random commits; compare the changes of each with the snapshots around it."""
    with tempfile.TemporaryDirectory() as folder:
        history = History(data, table, Path(folder))
        for _ in range(commits):
            history.commit()
        limit = BatchLimit(max_rows=batch_rows)
        found = asyncio.run(changes_by_version(Path(folder), commits, limit))
    for version, batches in enumerate(found, 1):
        before, after = history.snapshots[version - 1 : version + 1]
        assert multiset(batches, ChangeType.DELETE) == before - after
        assert multiset(batches, ChangeType.INSERT) == after - before
        kinds = [kind for batch in batches for kind in batch.change_types().to_pylist()]
        assert kinds == sorted(kinds), "deletes come before inserts"


@pytest.mark.parametrize("name", values_by_type())
async def test_each_value_of_a_type_becomes_each_other(tmp_path: Path, name: str) -> None:
    item, values = values_by_type()[name]
    table = RandomTable(pa.schema([item]), st.nothing())
    builder = TableBuilder(
        tmp_path,
        fields=[delta_schema.field("c", delta_type(item)), delta_schema.field("p", "string")],
        partition_by=["p"],
        reader_features=FEATURES,
    )
    rows: list[Row] = [(value,) for value in values for _ in range(2)]
    snapshots = [rows]
    for position in range(len(rows)):
        for value in values:
            rows = [*rows[:position], (value,), *rows[position + 1 :]]
            snapshots.append(rows[::-1] if value is None else rows)
    files = [
        builder.data_file(pa.Table.from_batches([table.batch(rows)]), partition={"p": "a"})
        for rows in snapshots
    ]
    builder.create(files[0])
    for old, new in itertools.pairwise(files):
        builder.commit(builder.remove(old), new)
    found = await changes_by_version(tmp_path, len(files) - 1, BatchLimit())
    models = [Counter((*row, "a") for row in table.model(rows)) for rows in snapshots]
    for batches, (before, after) in zip(found, itertools.pairwise(models), strict=True):
        assert multiset(batches, ChangeType.DELETE) == before - after
        assert multiset(batches, ChangeType.INSERT) == after - before


KEYED = RandomTable(
    pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.string())]),
    st.tuples(st.none() | st.integers(0, 3), st.sampled_from(["a", "b"])),
)


@given(st.integers(1, 3), st.integers(1, 5), st.data())
@settings(max_examples=100, deadline=None)
def test_a_key_that_is_unique_among_deletes_and_inserts_makes_an_update(
    commits: int, batch_rows: int, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        history = History(data, KEYED, Path(folder))
        for _ in range(commits):
            history.commit()
        limit = BatchLimit(max_rows=batch_rows)
        found = asyncio.run(changes_by_version(Path(folder), commits, limit, ["k"]))
    for version, batches in enumerate(found, 1):
        check_pairs(batches, *history.snapshots[version - 1 : version + 1])


def check_pairs(batches: list[ChangeBatch], before: Counter[Model], after: Counter[Model]) -> None:
    """Check the changes of one commit against its two snapshots, keys being in the first column."""
    old, new = ChangeType.UPDATE_PREIMAGE, ChangeType.UPDATE_POSTIMAGE
    deleted, inserted = before - after, after - before
    assert multiset(batches, ChangeType.DELETE, old) == deleted
    assert multiset(batches, ChangeType.INSERT, new) == inserted
    keys = [Counter(row[0] for row in rows.elements()) for rows in (deleted, inserted)]
    paired = {key for key, count in keys[0].items() if count == keys[1][key] == 1}
    rows: list[tuple[str, Any]] = []
    for batch in batches:
        model = batch.rows.column("k").to_pylist()
        found = list(zip(batch.change_types().to_pylist(), model, strict=True))
        assert found[-1][0] != old, "both images are in one batch"
        rows += found
    is_delete = [kind == ChangeType.DELETE for kind, _ in rows]
    assert is_delete == sorted(is_delete, reverse=True), "deletes come first"
    updates = [(kind, key) for kind, key in rows if kind in (old, new)]
    assert [kind for kind, _ in updates] == [old, new] * len(paired)
    assert [key for _, key in updates[::2]] == [key for _, key in updates[1::2]]
    meant = {meaning(key, pa.field("k", pa.int64())) for _, key in updates}
    assert meant == paired


@pytest.mark.parametrize("mode", [ChangeMode.AUTO, ChangeMode.FILES])
async def test_an_update_of_one_row_is_two_rows_and_raw_ones_are_all(
    tmp_path: Path, mode: ChangeMode
) -> None:
    table = TableBuilder(tmp_path)
    rows = [{"id": number, "name": "a"} for number in range(1000)]
    [add] = table.append(rows).adds
    table.commit(table.remove(add), table.data_file([{**rows[0], "name": "b"}, *rows[1:]]))
    source = await open_delta(str(tmp_path), OpenRequest(changes=mode))
    at = await source.initial_offset("1")
    batches = await read_batches(source, at, await source.latest_offset(at, EVERYTHING))
    count = sum(batch.num_rows for batch in batches)
    assert (count, {batch.change_source for batch in batches}) == (
        (2, {"rows"}) if mode is ChangeMode.AUTO else (2000, {"files"})
    )
