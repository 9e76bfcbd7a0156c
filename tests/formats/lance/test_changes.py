"""What each operation of the library gives as changes."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.limits import BatchLimit
from tailerd.changefeed.offset import Version
from tailerd.errors import UnsupportedFeatureError
from tailerd.formats.lance.reader import LanceTaskReader
from tests.formats.lance.following import EVERYTHING, batches, changes, kinds, opened, rest
from tests.tables.lance_writer import LanceWriter, Rows


def rows(*ids: int) -> Rows:
    return [{"id": number, "name": f"n{number}"} for number in ids]


async def commit(
    location: Path, version: int, *, limit: BatchLimit | None = None, **options: Any
) -> list[ChangeBatch]:
    """Read the changes of one version."""
    source = await opened(location, **options)
    begin = await source.offset_at(Version(version))
    return await batches(source, begin, begin.after_version(source), limit)


def pairs(found: Sequence[ChangeBatch]) -> list[tuple[str, Any, Any]]:
    return [(kind, row["id"], row.get("name")) for kind, row in changes(found)]


def table(tmp_path: Path, **options: Any) -> LanceWriter:
    writer = LanceWriter(tmp_path / "t", **options)
    writer.append(rows(*range(1, 7)), max_rows_per_file=3)
    return writer


async def test_an_update_is_a_pair_where_rows_keep_their_ids(tmp_path: Path) -> None:
    writer = table(tmp_path, stable_ids=True)
    writer.dataset.update({"name": "'x'"}, where="id IN (2, 5)")
    found = await commit(tmp_path / "t", 2)
    assert pairs(found) == [
        ("update_preimage", 2, "n2"),
        ("update_postimage", 2, "x"),
        ("update_preimage", 5, "n5"),
        ("update_postimage", 5, "x"),
    ]


async def test_an_update_is_a_delete_and_an_insert_where_nothing_ties_them(tmp_path: Path) -> None:
    writer = table(tmp_path)
    writer.dataset.update({"name": "'x'"}, where="id = 2")
    assert pairs(await commit(tmp_path / "t", 2)) == [("delete", 2, "n2"), ("insert", 2, "x")]
    keyed = await commit(tmp_path / "t", 2, identity=["id"])
    assert [kind for kind, _, _ in pairs(keyed)] == ["update_preimage", "update_postimage"]


async def test_a_row_that_is_written_again_unchanged_is_no_update(tmp_path: Path) -> None:
    writer = table(tmp_path, stable_ids=True)
    same = pa.table({"id": [2, 3], "name": ["n2", "new"]})
    writer.dataset.merge_insert("id").when_matched_update_all().execute(same)
    assert pairs(await commit(tmp_path / "t", 2)) == [
        ("update_preimage", 3, "n3"),
        ("update_postimage", 3, "new"),
    ]


async def test_a_key_that_changes_is_a_delete_and_an_insert_where_the_key_is_named(
    tmp_path: Path,
) -> None:
    writer = table(tmp_path, stable_ids=True)
    writer.dataset.update({"id": "20"}, where="id = 2")
    found = await commit(tmp_path / "t", 2, identity=["id"])
    assert pairs(found) == [("delete", 2, "n2"), ("insert", 20, "n2")]
    by_row = await commit(tmp_path / "t", 2)
    assert [kind for kind, _, _ in pairs(by_row)] == ["update_preimage", "update_postimage"]


async def test_compaction_changes_nothing_and_says_so(tmp_path: Path) -> None:
    writer = table(tmp_path)
    writer.delete("id = 1")
    writer.dataset.optimize.compact_files()
    head = writer.dataset.version
    source = await opened(tmp_path / "t")
    begin = await source.offset_at(Version(head))
    [group] = [each async for each in source.plan(begin, begin.after_version(source))]
    assert (group.tasks, group.operation, group.change_source) == ((), "rewrite", "none")


async def test_a_rewrite_whose_transaction_is_gone_is_compared(tmp_path: Path) -> None:
    writer = table(tmp_path)
    writer.dataset.optimize.compact_files()
    head = writer.dataset.version
    forget_transactions(tmp_path / "t")
    assert pairs(await commit(tmp_path / "t", head)) == []


def forget_transactions(location: Path) -> None:
    """Take away what a manifest says of its transaction, as old releases wrote none."""
    from tailerd.formats.lance.protocol.wire import fields
    from tests.formats.lance.wire_format import message, rewritten

    def without(body: bytes) -> bytes:
        return message((n, v) for n, v in fields(body) if n not in (12, 21))

    for path in (location / "_versions").glob("*.manifest"):
        rewritten(path, without)


async def test_deletes_have_the_values_that_were_there(tmp_path: Path) -> None:
    writer = table(tmp_path)
    writer.delete("id IN (1, 2, 3, 5)")
    found = await commit(tmp_path / "t", 2)
    assert Counter(pairs(found)) == Counter(("delete", n, f"n{n}") for n in (1, 2, 3, 5))


async def test_a_restore_gives_rows_back(tmp_path: Path) -> None:
    writer = table(tmp_path)
    writer.delete("id IN (2, 3)")
    writer.append(rows(9))
    writer.dataset.checkout_version(1).restore()
    found = await commit(tmp_path / "t", 4)
    assert pairs(found) == [("delete", 9, "n9"), ("insert", 2, "n2"), ("insert", 3, "n3")]


async def test_an_overwrite_gives_the_old_rows_in_their_schema_and_then_the_new(
    tmp_path: Path,
) -> None:
    writer = table(tmp_path)
    writer.write(pa.table({"k": ["a", "b"]}), mode="overwrite")
    found = await commit(tmp_path / "t", 2)
    assert kinds(found) == {"delete": 6, "insert": 2}
    schemas = [batch.rows.schema.names for batch in found]
    assert schemas[0] == ["id", "name"]
    assert schemas[-1] == ["k"]
    source = await opened(tmp_path / "t")
    begin = await source.offset_at(Version(2))
    steps = [each async for each in source.schema_steps(begin, begin.after_version(source))]
    assert [each.schema.names for each in steps] == [["id", "name"], ["k"]]


async def test_a_column_that_is_added_updates_the_rows_that_have_a_value(tmp_path: Path) -> None:
    writer = table(tmp_path)

    def big(batch: pa.RecordBatch) -> pa.RecordBatch:
        ids = batch.column("id").to_pylist()
        return pa.record_batch({"big": pa.array([n if n > 4 else None for n in ids], pa.int64())})

    writer.dataset.add_columns(big, read_columns=["id"])
    found = changes(await commit(tmp_path / "t", 2))
    assert [(kind, row["id"], row["big"]) for kind, row in found] == [
        ("update_preimage", 5, None),
        ("update_postimage", 5, 5),
        ("update_preimage", 6, None),
        ("update_postimage", 6, 6),
    ]


async def test_columns_dropped_renamed_cast_and_added_as_null_change_no_row(
    tmp_path: Path,
) -> None:
    writer = table(tmp_path)
    writer.dataset.add_columns(pa.schema([pa.field("later", pa.string())]))
    writer.dataset.alter_columns({"path": "name", "name": "called"})
    writer.dataset.alter_columns({"path": "id", "data_type": pa.int32()})
    writer.dataset.drop_columns(["later"])
    writer.dataset.update_config({"a": "b"})
    writer.dataset.create_scalar_index("id", "BTREE")
    source = await opened(tmp_path / "t")
    found, _ = await rest(source, await source.offset_at(Version(2)))
    assert changes(found) == []
    assert (await source.arrow_schema()).names == ["id", "called"]
    assert (await source.schema_at(Version(1))).names == ["id", "name"]


async def test_data_that_is_replaced_in_place_updates_the_rows_that_differ(tmp_path: Path) -> None:
    import lance
    from lance.file import LanceFileWriter
    from lance.fragment import DataFile

    writer = LanceWriter(tmp_path / "t")
    writer.append(rows(1, 2, 3))
    writer.dataset.add_columns({"x": "id * 2"})
    [fragment] = writer.dataset.get_fragments()
    old = fragment.metadata.files[1]
    with LanceFileWriter(str(tmp_path / "t/data/new.lance")) as file:
        file.write_batch(pa.table({"x": [2, 4, 7]}))
    new = DataFile("new.lance", old.fields, [0], old.file_major_version, old.file_minor_version)
    operation = lance.LanceOperation.DataReplacement(
        [lance.LanceOperation.DataReplacementGroup(0, new)]
    )
    lance.LanceDataset.commit(str(tmp_path / "t"), operation, read_version=2)
    found = changes(await commit(tmp_path / "t", 3))
    assert [(kind, row["id"], row["x"]) for kind, row in found] == [
        ("update_preimage", 3, 6),
        ("update_postimage", 3, 7),
    ]


async def test_blobs_are_given_as_their_bytes(tmp_path: Path) -> None:
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema([pa.field("id", pa.int64()), blob])
    writer = LanceWriter(tmp_path / "t", schema=schema, version="2.1")
    writer.append([{"id": 1, "b": b"x" * 200_000}, {"id": 2, "b": None}, {"id": 3, "b": b""}])
    writer.delete("id = 1")
    first, second = await commit(tmp_path / "t", 1), await commit(tmp_path / "t", 2)
    assert [row["b"] for _, row in changes(first)] == [b"x" * 200_000, None, b""]
    assert [row["b"] for _, row in changes(second)] == [b"x" * 200_000]


async def test_json_is_given_as_text(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("j", pa.json_())])
    writer = LanceWriter(tmp_path / "t", schema=schema)
    writer.write(pa.table({"id": [1], "j": pa.array(['{"a": 1}'], pa.json_())}, schema=schema))
    [(_, row)] = changes(await commit(tmp_path / "t", 1))
    assert row["j"].replace(" ", "") == '{"a":1}'


async def test_a_clone_begins_with_all_its_rows_where_its_base_is_allowed(tmp_path: Path) -> None:
    writer = table(tmp_path)
    writer.delete("id = 4")
    writer.dataset.shallow_clone(str(tmp_path / "c"), 2)
    found = await commit(tmp_path / "c", 2, allowed=[str(tmp_path / "t")])
    assert sorted(pairs(found)) == [("insert", n, f"n{n}") for n in (1, 2, 3, 5, 6)]


@pytest.mark.parametrize("version", ["2.0", None])
@pytest.mark.parametrize("share", [2, 500])
async def test_many_and_few_deleted_rows_come_in_order_with_their_positions(
    tmp_path: Path, share: int, version: str | None
) -> None:
    writer = LanceWriter(tmp_path / "t", version=version)
    count = 20_000
    ids = np.arange(count)
    writer.write(pa.table({"id": ids, "name": [f"n{n}" for n in ids]}))
    writer.delete("id < 100")
    writer.delete(f"id % {share} = 1")
    found = await commit(tmp_path / "t", 3, limit=BatchLimit(max_rows=700))
    deleted = [n for n in range(100, count) if n % share == 1]
    assert [number for _, number, _ in pairs(found)] == deleted
    assert max(batch.num_rows for batch in found) <= 700
    rows = [each.rpartition(".")[2] for batch in found for each in _ids(batch)]
    assert rows == [str(n) for n in deleted]


def _ids(batch: ChangeBatch) -> list[str]:
    ids = batch.ids()
    assert ids is not None
    found: list[str] = ids.to_pylist()
    return found


async def test_shares_of_a_fragment_have_each_row_once(tmp_path: Path) -> None:
    writer = LanceWriter(tmp_path / "t")
    writer.write(pa.table({"id": range(1000), "name": ["n"] * 1000}))
    writer.delete("id % 3 = 0")
    writer.delete("id < 500")
    source = await opened(tmp_path / "t")
    for begin in (await source.initial_offset("snapshot"), await source.offset_at(Version(3))):
        for group in [each async for each in source.plan(begin, begin.after_version(source))]:
            for task in group.tasks:
                parts = LanceTaskReader().split(task, task.size_bytes // 4 + 1)
                assert len(parts) > 1
                together = [b for part in parts for b in source.read(part, BatchLimit())]
                assert changes(together) == changes(source.read(task, BatchLimit()))


async def test_raw_changes_are_neither_paired_nor_compared(tmp_path: Path) -> None:
    writer = table(tmp_path, stable_ids=True)
    writer.dataset.update({"name": "'x'"}, where="id = 2")
    found = await commit(tmp_path / "t", 2, changes=ChangeMode.FILES)
    assert kinds(found) == {"delete": 1, "insert": 1}
    with pytest.raises(UnsupportedFeatureError, match="no change data feed"):
        await opened(tmp_path / "t", changes=ChangeMode.CDF)


def swap_fields(writer: LanceWriter) -> None:
    for path, name in (("st.b", "t"), ("st.a", "b"), ("st.t", "a")):
        writer.dataset.alter_columns({"path": path, "name": name})


def nested(tmp_path: Path, **options: Any) -> LanceWriter:
    writer = LanceWriter(tmp_path / "t", **options)
    structs = [{"a": f"A{number}", "b": f"B{number}"} for number in range(2)]
    writer.write(
        pa.table({"id": [0, 1], "k": ["x", "y"], "st": structs, "l": [[each] for each in structs]})
    )
    return writer


async def net(location: Path, **options: Any) -> list[tuple[str, Any]]:
    source = await opened(location, changes=ChangeMode.NET, **options)
    begin = await source.offset_at(Version(2))
    found: list[tuple[str, Any]] = []
    while True:
        end = await source.latest_offset(begin, EVERYTHING)
        if end == begin:
            return found
        found += [(kind, dict(row)) for kind, row in changes(await batches(source, begin, end))]
        begin = end


@pytest.mark.attack
async def test_fields_that_were_renamed_within_a_step_keep_their_values(tmp_path: Path) -> None:
    writer = nested(tmp_path)
    swap_fields(writer)
    writer.dataset.update({"k": "'new'"}, where="id = 1")
    found = [(kind, row["k"], row["st"]) for kind, row in await net(tmp_path / "t")]
    struct = {"b": "A1", "a": "B1"}
    assert found == [("delete", "y", struct), ("insert", "new", struct)]


@pytest.mark.attack
async def test_a_field_that_was_dropped_and_added_again_is_another(tmp_path: Path) -> None:
    writer = LanceWriter(tmp_path / "t")
    writer.write(pa.table({"id": [0, 1], "k": ["x", "y"]}))
    writer.dataset.alter_columns({"path": "k", "name": "old"})
    writer.dataset.add_columns({"k": "'added'"})
    writer.dataset.delete("id = 1")
    found = [(kind, row["id"], row["old"], row["k"]) for kind, row in await net(tmp_path / "t")]
    assert found == [
        ("delete", 1, "y", None),
        ("update_preimage", 0, "x", None),
        ("update_postimage", 0, "x", "added"),
    ]


@pytest.mark.attack
async def test_a_restore_over_a_rename_and_a_cast_compares_fields_by_id(tmp_path: Path) -> None:
    writer = LanceWriter(tmp_path / "t")
    writer.write(pa.table({"id": [0, 1], "st": [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]}))
    writer.dataset.alter_columns({"path": "st.b", "name": "c"})
    writer.dataset.alter_columns({"path": "st.a", "data_type": pa.int32()})
    writer.dataset.checkout_version(1).restore()
    for version in (2, 3, 4):
        assert changes(await commit(tmp_path / "t", version)) == []


@pytest.mark.attack
async def test_deletes_come_before_updates_in_place_and_inserts_after(tmp_path: Path) -> None:
    writer = table(tmp_path)
    writer.dataset.delete("id = 2")
    writer.dataset.add_columns({"more": "id * 10"})
    writer.append([{"id": 9, "name": "n9"}])
    found = await net(tmp_path / "t")
    kinds = [kind for kind, _ in found]
    assert kinds == ["delete", *["update_preimage", "update_postimage"] * 5, "insert"]


@pytest.mark.attack
async def test_dates_of_64_bits_are_days(tmp_path: Path) -> None:
    days = pa.array([-1, 86_400_000, None], pa.int64()).view(pa.date64())
    writer = LanceWriter(tmp_path / "t")
    writer.write(
        pa.table(
            {
                "d": days,
                "l": pa.array([[0], [], None], pa.list_(pa.int64())).cast(pa.list_(pa.int64())),
            }
        )
    )
    source = await opened(tmp_path / "t")
    begin = await source.initial_offset("snapshot")
    found = [
        row["d"] for _, row in changes(await batches(source, begin, begin.after_version(source)))
    ]
    assert found == [datetime.date(1969, 12, 31), datetime.date(1970, 1, 2), None]
