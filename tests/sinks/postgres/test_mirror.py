"""A mirror has the last state of each key, and is replaced by snapshots at once."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from tailerd.changefeed.offset import Phase
from tailerd.errors import OffsetError, SinkRefusedError
from tailerd.sinks.postgres.sink import PostgresSink
from tests.postgres.deliveries import (
    AFTER,
    BEFORE,
    DELETE,
    INSERT,
    Change,
    at,
    changes,
    commit,
    deliver,
    make_sink,
    snapshot,
    whole_snapshot,
)
from tests.postgres.server import Database

NUM_KEYS = 12


async def started(sink: PostgresSink, version: int = 0, phase: Phase = Phase.FOLLOW) -> None:
    await sink.fence()
    await sink.resume(at(version, phase=phase))


def rows(postgres: Database) -> dict[int, str | None]:
    return dict(postgres.run("SELECT id, name FROM orders"))


async def test_a_key_has_its_last_state(postgres: Database) -> None:
    sink = make_sink(postgres)
    await started(sink)
    await sink.write(commit(0, changes(0, (INSERT, (1, "a")), (INSERT, (2, "b")))))
    first = changes(1, (BEFORE, (1, "a")), (AFTER, (1, "A")), (DELETE, (2, "b")))
    # Two commits in one delivery: a row comes back, and one comes and goes.
    second = changes(2, (INSERT, (2, "B")), (INSERT, (3, "c")))
    third = changes(3, (DELETE, (3, "c")))
    assert await sink.write(deliver(at(1), at(4), first, second, third)) == 6
    assert rows(postgres) == {1: "A", 2: "B"}
    await sink.aclose()


async def test_an_update_that_changes_the_key_removes_the_old_key(postgres: Database) -> None:
    sink = make_sink(postgres)
    await started(sink)
    await sink.write(commit(0, changes(0, (INSERT, (1, "a")), (INSERT, (2, "b")))))
    # Two rows swap their keys, and a third takes a new one.
    swap = changes(
        1,
        *((BEFORE, (1, "a")), (AFTER, (2, "a")), (BEFORE, (2, "b")), (AFTER, (1, "b"))),
        *((INSERT, (3, "c")),),
    )
    await sink.write(commit(1, swap))
    await sink.write(commit(2, changes(2, (BEFORE, (3, "c")), (AFTER, (4, "c")))))
    assert rows(postgres) == {1: "b", 2: "a", 4: "c"}
    await sink.aclose()


def draw_changes(chance: random.Random, state: dict[int, str]) -> list[Change]:
    """Return the changes of one commit, and apply them to the state."""
    found: list[Change] = []
    for key in chance.sample(range(NUM_KEYS), chance.randint(1, NUM_KEYS)):
        name = f"{key}-{chance.random()}"
        if key not in state:
            found.append((INSERT, (key, name)))
            state[key] = name
        elif chance.random() < 0.4:
            found.append((DELETE, (key, state.pop(key))))
        else:
            found += [(BEFORE, (key, state[key])), (AFTER, (key, name))]
            state[key] = name
    return found


async def test_random_commits_end_in_the_state_of_the_table(postgres: Database, seed: int) -> None:
    chance = random.Random(seed)
    sink, state = make_sink(postgres), dict[int, str]()
    await started(sink)
    version = 0
    while version < 20:
        count = chance.randint(1, 4)
        batches = [changes(version + n, *draw_changes(chance, state)) for n in range(count)]
        await sink.write(deliver(at(version), at(version + count), *batches))
        version += count
        assert rows(postgres) == state
    await sink.aclose()


async def test_soft_deletes_keep_rows_until_they_come_back(postgres: Database) -> None:
    sink = make_sink(postgres, deletes="soft")
    await started(sink)
    await sink.write(commit(0, changes(0, (INSERT, (1, "a")), (INSERT, (2, "b")))))
    await sink.write(commit(1, changes(1, (DELETE, (1, "a")), (DELETE, (2, "b")))))
    deleted = "SELECT id, name, extract(epoch FROM deleted_at)::bigint FROM orders ORDER BY id"
    assert postgres.run(deleted) == [(1, "a", 1_700_000_001), (2, "b", 1_700_000_001)]
    await sink.write(commit(2, changes(2, (INSERT, (1, "A")))))
    assert postgres.run(deleted) == [(1, "A", None), (2, "b", 1_700_000_001)]
    # A snapshot keeps them too, and marks what it does not have.
    await sink.resume(at(9, phase=Phase.SNAPSHOT))
    await sink.write(whole_snapshot(9, snapshot(9, (3, "c"))))
    assert postgres.run(deleted) == [
        *((1, "A", 1_700_000_009), (2, "b", 1_700_000_001), (3, "c", None)),
    ]
    # One without rows has no time.
    await sink.resume(at(12, phase=Phase.SNAPSHOT))
    await sink.write(whole_snapshot(12))
    recent = "SELECT id, now() - deleted_at < interval '1 hour' FROM orders ORDER BY id"
    assert postgres.run(recent) == [(1, False), (2, False), (3, True)]
    await sink.aclose()


@pytest.mark.parametrize("way", ["swap", "truncate"])
async def test_a_snapshot_over_several_deliveries_appears_at_once(
    postgres: Database, way: str
) -> None:
    sink = make_sink(postgres, snapshot=way)
    await started(sink)
    await sink.write(commit(0, changes(0, (INSERT, (1, "old")), (INSERT, (2, "old")))))
    await sink.resume(at(5, phase=Phase.SNAPSHOT))
    first = deliver(
        *(at(5, phase=Phase.SNAPSHOT), at(5, 7, Phase.SNAPSHOT)), snapshot(5, (1, "new"), (3, "n"))
    )
    await sink.write(first)
    assert rows(postgres) == {1: "old", 2: "old"}
    # Another process goes on.
    await sink.aclose()
    sink = make_sink(postgres, snapshot=way)
    await sink.fence()
    await sink.resume(at(5, 7, Phase.SNAPSHOT))
    # The delivery with the last part also has the commit that follows.
    last = deliver(
        *(at(5, 7, Phase.SNAPSHOT), at(7)),
        *(snapshot(5, (4, "new")), changes(6, (DELETE, (3, "n")), (INSERT, (5, "x")))),
    )
    await sink.write(last)
    assert rows(postgres) == {1: "new", 4: "new", 5: "x"}
    assert postgres.run("SELECT relname FROM pg_class WHERE relname LIKE 'tailerd%snapshot'") == []
    await sink.aclose()


async def test_the_first_snapshot_makes_the_table_with_its_key_and_comments(
    postgres: Database,
) -> None:
    schema = pa.schema(
        [("Id", pa.int32()), pa.field("na me", pa.string(), metadata={b"comment": b"it's it"})]
    )
    sink = make_sink(postgres, key=["Id"], table='public."My Orders"')
    await started(sink, 3, Phase.SNAPSHOT)
    await sink.write(whole_snapshot(3, snapshot(3, (1, "a"), schema=schema)))
    assert postgres.run('SELECT "Id", "na me" FROM "My Orders"') == [(1, "a")]
    columns = "SELECT col_description('\"My Orders\"'::regclass, 2)"
    assert postgres.run(columns) == [("it's it",)]
    await sink.write(commit(4, changes(4, (INSERT, (1, "b")), (INSERT, (2, "c")), schema=schema)))
    assert postgres.run('SELECT count(*) FROM "My Orders"') == [(2,)]
    await sink.aclose()


async def test_a_swap_keeps_indexes_privileges_comments_and_defaults(postgres: Database) -> None:
    postgres.run(
        """
        DROP ROLE IF EXISTS reader_of_orders;
        CREATE ROLE reader_of_orders;
        CREATE TABLE orders (id bigint, name text DEFAULT 'x', extra int NOT NULL DEFAULT 7,
            note text CHECK (note <> ''), CONSTRAINT "the key" PRIMARY KEY (id));
        CREATE UNIQUE INDEX "by USING name" ON orders (lower(name)) WHERE name <> 'z';
        CREATE INDEX by_extra ON orders (extra DESC) INCLUDE (name);
        COMMENT ON INDEX by_extra IS 'of the extra';
        COMMENT ON TABLE orders IS 'all orders';
        COMMENT ON COLUMN orders.extra IS 'more';
        GRANT SELECT ON orders TO reader_of_orders WITH GRANT OPTION;
        GRANT UPDATE (name) ON orders TO PUBLIC;
        """
    )
    look = """
        SELECT array_agg(indexdef ORDER BY indexname) FROM pg_indexes WHERE tablename = 'orders'
        UNION ALL SELECT array_agg(conname || pg_get_constraintdef(oid) ORDER BY conname)
            FROM pg_constraint WHERE conrelid = 'orders'::regclass
        UNION ALL SELECT relacl::text[] FROM pg_class WHERE oid = 'orders'::regclass
        UNION ALL SELECT array_agg(coalesce(attacl::text, '') || attname ORDER BY attnum)
            FROM pg_attribute WHERE attrelid = 'orders'::regclass AND attnum > 0
        UNION ALL SELECT ARRAY[obj_description('orders'::regclass, 'pg_class'),
            obj_description('by_extra'::regclass, 'pg_class'),
            col_description('orders'::regclass, 3)]
    """
    before, number = postgres.run(look), postgres.run("SELECT 'orders'::regclass::oid")
    sink = make_sink(postgres)
    await started(sink, 1, Phase.SNAPSHOT)
    await sink.write(whole_snapshot(1, snapshot(1, (1, "a"), (2, "b"))))
    assert postgres.run("SELECT 'orders'::regclass::oid") != number
    assert postgres.run(look) == before
    assert postgres.run("SELECT * FROM orders ORDER BY id") == [
        (1, "a", 7, None),
        (2, "b", 7, None),
    ]
    await sink.aclose()
    postgres.run("DROP TABLE orders; DROP ROLE reader_of_orders")


async def test_a_table_with_a_view_needs_truncate(postgres: Database) -> None:
    postgres.run(
        "CREATE TABLE orders (id bigint PRIMARY KEY, name text);"
        " CREATE VIEW names AS SELECT name FROM orders"
    )
    sink = make_sink(postgres)
    await started(sink, 1, Phase.SNAPSHOT)
    with pytest.raises(SinkRefusedError, match="the view names") as caught:
        await sink.write(whole_snapshot(1, snapshot(1, (1, "a"))))
    assert "snapshot: truncate" in caught.value.remedy
    await sink.aclose()
    sink = make_sink(postgres, snapshot="truncate")
    await started(sink, 1, Phase.SNAPSHOT)
    await sink.write(whole_snapshot(1, snapshot(1, (1, "a"))))
    assert postgres.run("SELECT * FROM names") == [("a",)]
    await sink.aclose()


@pytest.mark.parametrize("way", ["swap", "truncate"])
@pytest.mark.parametrize("has_target", [False, True])
async def test_duplicate_keys_of_a_snapshot_stop_with_the_keys(
    postgres: Database, way: str, *, has_target: bool
) -> None:
    if has_target:
        postgres.run("CREATE TABLE orders (id bigint PRIMARY KEY, name text)")
    sink = make_sink(postgres, snapshot=way)
    await started(sink, 1, Phase.SNAPSHOT)
    with pytest.raises(SinkRefusedError, match=r"same key \(id\): \(7\)"):
        await sink.write(whole_snapshot(1, snapshot(1, (7, "a"), (8, "b"), (7, "c"))))
    assert not has_target or rows(postgres) == {}
    await sink.aclose()


async def test_null_keys_stop_with_the_keys(postgres: Database) -> None:
    schema = pa.schema([("id", pa.int64()), ("part", pa.string())])
    sink = make_sink(postgres, key=["id", "part"])
    await started(sink, 1, Phase.SNAPSHOT)
    found = snapshot(1, (1, "a"), (2, None), (None, "c"), schema=schema)
    with pytest.raises(
        SinkRefusedError, match=r"null in the key \(id, part\): \(2, None\), \(None"
    ):
        await sink.write(whole_snapshot(1, found))
    await sink.aclose()


async def test_an_empty_snapshot_empties_the_mirror(postgres: Database) -> None:
    sink = make_sink(postgres)
    await started(sink)
    await sink.write(commit(0, changes(0, (INSERT, (1, "a")))))
    await sink.resume(at(4, phase=Phase.SNAPSHOT))
    await sink.write(whole_snapshot(4))
    assert rows(postgres) == {}
    await sink.aclose()


async def test_a_table_with_rows_of_others_is_not_taken_over(postgres: Database) -> None:
    postgres.run("CREATE TABLE orders (id bigint PRIMARY KEY); INSERT INTO orders VALUES (1)")
    sink = make_sink(postgres)
    await sink.fence()
    with pytest.raises(OffsetError, match="has rows"):
        await sink.resume(at(0, phase=Phase.SNAPSHOT))
    await sink.aclose()


async def test_a_mirror_needs_a_unique_key(postgres: Database) -> None:
    postgres.run("CREATE TABLE orders (id bigint, name text)")
    sink = make_sink(postgres)
    await started(sink)
    with pytest.raises(SinkRefusedError, match="no primary key or unique index"):
        await sink.write(commit(0, changes(0, (INSERT, (1, "a")))))
    await sink.aclose()
