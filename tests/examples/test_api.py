"""The contract of the Python library: order, bounds, schemas, exceptions."""

from __future__ import annotations

import asyncio
import datetime as dt
import subprocess
import sys
import threading
from pathlib import Path
from typing import get_args

import duckdb
import pyarrow as pa
import pytest

import tailerd
from tailerd.changefeed.change_task import ChangeMode, ChangeModeName
from tailerd.errors import (
    MissingVersionError,
    NotATableError,
    OffsetError,
    SchemaChangedError,
    UsageError,
)
from tests.s3.servers import ACCESS_KEY, SECRET_KEY, S3Server
from tests.s3.upload import upload
from tests.tables.builder import CDF, START_MS, TableBuilder
from tests.waiting import PATIENCE_SECONDS


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    """Version 0 is empty, 1 and 2 insert, 3 deletes the row of version 1."""
    builder = TableBuilder(tmp_path / "t")
    builder.create()
    [add] = builder.append([{"id": 1, "name": "a"}]).adds
    builder.append([{"id": 2, "name": "b"}])
    builder.commit(builder.remove(add), operation="DELETE")
    return builder


def seen(changes: tailerd.Changes) -> list[tuple[int, str, int]]:
    rows = changes.to_arrow().to_pylist()
    return [(row["_commit_version"], row["_change_type"], row["id"]) for row in rows]


INSERTS = [(1, "insert", 1), (2, "insert", 2)]
ALL = [*INSERTS, (3, "delete", 1)]


def time_of(version: int) -> dt.datetime:
    return dt.datetime.fromtimestamp((START_MS + version * 1000) / 1000, dt.UTC)


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        (0, None, ALL),
        (2, None, ALL[1:]),
        (1, 2, INSERTS),
        ("2", "2", INSERTS[1:]),
        (time_of(2), None, ALL[1:]),
        (time_of(1).isoformat(), time_of(2), INSERTS),
        ("snapshot", None, [(3, "insert", 2)]),
        ("latest", None, []),
    ],
)
def test_both_bounds_are_inclusive(
    table: TableBuilder, since: object, until: object, expected: list[object]
) -> None:
    assert seen(tailerd.changes(str(table.folder), since=since, until=until)) == expected  # type: ignore[arg-type]


def test_every_iteration_reads_again(table: TableBuilder) -> None:
    changes = tailerd.changes(str(table.folder), since=0)
    assert seen(changes) == ALL
    table.append([{"id": 5}])
    assert seen(changes) == [*ALL, (4, "insert", 5)]


def test_a_batch_has_the_change_columns_behind_the_tables(table: TableBuilder) -> None:
    changes = tailerd.changes(str(table.folder), since=0)
    batch = next(iter(changes))
    assert batch.schema.names == [
        *("id", "name", "_change_type", "_commit_version", "_commit_timestamp")
    ]
    assert changes.schema() == batch.schema


def test_columns_are_chosen_and_unknown_ones_refused(table: TableBuilder) -> None:
    batch = next(iter(tailerd.changes(str(table.folder), since=0, columns=["name"])))
    assert batch.schema.names[0] == "name"
    with pytest.raises(UsageError, match="nme"):
        tailerd.changes(str(table.folder), since=0, columns=["nme"]).to_arrow()


async def test_batches_come_where_a_loop_runs_already(table: TableBuilder) -> None:
    changes = tailerd.changes(str(table.folder), since=0)
    found = [batch async for batch in changes]
    assert pa.Table.from_batches(found) == changes.to_arrow()


def test_no_thread_is_left_behind_also_where_reading_is_left_early(table: TableBuilder) -> None:
    before = threading.active_count()
    for _ in tailerd.changes(str(table.folder), since=0):
        break
    for found in tailerd.follow(str(table.folder), since=0):
        assert found.rows.num_rows == 1
        break
    assert threading.active_count() == before


def test_a_follower_goes_on_from_an_offset(table: TableBuilder) -> None:
    follower = iter(tailerd.follow(str(table.folder), since=0, poll_seconds=0.1))
    offset = ""
    rows = []
    for _ in range(3):
        found = next(follower)
        rows += found.rows.to_pylist()
        offset = found.offset
    follower.close()  # type: ignore[attr-defined]
    assert [row["id"] for row in rows] == [1, 2, 1]
    table.append([{"id": 7}])
    again = next(iter(tailerd.follow(str(table.folder), offset=offset)))
    assert again.rows.column("id").to_pylist() == [7]


