"""The target follows the table's columns; other changes stop, or are left out."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tailerd.changefeed.offset import Phase
from tailerd.errors import ConfigError, IncompatibleSchemaError, ValueNotRepresentableError
from tests.postgres.deliveries import (
    INSERT,
    SCHEMA,
    at,
    changes,
    commit,
    make_sink,
    schema_change,
    snapshot,
    whole_snapshot,
)
from tests.postgres.server import Database

TYPES = """
    SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute
    WHERE attrelid = 'orders'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


def schema(*fields: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema([("id", pa.int64()), *fields])


@pytest.mark.parametrize("mode", ["upsert", "append"])
async def test_columns_are_added_and_widened_in_the_middle_of_a_delivery(
    postgres: Database, mode: str
) -> None:
    sink = make_sink(postgres, mode=mode)
    await sink.resume(at(0))
    old = schema(("n", pa.int16()), ("d", pa.decimal128(5, 2)), ("day", pa.date32()))
    new = schema(
        *(("n", pa.int64()), ("d", pa.decimal128(9, 4)), ("day", pa.timestamp("us"))),
        ("Added one", pa.list_(pa.int64())),
    )
    await sink.write(
        commit(
            0,
            changes(0, (INSERT, (1, 5, None, None)), schema=old),
            changes(0, (INSERT, (2, 2**40, None, 0, [1])), schema=new),
            changes(0, (INSERT, (3, 7, None, None)), schema=old),
        )
    )
    found = postgres.run('SELECT id, n, "Added one" FROM orders ORDER BY id')
    assert found == [(1, 5, None), (2, 2**40, [1]), (3, 7, None)]
    types = dict(postgres.run(TYPES))
    assert types["n"] == "bigint"
    assert types["d"] == "numeric(9,4)"
    assert types["day"] == "timestamp without time zone"
    await sink.aclose()


async def test_a_commit_without_rows_changes_the_columns_too(postgres: Database) -> None:
    sink = make_sink(postgres)
    await sink.resume(at(0))
    await sink.write(commit(0, schemas=[schema_change(0, SCHEMA, SCHEMA)]))
    assert postgres.run(TYPES) == [("id", "bigint"), ("name", "text")]
    comment = pa.field("more", pa.int8(), metadata={b"comment": b"of more"})
    await sink.write(commit(1, schemas=[schema_change(1, SCHEMA, SCHEMA.append(comment))]))
    assert postgres.run(TYPES)[-1] == ("more", "smallint")
    assert postgres.run("SELECT col_description('orders'::regclass, 3)") == [("of more",)]
    await sink.aclose()


@pytest.mark.parametrize("kind", ["dropped", "renamed"])
async def test_a_column_that_the_table_loses_stops_until_the_target_has_lost_it_too(
    postgres: Database, kind: str
) -> None:
    ids = [{b"PARQUET:field_id": b"%d" % number} for number in (1, 2)]
    old = pa.schema(
        [pa.field(f.name, f.type, metadata=m) for f, m in zip(SCHEMA, ids, strict=True)]
    )
    new = old.remove(1)
    if kind == "renamed":
        new = new.append(old.field(1).with_name("title"))
    row: tuple[Any, ...] = (2, "b") if kind == "renamed" else (2,)
    change = schema_change(1, old, new)
    sink = make_sink(postgres)
    await sink.resume(at(0))
    await sink.write(commit(0, changes(0, (INSERT, (1, "a")), schema=old)))
    batch = changes(1, (INSERT, row), schema=new)
    with pytest.raises(IncompatibleSchemaError, match=f"{kind}.*still has the column 'name'"):
        await sink.write(commit(1, batch, schemas=[change]))
    await sink.aclose()
    # Ignored, the column stays.
    sink = make_sink(postgres, on_incompatible_schema="ignore")
    await sink.resume(at(1))
    await sink.write(commit(1, batch, schemas=[change]))
    assert postgres.run("SELECT id, name FROM orders ORDER BY id") == [(1, "a"), (2, None)]
    await sink.aclose()
    postgres.run("ALTER TABLE orders DROP COLUMN name")
    sink = make_sink(postgres)
    await sink.resume(at(2))
    await sink.write(commit(2, changes(2, (INSERT, row), schema=new), schemas=[change]))
    await sink.aclose()


async def test_another_type_stops_and_a_snapshot_makes_the_column_again(
    postgres: Database,
) -> None:
    sink = make_sink(postgres)
    await sink.resume(at(0))
    await sink.write(commit(0, changes(0, (INSERT, (1, "a")))))
    postgres.run("CREATE INDEX by_name ON orders (name)")
    number = schema(("name", pa.int64()))
    with pytest.raises(IncompatibleSchemaError, match="'name' is text, and its values are bigint"):
        await sink.write(commit(1, changes(1, (INSERT, (1, 5)), schema=number)))
    await sink.resume(at(2, phase=Phase.SNAPSHOT))
    await sink.write(whole_snapshot(2, snapshot(2, (1, 5), schema=number)))
    assert postgres.run("SELECT id, name FROM orders") == [(1, 5)]
    assert len(postgres.run("SELECT FROM pg_indexes WHERE tablename = 'orders'")) == 2
    await sink.aclose()


async def test_a_table_of_the_user_may_be_wider_and_have_more_columns(postgres: Database) -> None:
    postgres.run(
        "CREATE TABLE orders (made timestamptz DEFAULT now(), name varchar, id numeric PRIMARY KEY)"
    )
    sink = make_sink(postgres)
    await sink.resume(at(0))
    await sink.write(commit(0, changes(0, (INSERT, (1, "a")))))
    assert postgres.run("SELECT id, name, made IS NOT NULL FROM orders") == [(1, "a", True)]
    await sink.aclose()


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("id bigint PRIMARY KEY, name int", "'name' is integer, and its values are text"),
        ("id int PRIMARY KEY, name text, x int NOT NULL", "'x' may not be null and has no default"),
        (
            "id bigint PRIMARY KEY, name text GENERATED ALWAYS AS ('x') STORED",
            "'name' is generated",
        ),
    ],
)
async def test_a_table_of_the_user_that_cannot_take_the_rows_is_refused(
    postgres: Database, columns: str, words: str
) -> None:
    postgres.run(f"CREATE TABLE orders ({columns})")
    sink = make_sink(postgres)
    await sink.resume(at(0))
    with pytest.raises(IncompatibleSchemaError, match=words):
        await sink.write(commit(0, changes(0, (INSERT, (1, "a")))))
    await sink.aclose()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ä" * 32, "more than 63 bytes"),
        ("ctid", "system column"),
        ("_event_id", "adds a column of the same name"),
    ],
)
async def test_a_name_that_postgresql_cannot_store_is_an_error(
    postgres: Database, name: str, words: str
) -> None:
    sink = make_sink(postgres, mode="append")
    await sink.resume(at(0))
    rows = changes(0, (INSERT, (1, 2)), schema=schema((name, pa.int64())))
    with pytest.raises(ConfigError, match=words):
        await sink.write(commit(0, rows))
    await sink.aclose()


async def test_a_value_that_cannot_be_stored_stops_or_becomes_null(postgres: Database) -> None:
    rows = changes(0, (INSERT, (1, "a\0b")), (INSERT, (2, "ok")))
    sink = make_sink(postgres)
    await sink.resume(at(0))
    with pytest.raises(ValueNotRepresentableError, match=r"1 row.*version 0.*'name'"):
        await sink.write(commit(0, rows))
    await sink.aclose()
    sink = make_sink(postgres, on_unrepresentable="null")
    await sink.resume(at(0))
    await sink.write(commit(0, rows))
    assert postgres.run("SELECT id, name FROM orders ORDER BY id") == [(1, None), (2, "ok")]
    await sink.aclose()
