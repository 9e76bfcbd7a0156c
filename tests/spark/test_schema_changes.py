"""Schemas that change under a stream: queries end before the change, the next one goes on.

The driver's side is played here as Spark plays it, without Spark: offsets as JSON, planning before
reading, a new reader after every failure.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles

from tailerd.errors import SchemaChangedError, UsageError
from tailerd.spark.datasource import TailerdDataSource
from tailerd.spark.stream_reader import TailerdStreamReader
from tests.tables.builder import CDF, TableBuilder
from tests.tables.delta_schema import field, struct
from tests.tables.feed import changes

Row = dict[str, Any]


class Query:
    """A query with a checkpoint, started anew with the schema that its failure names.

    Attributes:
        rows: What was delivered.
        starts: The schema version of every start; None for the newest.
        columns: The columns of every start.
    """

    def __init__(self, table: TableBuilder, **options: str) -> None:
        self._options = {"path": str(table.folder), "startingVersion": "0", **options}
        self._ends: list[Any] = []
        self._is_pending = False
        self.rows: list[Row] = []
        self.starts: list[int | None] = []
        self.columns: list[list[str]] = []

    def run(self, limit: ReadLimit, *, die_after: int | None = None) -> None:
        """Follow to the head; or plan so many batches and die before the last is read."""
        version: int | None = None
        while True:
            reader = self._start(version)
            try:
                self._run(reader, limit, die_after)
                return
            except SchemaChangedError as error:
                version = self._next(error, version)
            finally:
                reader.stop()

    def _next(self, error: SchemaChangedError, version: int | None) -> int:
        named = error.schema_version
        assert named is not None
        assert named != version
        return named

    def _start(self, version: int | None) -> TailerdStreamReader:
        options = self._options if version is None else self._options | {"schemaVersion": version}
        source = TailerdDataSource({key: str(value) for key, value in options.items()})
        schema = source.schema()
        self.starts.append(version)
        self.columns.append(schema.names[:-3])
        reader = source.streamReader(schema)
        assert isinstance(reader, TailerdStreamReader)
        return reader

    def _run(self, reader: TailerdStreamReader, limit: ReadLimit, die_after: int | None) -> None:
        if not self._ends:
            self._ends.append(_saved(reader.initialOffset()))
        if self._is_pending:
            self._read(reader)
        reader.prepareForTriggerAvailableNow()
        planned = 0
        while (end := _saved(reader.latestOffset(self._ends[-1], limit))) != self._ends[-1]:
            self._ends.append(end)
            self._is_pending = True
            planned += 1
            if planned == die_after:
                return
            self._read(reader)

    def _read(self, reader: TailerdStreamReader) -> None:
        found = [
            row
            for partition in reader.partitions(self._ends[-2], self._ends[-1])
            for batch in reader.read(partition)
            for row in batch.to_pylist()
        ]
        self.rows += found
        self._is_pending = False
        reader.commit(self._ends[-1])


def _saved(fields: Any) -> Any:
    return json.loads(json.dumps(fields))


def _bare(row: Row) -> Row:
    return {k: v for k, v in row.items() if v is not None and k != "change_source"}


async def _expected(table: TableBuilder) -> list[Row]:
    return _sorted(await changes(table.folder))


def _sorted(rows: list[Row]) -> list[Row]:
    return sorted(map(_bare, rows), key=lambda row: json.dumps(row, sort_keys=True, default=str))


async def _agree(table: TableBuilder, query: Query) -> None:
    assert _sorted(query.rows) == await _expected(table)
    versions = [row["_commit_version"] for row in query.rows]
    assert versions == sorted(versions)


def _ids(table: TableBuilder) -> Row:
    return {"id": table.version + 1}


def _added(table: TableBuilder) -> None:
    table.change_metadata(fields=[*table.fields, field("note", "string")])
    table.append([_ids(table) | {"note": "new"}])


def _renamed(table: TableBuilder) -> None:
    table.rename_column("name", "label")
    table.append([_ids(table) | {"label": "b"}])


def _dropped(table: TableBuilder) -> None:
    table.change_metadata(fields=[table.field_named("id")])
    table.append([_ids(table)])


def _widened(table: TableBuilder) -> None:
    table.field_named("small")["type"] = "long"
    table.change_metadata()
    table.append([_ids(table) | {"small": 2**40}])


def _nested(table: TableBuilder) -> None:
    table.field_named("deep")["type"] = struct(field("a", "long"), field("b", "string"))
    table.change_metadata(fields=table.fields)
    table.append([_ids(table) | {"deep": {"a": 1, "b": "x"}}])


CHANGES = {
    "added": (_added, "column note"),
    "renamed": (_renamed, "column label"),
    "dropped": (_dropped, "column name"),
    "widened": (_widened, "column small"),
    "nested": (_nested, "deep"),
}


def _table(folder: Path, **options: Any) -> TableBuilder:
    deep = field("deep", struct(field("a", "long")))
    fields = [field("id", "long"), field("name", "string"), field("small", "integer"), deep]
    table = TableBuilder(folder, fields=fields, mapping="name", **options)
    table.append([{"id": 0, "name": "a", "small": 1, "deep": {"a": 1}}])
    return table


@pytest.mark.parametrize("change", CHANGES)
async def test_a_running_query_ends_before_the_change_and_says_how_to_go_on(
    tmp_path: Path, change: str
) -> None:
    table = _table(tmp_path)
    source = TailerdDataSource({"path": str(table.folder), "startingversion": "0"})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, TailerdStreamReader)
    table.append([{"id": 1, "name": "before"}])
    alter, reported = CHANGES[change]
    alter(table)
    try:
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        assert (end["version"], end["position"]) == (3, 0)
        with pytest.raises(SchemaChangedError, match=rf"Version 3 has .*{reported}") as raised:
            reader.latestOffset(end, ReadAllAvailable())
    finally:
        reader.stop()
    assert raised.value.schema_version == 3


@pytest.mark.parametrize("change", CHANGES)
async def test_a_query_started_again_gives_every_row_once_on_both_sides(
    tmp_path: Path, change: str
) -> None:
    table = _table(tmp_path)
    query = Query(table)
    query.run(ReadAllAvailable())
    CHANGES[change][0](table)
    query.run(ReadAllAvailable())
    await _agree(table, query)


async def test_a_query_from_the_beginning_takes_as_few_schemas_as_the_rows_allow(
    tmp_path: Path,
) -> None:
    table = _table(tmp_path)
    _added(table)
    table.change_metadata(fields=[*table.fields, field("more", "string")])
    table.append([_ids(table) | {"more": "m"}])
    _renamed_in = table.version + 1
    table.rename_column("note", "remark")
    table.append([_ids(table) | {"remark": "r"}])
    query = Query(table)
    query.run(ReadMaxFiles(1))
    # The newest does not fit the first rows; the one before the rename fits all up to there.
    assert query.starts == [None, 4, _renamed_in + 1]
    assert query.columns[1] == ["id", "name", "small", "deep", "note", "more"]
    await _agree(table, query)


async def test_a_commit_that_replaces_the_schema_is_divided_between_two_queries(
    tmp_path: Path,
) -> None:
    """Its deleted rows have the old columns and types, its inserted ones the new."""
    table = TableBuilder(tmp_path, reader_features=["deletionVectors"])
    first = table.append([{"id": 0, "name": "a"}, {"id": 1, "name": "b"}])
    [left] = table.delete_rows(first.adds[0], [0]).adds
    table.fields = [field("id", "string"), field("price", "double")]
    new = table.data_file([{"id": "x", "price": 1.5}])
    table.commit(table.metadata(), new, table.remove(left), operation="CREATE OR REPLACE TABLE")
    table.append([{"id": "y", "price": 2.5}])
    query = Query(table)
    query.run(ReadAllAvailable())
    assert query.starts == [None, 0, 2]
    await _agree(table, query)
    assert [(r["id"], r["_change_type"]) for r in query.rows[-3:]] == [
        (1, "delete"),
        ("x", "insert"),
        ("y", "insert"),
    ]


async def test_other_partitions_alone_are_no_reason_to_stop(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    table.append([{"id": 0, "name": "a"}])
    query = Query(table)
    query.run(ReadAllAvailable())
    old = table.state().adds
    table.partition_by = ["name"]
    files = table.data_files([{"id": 1, "name": "b"}, {"id": 2, "name": "c"}])
    removed = [table.remove({"add": action}) for action in old.values()]
    table.commit(table.metadata(), *removed, *files, operation="REPLACE TABLE")
    query.run(ReadAllAvailable())
    assert query.starts == [None, None]
    await _agree(table, query)


async def test_change_files_have_the_schema_of_their_commit(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, properties=CDF, mapping="name")
    table.append([{"id": 0, "name": "a"}])
    table.rename_column("name", "label")
    images = [{"id": 0, "label": "a", "_change_type": "delete"}]
    table.commit(table.cdc_file(images))
    query = Query(table)
    query.run(ReadAllAvailable())
    assert query.starts == [None, 0, 2]
    await _agree(table, query)


@pytest.mark.parametrize("change", CHANGES)
async def test_a_batch_planned_before_a_crash_is_repeated_with_its_own_schema(
    tmp_path: Path, change: str
) -> None:
    table = _table(tmp_path)
    table.append([{"id": 1, "name": "before"}])
    query = Query(table)
    query.run(ReadMaxFiles(1), die_after=2)
    assert len(query.rows) == 1
    CHANGES[change][0](table)
    query.run(ReadMaxFiles(1))
    await _agree(table, query)


def test_a_schema_of_ones_own_goes_on_over_every_change_it_can_hold(tmp_path: Path) -> None:
    table = _table(tmp_path)
    source = TailerdDataSource({"path": str(table.folder), "startingversion": "0"})
    schema = source.schema()
    for change in (_added, _renamed):
        change(table)
    own = TailerdDataSource({"path": str(table.folder), "startingversion": "0"})
    reader = own.streamReader(schema)
    assert isinstance(reader, TailerdStreamReader)
    try:
        end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        rows = [
            row
            for partition in reader.partitions(reader.initialOffset(), end)
            for batch in reader.read(partition)
            for row in batch.to_pylist()
        ]
    finally:
        reader.stop()
    assert [(row["id"], row["name"]) for row in rows] == [(0, "a"), (2, None), (4, None)]


def test_a_schema_version_beside_a_schema_of_ones_own_is_refused(tmp_path: Path) -> None:
    table = _table(tmp_path)
    options = {"path": str(table.folder), "schemaversion": "0"}
    schema = TailerdDataSource(options).schema()
    with pytest.raises(UsageError, match="schemaVersion"):
        TailerdDataSource(options).streamReader(schema)


@pytest.mark.parametrize("text", ["-1", "latest", "x"])
def test_a_schema_version_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="schemaVersion"):
        TailerdDataSource({"path": "/t", "schemaversion": text}).schema()


async def test_random_histories_come_whole_whatever_is_planned_and_killed(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    table = TableBuilder(tmp_path, mapping="name")
    table.append([{"id": 0, "name": "a"}])
    query = Query(table)
    spare = iter(range(1000))
    for _ in range(12):
        for _ in range(chance.randrange(1, 4)):
            _alter(table, chance, spare)
        die_after = chance.choice([None, 1, 2])
        query.run(ReadMaxFiles(chance.randrange(1, 4)), die_after=die_after)
    query.run(ReadAllAvailable())
    await _agree(table, query)


def _alter(table: TableBuilder, chance: random.Random, spare: Any) -> None:
    names = [item["name"] for item in table.fields]
    adds = [{"add": action} for action in table.state().adds.values()]
    match chance.choice(["append", "append", "remove", "add", "rename", "drop", "replace"]):
        case "remove" if adds:
            table.commit(table.remove(chance.choice(adds)))
        case "add":
            kind = chance.choice(["string", "long", "double"])
            table.change_metadata(fields=[*table.fields, field(f"c{next(spare)}", kind)])
        case "rename":
            table.rename_column(chance.choice(names), f"c{next(spare)}")
        case "drop" if len(names) > 1:
            gone = chance.choice(names)
            table.change_metadata(fields=[i for i in table.fields if i["name"] != gone])
        case "replace":
            kind = chance.choice(["string", "long"])
            table.fields = [field(name, kind) for name in chance.sample(names, 1)]
            table._assign_mapping()
            removed = [table.remove(action) for action in adds]
            table.commit(table.metadata(), _filled(table, chance), *removed, operation="REPLACE")
        case _:
            table.commit(_filled(table, chance))


def _filled(table: TableBuilder, chance: random.Random) -> dict[str, Any]:
    number = chance.randrange(1000)
    values = {"string": str(number), "long": number, "double": number / 4}
    rows = [{item["name"]: values[item["type"]] for item in table.fields} for _ in range(2)]
    return table.data_file(rows)