def test_a_follower_waits_for_commits(table: TableBuilder) -> None:
    timer = threading.Timer(0.3, lambda: table.append([{"id": 8}]))
    timer.start()
    found = next(iter(tailerd.follow(str(table.folder), poll_seconds=5)))
    timer.join()
    assert found.rows.column("id").to_pylist() == [8]


async def test_a_waiting_follower_can_be_cancelled(table: TableBuilder) -> None:
    batches = aiter(tailerd.follow(str(table.folder)))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(batches), 0.2)


def test_offsets_within_a_step_repeat_it_and_lose_nothing(tmp_path: Path) -> None:
    builder = TableBuilder(tmp_path / "t")
    builder.create()
    for number in range(5):
        builder.append([{"id": number}])
    offsets = []
    follower = tailerd.follow(str(builder.folder), since=0)
    for count, found in enumerate(follower, 1):
        offsets.append(found.offset)
        if count == 5:
            break
    for handled, offset in enumerate(offsets, 1):
        builder.append([{"id": 100 + handled}])
        rows: list[int] = []
        for found in tailerd.follow(str(builder.folder), offset=offset):
            rows += found.rows.column("id").to_pylist()
            if 100 + handled in rows:
                break
        assert set(range(handled, 5)) <= set(rows) | set(range(handled))
        assert {*range(handled), *rows} >= {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"since": 99}, MissingVersionError),
        ({"since": "yesterdayish"}, UsageError),
        ({"since": 0, "until": "never"}, UsageError),
    ],
)
def test_points_that_are_none_are_refused_when_read(
    table: TableBuilder, arguments: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        tailerd.changes(str(table.folder), **arguments).to_arrow()  # type: ignore[arg-type]


@pytest.mark.parametrize("since", [-1, True, 1.5, None])
def test_what_is_no_point_is_refused_at_once(table: TableBuilder, since: object) -> None:
    with pytest.raises(UsageError):
        tailerd.changes(str(table.folder), since=since)  # type: ignore[arg-type]


def test_errors_are_of_one_tree(tmp_path: Path) -> None:
    with pytest.raises(tailerd.TailerdError) as caught:
        tailerd.changes(str(tmp_path / "nowhere"), since=0).to_pandas()
    assert isinstance(caught.value, NotATableError)
    with pytest.raises(OffsetError):
        tailerd.follow(str(tmp_path), offset="no offset")
    with pytest.raises(UsageError, match="changes is 'all'"):
        tailerd.changes(str(tmp_path), since=0, changes="all")  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        _ = tailerd.nothing


def test_an_added_column_is_null_in_older_rows_and_a_batch_keeps_its_own_schema(
    table: TableBuilder,
) -> None:
    table.change_metadata(fields=[("id", "long"), ("name", "string"), ("more", "string")])
    table.append([{"id": 4, "name": "d", "more": "x"}])
    changes = tailerd.changes(str(table.folder), since=0)
    batches = list(changes)
    assert "more" not in batches[0].schema.names
    assert "more" in batches[-1].schema.names
    assert changes.to_arrow().column("more").to_pylist() == [None, None, None, "x"]


def test_types_that_do_not_fit_are_an_error_that_says_so(table: TableBuilder) -> None:
    # As CREATE OR REPLACE TABLE does, with another type of a column.
    table.change_metadata(fields=[("id", "boolean"), ("name", "string")])
    table.append([{"id": True, "name": "d"}])
    with pytest.raises(SchemaChangedError, match="do not fit one schema"):
        tailerd.changes(str(table.folder), since=0).to_arrow()


def test_frames_and_relations_have_the_same_rows(table: TableBuilder) -> None:
    changes = tailerd.changes(str(table.folder), since=0)
    assert changes.to_pandas()["id"].tolist() == [1, 2, 1]
    assert changes.to_polars()["id"].to_list() == [1, 2, 1]
    with duckdb.connect() as connection:
        relation = changes.to_duckdb(connection)
        assert relation.aggregate("sum(id)").fetchall() == [(4,)]


def test_without_changes_there_is_an_empty_table_with_the_columns(table: TableBuilder) -> None:
    empty = tailerd.changes(str(table.folder), since="latest").to_arrow()
    assert (empty.num_rows, empty.schema.names[:2]) == (0, ["id", "name"])


def test_html_escapes_values_and_says_when_there_are_more(tmp_path: Path) -> None:
    builder = TableBuilder(tmp_path / "t")
    builder.create()
    builder.append([{"id": n, "name": "<script>" if n else None} for n in range(30)])
    shown = tailerd.changes(str(builder.folder), since=0)._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert "<i>null</i>" in shown
    assert shown.count("<tr>") == 21
    assert "More rows follow." in shown


def test_a_table_has_version_rows_history_and_growth(table: TableBuilder) -> None:
    found = tailerd.table(str(table.folder))
    assert found.version == 3
    assert found.schema().names == ["id", "name"]
    assert found.snapshot().to_arrow().to_pylist() == [{"id": 2, "name": "b"}]
    assert [commit["version"] for commit in found.history(limit=2)] == [2, 3]
    growth = found.growth().to_pylist()
    assert [row["files"] for row in growth] == [0, 1, 1, -1]
    assert found.size().files == 1
    assert found.describe(1).num_rows == 1
    assert seen(found.changes(since=2, until=2)) == INSERTS[1:]


def test_a_table_with_a_feed_gives_it(tmp_path: Path) -> None:
    builder = TableBuilder(tmp_path / "t", properties=CDF)
    [old] = builder.append([{"id": 1, "name": "a"}]).adds
    builder.commit(
        builder.remove(old),
        builder.data_file([{"id": 1, "name": "b"}]),
        builder.cdc_file(
            [
                {"id": 1, "name": "a", "_change_type": "update_preimage"},
                {"id": 1, "name": "b", "_change_type": "update_postimage"},
            ]
        ),
    )
    kinds = [kind for _, kind, _ in seen(tailerd.changes(str(builder.folder), since=1))]
    assert kinds == ["update_preimage", "update_postimage"]


def test_a_program_that_leaves_a_follower_open_ends(table: TableBuilder) -> None:
    program = (
        "import sys, tailerd\n"
        "batches = iter(tailerd.follow(sys.argv[1], since=0))\n"
        "print(next(batches).rows.num_rows)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(table.folder)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_importing_the_package_loads_no_library() -> None:
    program = "import sys, tailerd; print([n for n in ('pyarrow', 'aiohttp') if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_events_come_before_the_first_rows_with_other_columns(table: TableBuilder) -> None:
    table.change_metadata(fields=[*table.fields, ("email", "string")])
    table.append([{"id": 3, "name": "c", "email": "d"}])
    changes = tailerd.changes(str(table.folder), since=0, events=True)
    found = [
        each.summary if isinstance(each, tailerd.SchemaChange) else each.num_rows
        for each in changes
    ]
    assert found == ["id (int64), name (string)", 1, 1, 1, "added email (string)", 1]
    assert changes.to_arrow().num_rows == 4
    assert changes._repr_html_().count("<tr>") == 5
    [*_, batch] = tailerd.changes(str(table.folder), since=0)
    assert isinstance(batch, pa.RecordBatch)


def test_a_followed_batch_says_that_its_columns_are_others(table: TableBuilder) -> None:
    follower = iter(tailerd.follow(str(table.folder), since=1))
    first, second = next(follower), next(follower)
    assert first.schema_change is not None
    assert (first.schema_change.changes, second.schema_change) == ((), None)


def test_the_names_of_the_library_are_listed_and_lead_somewhere() -> None:
    assert dir(tailerd) == sorted([*tailerd.__all__, "__version__"])
    for name in tailerd.__all__:
        assert getattr(tailerd, name).__name__ == name
    assert issubclass(tailerd.MissingVersionError, tailerd.TableError)
    assert set(get_args(ChangeModeName)) == {mode.value for mode in ChangeMode}


def test_one_column_may_be_given_as_a_text(table: TableBuilder) -> None:
    found = tailerd.changes(str(table.folder), since=0, columns="id")
    assert found.to_arrow().column_names[0] == "id"
    assert "name" not in found.to_arrow().column_names


def test_buckets_are_reached_as_the_caller_says(s3_moto: S3Server, table: TableBuilder) -> None:
    bucket = s3_moto.new_bucket()
    upload(s3_moto, table.folder, bucket, "t")
    location = f"s3://{bucket}/t"
    keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY, "region": "us-east-1"}
    storage = {"endpoint": s3_moto.endpoint, **keys}
    assert seen(tailerd.changes(location, since=0, storage=storage)) == ALL
    assert tailerd.table(location, storage=storage).version == 3
    with pytest.raises(tailerd.ConfigError, match="regoin") as caught:
        tailerd.changes(location, since=0, storage={**storage, "regoin": "secret-value"})
    assert "secret-value" not in str(caught.value)
