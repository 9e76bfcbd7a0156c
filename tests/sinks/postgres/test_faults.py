"""Cut connections, other processes, conflicts and cancellation: a mirror equals the table."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.offset import Phase
from tailerd.errors import SinkError, SinkFencedError, SinkRefusedError
from tailerd.sinks.postgres.sink import PostgresSink
from tests.postgres.deliveries import (
    INSERT,
    SCHEMA,
    at,
    changes,
    commit,
    deliver,
    make_sink,
    snapshot,
    whole_snapshot,
)
from tests.postgres.server import Database, PostgresServer
from tests.waiting import PATIENCE_SECONDS

CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tailerd'"


def inserts(version: int, *ids: int) -> ChangeBatch:
    return changes(version, *[(INSERT, (number, f"{version}")) for number in ids])


async def begin(sink: PostgresSink) -> int:
    """Do what a delivery loop does at its start; return the version to go on with."""
    await sink.fence()
    saved = await sink.offsets.load("orders")
    offset = at(0) if saved is None else saved.offset
    await sink.resume(offset)
    return offset.version


def count(postgres: Database) -> int:
    [(found,)] = postgres.run("SELECT count(*) FROM orders")
    return int(found)


@pytest.mark.parametrize("mode", ["upsert", "append"])
async def test_connections_that_break_at_any_point_lose_and_double_nothing(
    postgres: Database, seed: int, mode: str
) -> None:
    chance = random.Random(seed)
    sink, errors = make_sink(postgres, mode=mode), list[SinkError]()
    version = await begin(sink)

    async def broken(version: int, when: int) -> AsyncIterator[ChangeBatch]:
        for part in range(4):
            if part == when:
                postgres.run(CUT)
            yield inserts(
                version, *range(version * 100 + part * 10, version * 100 + part * 10 + 10)
            )
        if when == 4:
            asyncio.get_running_loop().call_later(chance.random() * 0.02, lambda: postgres.run(CUT))

    while version < 12:
        delivery = replace(commit(version), batches=broken(version, chance.randint(0, 6)))
        try:
            await sink.write(delivery)
            version += 1
        except SinkError as error:
            errors.append(error)
            while True:
                # The cut that was planned may come only now.
                with suppress(SinkError):
                    version = await begin(sink)
                    break
    await asyncio.sleep(0.05)
    assert errors
    assert all(error.retryable for error in errors)
    assert count(postgres) == 12 * 40
    assert postgres.run("SELECT count(DISTINCT id) FROM orders") == [(12 * 40,)]
    await sink.aclose()


async def test_a_second_daemon_wins_while_the_first_is_in_the_middle(postgres: Database) -> None:
    first, second = make_sink(postgres), make_sink(postgres)
    await begin(first)
    await first.write(commit(0, inserts(0, 0)))
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[ChangeBatch]:
        yield inserts(1, *range(1, 500))
        reached.set()
        await go_on.wait()
        yield inserts(1, 500)

    writing = asyncio.create_task(first.write(replace(commit(1), batches=slow())))
    await reached.wait()
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await begin(second) == 1
        await second.write(commit(1, inserts(1, *range(1, 3))))
    go_on.set()
    with pytest.raises(SinkFencedError, match="taken over"):
        await writing
    # It does not take the pipeline back either.
    with pytest.raises(SinkFencedError):
        await first.fence()
    assert count(postgres) == 3
    await second.write(commit(2, inserts(2, 9)))
    await first.aclose()
    await second.aclose()


async def test_a_reset_by_an_operator_stops_a_running_daemon(postgres: Database) -> None:
    running, command = make_sink(postgres), make_sink(postgres)
    await begin(running)
    await running.write(commit(0, inserts(0, 0)))
    saved = await command.offsets.load("orders")
    assert saved is not None
    await running.write(commit(1, inserts(1, 1)))
    await command.offsets.save("orders", replace(saved, offset=at(0)))
    with pytest.raises(SinkFencedError):
        await running.write(commit(2, inserts(2, 2)))
    assert count(postgres) == 2
    await running.aclose()
    await command.aclose()


STATES = {
    "40001": True,
    "40P01": True,
    "53100": True,
    "55P03": True,
    "57014": True,
    "42501": False,
    "23514": False,
}


@pytest.mark.parametrize("state", STATES)
async def test_an_error_of_the_server_leaves_nothing_and_is_retried_if_it_may_pass(
    postgres: Database, state: str
) -> None:
    sink = make_sink(postgres)
    await begin(sink)
    await sink.write(commit(0, inserts(0, 0)))
    postgres.run(
        f"""
        CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'planned' USING ERRCODE = '{state}'; END $$;
        CREATE TRIGGER fail BEFORE INSERT ON orders FOR EACH ROW WHEN (NEW.id = 5)
        EXECUTE FUNCTION fail();
        """
    )
    with pytest.raises(SinkError, match=f"planned.*{state}") as caught:
        await sink.write(commit(1, inserts(1, 4, 5)))
    assert caught.value.retryable == STATES[state]
    assert isinstance(caught.value, SinkRefusedError) != STATES[state]
    assert count(postgres) == 1
    with pytest.raises(SinkError, match="was lost"):
        await sink.write(commit(1, inserts(1, 4, 5)))
    postgres.run("DROP TRIGGER fail ON orders")
    assert await begin(sink) == 1
    await sink.write(commit(1, inserts(1, 4, 5)))
    assert count(postgres) == 3
    await sink.aclose()


async def test_a_lock_of_others_is_waited_for(postgres: Database) -> None:
    sink = make_sink(postgres)
    await begin(sink)
    await sink.write(commit(0, inserts(0, 0)))
    with postgres.server.connect(postgres.name) as other:
        other.execute("BEGIN; LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
        writing = asyncio.create_task(sink.write(commit(1, inserts(1, 1))))
        done, _ = await asyncio.wait({writing}, timeout=0.5)
        assert not done
        # A daemon that stops does not wait for it.
        writing.cancel()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.wait({writing})
        assert writing.cancelled()
        other.execute("ROLLBACK")
    assert await begin(sink) == 1
    await sink.write(commit(1, inserts(1, 1)))
    assert count(postgres) == 2
    await sink.aclose()


async def test_a_server_that_is_killed_and_started_again_goes_on() -> None:
    server = PostgresServer()
    try:
        server.start()
        database = server.new_database()
        sink = make_sink(database)
        await begin(sink)
        await sink.write(commit(0, inserts(0, 0)))
        server.stop(signal.SIGQUIT)
        with pytest.raises(SinkError) as caught:
            await sink.write(commit(1, inserts(1, 1)))
        assert caught.value.retryable
        with pytest.raises(SinkError) as caught:
            await sink.fence()
        assert caught.value.retryable
        server.start()
        assert await begin(sink) == 1
        await sink.write(commit(1, inserts(1, 1)))
        assert count(database) == 2
        await sink.aclose()
    finally:
        server.remove()


async def test_a_server_without_room_for_the_rows_goes_on_once_it_has_some() -> None:
    server = PostgresServer()
    try:
        server.start()
        database = server.new_database()
        sink = make_sink(database)
        await begin(sink)
        await sink.write(commit(0, inserts(0, 0)))
        await sink.aclose()
        # More than a segment of the write-ahead log, less than the rows.
        server.limit_files(17 << 20)
        text = [replace(inserts(1, n), rows=_random_text(n)) for n in range(1, 40)]
        await begin(sink)
        with pytest.raises(SinkError, match=r"could not (extend file|write)") as caught:
            await sink.write(commit(1, *text))
        assert caught.value.retryable
        assert count(database) == 1
        server.limit_files(None)
        assert await begin(sink) == 1
        await sink.write(commit(1, *text))
        assert count(database) == 40
        await sink.aclose()
    finally:
        server.remove()


def _random_text(number: int) -> pa.RecordBatch:
    """Return a row with a text of a mebibyte that cannot be compressed much."""
    text = random.Random(number).randbytes(2**19).hex()
    columns = [pa.array([number]), pa.array([text])]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


async def test_a_snapshot_that_breaks_off_is_begun_again(postgres: Database) -> None:
    sink = make_sink(postgres)
    await begin(sink)
    await sink.write(commit(0, inserts(0, 0)))
    await sink.resume(at(3, phase=Phase.SNAPSHOT))
    part = deliver(at(3, phase=Phase.SNAPSHOT), at(3, 5, Phase.SNAPSHOT), snapshot(3, (7, "x")))
    await sink.write(part)
    # A reset to the beginning of the snapshot.
    await sink.resume(at(3, phase=Phase.SNAPSHOT))
    await sink.write(whole_snapshot(3, snapshot(3, (8, "y"))))
    assert postgres.run("SELECT id, name FROM orders") == [(8, "y")]
    # One whose first part is gone cannot go on.
    await sink.resume(at(4))
    rest = deliver(at(3, 5, Phase.SNAPSHOT), at(4), snapshot(3, (9, "z")))
    with pytest.raises(SinkRefusedError, match="does not exist any more"):
        await sink.write(rest)
    assert postgres.run("SELECT id, name FROM orders") == [(8, "y")]
    await sink.aclose()


async def test_no_error_shows_the_password(postgres: Database) -> None:
    sink = make_sink(
        postgres,
        dsn="postgresql://nobody@127.0.0.1:1/lake?connect_timeout=1",
        password="s3cr3t-of-the-test",
    )
    with pytest.raises(SinkError) as caught:
        await sink.healthcheck()
    assert "127.0.0.1:1" in caught.value.message
    with pytest.raises(SinkError):
        await anext(sink.read_back())
    for text in (str(caught.value), repr(caught.value), repr(caught.value.__cause__), repr(sink)):
        assert "s3cr3t" not in text
    assert caught.value.to_data()["code"] == "sink"


async def test_a_transaction_uses_nothing_of_its_session(postgres: Database) -> None:
    # As behind a pooler: each transaction may have another session, and locks end with it.
    sink = make_sink(postgres)
    await begin(sink)
    await sink.write(commit(0, inserts(0, 1)))
    left = """
        SELECT (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'),
            (SELECT count(*) FROM pg_class WHERE relpersistence = 't' AND relkind = 'r'),
            (SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in%')
    """
    assert postgres.run(left) == [(0, 0, 0)]
    await sink.aclose()


async def test_pipelines_that_start_at_once_share_one_table_of_offsets(postgres: Database) -> None:
    names = [f"t{number}" for number in range(8)]
    sinks = [make_sink(postgres, table=name) for name in names]
    await asyncio.gather(*(sink.fence() for sink in sinks))
    await asyncio.gather(*(sink.resume(at(0)) for sink in sinks))
    assert postgres.run("SELECT count(*), max(epoch) FROM tailerd_offsets") == [(8, 1)]
    for sink in sinks:
        await sink.aclose()
