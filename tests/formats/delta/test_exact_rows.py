"""Corners of comparing rows: schema changes, partitions, keys, little memory, missing files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT, BatchLimit
from tailerd.errors import MissingDataFileError
from tailerd.formats.base import OpenRequest
from tailerd.formats.delta.protocol import change_plan
from tailerd.reading import compared_files, compared_rows
from tailerd.transforms.options import make_view
from tests.cli.commands import Commands
from tests.tables.builder import TableBuilder
from tests.tables.delta_schema import Field, field, map_of, struct
from tests.tables.feed import EVERYTHING, changes, read_batches, reported
from tests.tables.opened import open_delta

pytestmark = pytest.mark.attack


Change = tuple[Any, ...]


async def read(
    folder: Path,
    *,
    start: str = "1",
    identity: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    limit: BatchLimit = DEFAULT_BATCH_LIMIT,
) -> list[ChangeBatch]:
    """Return the batches from a version to the head."""
    source = await open_delta(
        str(folder), OpenRequest(identity=identity, view=make_view(columns=columns))
    )
    at = await source.initial_offset(start)
    return await read_batches(source, at, await source.latest_offset(at, EVERYTHING), limit)


def in_order(batches: Sequence[ChangeBatch], *names: str) -> list[Change]:
    """Return the change and the named columns of each row, in the order in which they come."""
    return [
        (row["_change_type"], *(row[name] for name in names))
        for batch in batches
        for row in batch.to_arrow().to_pylist()
    ]


def numbered(count: int, name: str = "a") -> list[dict[str, Any]]:
    return [{"id": number, "name": name} for number in range(count)]


def with_fields(table: TableBuilder, *fields: Field) -> None:
    """Change the columns that `metadata()` and files written from here on have."""
    table.fields = list(fields)


async def test_a_column_added_by_the_commit_is_null_in_the_rows_before(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    [add] = table.append(numbered(4)).adds
    with_fields(table, *table.fields, field("more", "long"))
    rows = [{**row, "more": None} for row in numbered(4)]
    rows[2]["more"] = 7
    table.commit(table.metadata(), table.remove(add), table.data_file(rows))
    found = await read(tmp_path)
    assert in_order(found, "id", "more") == [("delete", 2, None), ("insert", 2, 7)]


async def test_a_column_that_the_commit_widens_is_compared_by_value(tmp_path: Path) -> None:
    inner = struct(field("x", "integer"))
    fields = [
        field("id", "integer"),
        field("d", "decimal(5,1)"),
        field("m", map_of("string", inner)),
    ]
    table = TableBuilder(tmp_path, fields=fields)
    rows = [{"id": n, "d": Decimal("1.5"), "m": {"k": {"x": n}}} for n in range(3)]
    [add] = table.append(rows).adds
    wide = struct(field("x", "long"))
    with_fields(
        table, field("id", "long"), field("d", "decimal(12,4)"), field("m", map_of("string", wide))
    )
    changed = [*rows[:2], {**rows[2], "m": {"k": {"x": 2**40}}}]
    table.commit(table.metadata(), table.remove(add), table.data_file(changed))
    found = in_order(await read(tmp_path), "id", "m")
    assert found == [("delete", 2, [("k", {"x": 2})]), ("insert", 2, [("k", {"x": 2**40})])]


@pytest.mark.parametrize(
    "fields",
    [
        [field("id", "long")],
        [field("id", "string"), field("name", "string")],
        [field("id", "integer"), field("name", "string")],
        [field("key", "long"), field("name", "string")],
    ],
    ids=["dropped", "retyped", "narrowed", "renamed"],
)
async def test_where_a_column_is_not_widened_rows_come_as_their_files_have_them(
    tmp_path: Path, fields: list[Field]
) -> None:
    table = TableBuilder(tmp_path)
    [add] = table.append(numbered(2)).adds
    with_fields(table, *fields)
    first = fields[0]
    values = ["0", "1"] if first["type"] == "string" else [0, 1]
    rows = [{first["name"]: value, "name": "a"} for value in values]
    table.commit(table.metadata(), table.remove(add), table.data_file(rows))
    found = await read(tmp_path)
    assert [batch.change_source for batch in found] == ["files", "files"]
    assert in_order(found[:1], "id", "name") == [("delete", 0, "a"), ("delete", 1, "a")]
    assert in_order(found[1:], first["name"]) == [("insert", value) for value in values]


async def test_rows_are_compared_where_the_commit_changes_the_partition_columns(
    tmp_path: Path,
) -> None:
    table = TableBuilder(tmp_path, partition_by=["name"])
    add = table.append(numbered(3)).adds[0]
    table.partition_by = ["id"]
    rows = [*numbered(2), {"id": 2, "name": "b"}]
    table.commit(table.metadata(), table.remove(add), *table.data_files(rows))
    found = await read(tmp_path)
    assert in_order(found, "id", "name") == [("delete", 2, "a"), ("insert", 2, "b")]


async def test_all_deletes_of_a_commit_come_before_its_inserts_whatever_their_partitions(
    tmp_path: Path,
) -> None:
    fields = [("id", "long"), ("p", "string"), ("v", "long")]
    table = TableBuilder(tmp_path, fields=fields, partition_by=["p"])
    rows: list[dict[str, Any]] = [{"id": n, "p": "ab"[n % 2], "v": 0} for n in range(6)]
    adds = table.append(rows).adds
    moved = [{**row, "p": "b"} if row["id"] == 2 else row for row in rows]
    changed = [{**row, "v": 1} if row["id"] < 2 else row for row in moved]
    table.commit(*table.data_files(changed), *(table.remove(add) for add in adds))
    plain = in_order(await read(tmp_path), "id", "p", "v")
    assert sorted(plain) == sorted(
        [
            *[("delete", 0, "a", 0), ("delete", 1, "b", 0), ("delete", 2, "a", 0)],
            *[("insert", 0, "a", 1), ("insert", 1, "b", 1), ("insert", 2, "b", 0)],
        ]
    )
    assert [kind for kind, *_ in plain] == ["delete"] * 3 + ["insert"] * 3
    paired = in_order(await read(tmp_path, identity=["id"]), "id", "p", "v")
    images = [(one[0], other[0], one[1] == other[1]) for one, other in pairwise(paired)]
    assert images[::2] == [("update_preimage", "update_postimage", True)] * 3
    assert ("update_preimage", 2, "a", 0) in paired


async def test_a_key_that_is_not_unique_stays_deletes_and_inserts(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    before = [{"id": 1, "name": name} for name in "ab"] + [{"id": 2, "name": "x"}]
    [add] = table.append(before).adds
    after = [{"id": 1, "name": "c"}, {"id": 2, "name": "y"}]
    table.commit(table.remove(add), table.data_file(after))
    assert in_order(await read(tmp_path, identity=["id"]), "id", "name") == [
        ("delete", 1, "a"),
        ("delete", 1, "b"),
        ("insert", 1, "c"),
        ("update_preimage", 2, "x"),
        ("update_postimage", 2, "y"),
    ]


async def test_rows_are_compared_in_columns_that_are_not_asked_for(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    [add] = table.append(numbered(3)).adds
    table.commit(table.remove(add), table.data_file([*numbered(2), {"id": 2, "name": "b"}]))
    found = await read(tmp_path, columns=["id"])
    assert [batch.rows.schema.names for batch in found] == [["id"], ["id"]]
    assert in_order(found, "id") == [("delete", 2), ("insert", 2)]


@pytest.mark.parametrize("identity", [(), ("id",)], ids=["no key", "key"])
async def test_little_memory_gives_the_same_rows_in_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, identity: tuple[str, ...]
) -> None:
    table = TableBuilder(tmp_path)
    count = 20_000
    rows = numbered(count)
    adds = [table.data_file(rows[start::4], row_group_size=700) for start in range(4)]
    table.create(*adds)
    changed = [{**row, "name": "b"} if row["id"] % 3 == 0 else row for row in reversed(rows)]
    files = [table.data_file(changed[start : start + 7000]) for start in range(0, count, 7000)]
    table.commit(*(table.remove(add) for add in adds), *files)
    expected = in_order(await read(tmp_path, identity=identity), "id", "name")
    assert len(expected) == 2 * len(range(0, count, 3))
    monkeypatch.setattr(compared_files, "MIN_MEMORY_BYTES", 1)
    little = BatchLimit(max_rows=1000, max_bytes=20_000, working_bytes=100_000)
    assert in_order(await read(tmp_path, identity=identity, limit=little), "id", "name") == expected


async def test_more_rows_than_memory_can_pair_come_unpaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TableBuilder(tmp_path)
    [add] = table.append(numbered(10)).adds
    table.commit(table.remove(add), table.data_file(numbered(10, "b")))
    monkeypatch.setattr(compared_rows, "PAIR_BYTES", DEFAULT_BATCH_LIMIT.memory_bytes)
    found = in_order(await read(tmp_path, identity=["id"]), "id")
    assert [kind for kind, _ in found] == ["delete"] * 10 + ["insert"] * 10


async def test_commits_of_more_files_than_are_compared_come_as_files_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TableBuilder(tmp_path)
    [add] = table.append(numbered(2)).adds
    table.commit(table.remove(add), table.data_file(numbered(2)))
    assert await changes(tmp_path, "1") == []
    monkeypatch.setattr(change_plan, "MAX_EXACT_FILES", 1)
    rows = await changes(tmp_path, "1")
    assert (len(rows), {row["change_source"] for row in rows}) == (4, {"files"})


@pytest.mark.parametrize("which", ["removed", "added"])
async def test_a_file_that_is_gone_is_an_error_before_any_row(tmp_path: Path, which: str) -> None:
    table = TableBuilder(tmp_path)
    [removed] = table.append(numbered(2)).adds
    added = table.data_file(numbered(3))
    table.commit(table.remove(removed), added)
    (tmp_path / {"removed": removed, "added": added}[which]["add"]["path"]).unlink()
    with pytest.raises(MissingDataFileError, match="does not exist"):
        await read(tmp_path)


async def test_deleted_rows_that_an_update_by_vector_brings_back_are_no_change(
    tmp_path: Path,
) -> None:
    table = TableBuilder(tmp_path, reader_features=["deletionVectors"])
    [add] = table.append(numbered(4)).adds
    marked = table.with_vector(add, [1, 2])
    table.commit(
        marked, table.remove(add), table.data_file([numbered(4)[1], {"id": 2, "name": "b"}])
    )
    found = await read(tmp_path)
    assert {batch.change_source for batch in found} == {"rows"}
    assert in_order(found, "id", "name") == [("delete", 2, "a"), ("insert", 2, "b")]


async def test_a_vector_that_only_grows_gives_deletes_without_comparing(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, reader_features=["deletionVectors"])
    [add] = table.append(numbered(4)).adds
    first = table.with_vector(add, [1])
    table.commit(first, table.remove(add))
    table.commit(table.with_vector(add, [1, 3]), table.remove(first))
    found = await read(tmp_path)
    assert {batch.change_source for batch in found} == {"vectors"}
    assert in_order(found, "id") == [("delete", 1), ("delete", 3)]


async def test_a_task_without_any_column_still_says_how_many_rows_changed(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    [add] = table.append(numbered(3)).adds
    table.commit(table.remove(add), table.data_file(numbered(3, "b")))
    for identity in ((), ("id",)):
        found = await read(tmp_path, identity=identity, columns=[])
        assert sum(batch.num_rows for batch in found) == 6


async def test_reading_that_nobody_wants_any_more_ends_at_the_next_batch(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    [add] = table.append(numbered(10)).adds
    table.commit(table.remove(add), table.data_file(numbered(10, "b")))
    requested = iter([False, False, True])
    limit = BatchLimit(max_rows=1, is_abandoned=lambda: next(requested))
    with pytest.raises(compared_files._AbandonedError):
        await read(tmp_path, limit=limit)
    assert next(requested, None) is None


async def test_restarts_and_small_steps_give_the_same_rows(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    [add] = table.append(numbered(5)).adds
    for version in range(3):
        rows = [
            {**row, "name": f"n{version}"} if row["id"] == version else row for row in numbered(5)
        ]
        following = table.data_file(rows)
        table.commit(table.remove(add), following)
        add = following
    whole = reported(await changes(tmp_path, "0"), "id", "name")
    small = replace(EVERYTHING, max_files=1, max_bytes=1)
    assert reported(await changes(tmp_path, "0", limit=small, restarts=True), "id", "name") == whole
    raw = await changes(tmp_path, "0", mode=ChangeMode.FILES)
    assert len(raw) == 5 + 3 * 10


def test_history_says_beforehand_how_each_commit_is_read(tmp_path: Path, command: Commands) -> None:
    table = TableBuilder(tmp_path, reader_features=["deletionVectors"])
    [add] = table.append(numbered(3)).adds
    following = table.data_file(numbered(3, "b"))
    table.commit(table.remove(add), following)
    table.delete_rows(following, [0])
    done = command("history", str(tmp_path), "--json")
    assert [line["changes"] for line in done.rows] == ["files", "rows", "vectors"]


def test_tail_shows_what_differs_between_two_versions(tmp_path: Path, command: Commands) -> None:
    table = TableBuilder(tmp_path)
    adds = [table.append([{"id": number, "name": "a"}]).adds[0] for number in range(10)]
    table.commit(table.remove(adds[4]))
    table.commit(table.remove(adds[0]))
    between = ["--from", "3", "--to", "11"]
    rows = command.tail(tmp_path, "--changes", "net", *between).rows
    assert {row["_commit_version"] for row in rows} == {11}
    changes = sorted((row["_change_type"], row["id"]) for row in rows)
    assert changes == [("delete", 0), *(("insert", number) for number in (3, 5, 6, 7, 8, 9))]


@pytest.mark.attack
@pytest.mark.parametrize("order", [1, -1])
async def test_wide_old_images_of_narrow_new_rows_are_read_a_batch_at_a_time(
    tmp_path: Path, order: int
) -> None:
    old = [{"id": number, "name": f"{number:04d}" * 1000} for number in range(300)]
    new = [{"id": number, "name": None} for number in range(5, 310)][::order]
    table = TableBuilder(tmp_path)
    [add] = table.append(old).adds
    table.commit(table.remove(add), table.data_file(new))
    limit = replace(DEFAULT_BATCH_LIMIT, max_bytes=100_000)
    batches = await read(tmp_path, identity=["id"], limit=limit)
    assert max(batch.rows.nbytes for batch in batches) < 3 * limit.max_bytes
    found = in_order(batches, "id", "name")
    images = [change for change in found if change[0].startswith("update")]
    assert [(kind, number) for kind, number, _ in images] == [
        (kind, number)
        for number in [*range(5, 300)][::order]
        for kind in ("update_preimage", "update_postimage")
    ]
    assert all(name == f"{number:04d}" * 1000 for kind, number, name in images if "pre" in kind)
    assert sorted(number for kind, number, _ in found if kind == "delete") == [*range(5)]
    assert sorted(number for kind, number, _ in found if kind == "insert") == [*range(300, 310)]
