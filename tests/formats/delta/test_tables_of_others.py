"""Tables that others read: what writers leave out, pad, mark or name in ways of their own.

Where such a table says something impossible, every command ends with status 3 and one line.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from tailerd.cli import run
from tailerd.formats.delta.protocol.deletion_vector import MAGIC, z85_decode
from tailerd.formats.delta.protocol.schema import MAX_DEPTH
from tailerd.reading.parquet_footer import _Reader, _write_struct
from tests.cli.commands import Commands
from tests.cli.every_command import every_command
from tests.integration.daemon.running import file_table, write_config
from tests.tables import delta_schema
from tests.tables.builder import TableBuilder
from tests.tables.delta_schema import field
from tests.tables.feed import changes
from tests.tables.vectors import z85

pytestmark = pytest.mark.attack


def without_schema(action: dict[str, Any], text: str | None, *, is_there: bool) -> dict[str, Any]:
    """Return a `metaData` action that says nothing, or `text`, of its schema."""
    del action["metaData"]["schemaString"]
    if is_there:
        action["metaData"]["schemaString"] = text
    return action


@pytest.mark.parametrize(
    ("text", "is_there"), [(None, False), (None, True), ("", True)], ids=["absent", "null", "empty"]
)
def test_a_table_whose_first_metadata_has_no_schema_is_read_from_its_beginning(
    tmp_path: Path, command: Commands, text: str | None, is_there: bool
) -> None:
    folder = tmp_path / "orders"
    table = TableBuilder(folder)
    table.commit(
        table.protocol(), without_schema(table.metadata(), text, is_there=is_there), metrics={}
    )
    for ended in every_command(command, folder, tmp_path):
        assert ended.status == 0, ended
    assert json.loads(command("inspect", folder, "--json").output)["schema"]["fields"] == []
    table.commit(table.metadata())
    table.append([{"id": 1, "name": "a"}])
    table.checkpoint()
    for start in ("0", "snapshot"):
        [row] = command.tail(folder, "--from", start).rows
        assert (row["id"], row["name"]) == (1, "a")
    for ended in every_command(command, folder, tmp_path):
        assert ended.status == 0, ended


def test_rows_under_an_empty_schema_are_an_error(tmp_path: Path, command: Commands) -> None:
    table = TableBuilder(tmp_path)
    empty = without_schema(table.metadata(), None, is_there=False)
    table.commit(table.protocol(), empty, *table.data_files([{"id": 1, "name": "a"}]))
    for start in ("0", "snapshot"):
        ran = command.tail(tmp_path, "--from", start)
        assert (ran.status, ran.output) == (3, "")
        assert "no columns" in ran.errors


VOID_FIELDS = [
    field("id", "long"),
    field("nothing", "void"),
    field("inner", delta_schema.struct(field("a", "long"), field("b", "void"))),
    field("all", delta_schema.array("void")),
    field("by", delta_schema.map_of("string", "void")),
]


def void_table(folder: Path, rows: int = 150) -> TableBuilder:
    """Make a table whose file lacks its void columns, or has something in their place."""
    table = TableBuilder(folder)
    table.fields[:] = VOID_FIELDS
    inner = pa.array([{"a": 1}, None] * (rows // 2), pa.struct({"a": pa.int64()}))
    file = {"id": pa.array(range(rows)), "inner": inner, "nothing": pa.nulls(rows, pa.int32())}
    table.create(table.data_file(pa.table(file), partition={}))
    return table


NOTHING = {"nothing": None, "all": None, "by": None}


@pytest.mark.parametrize("rows", [2, 150], ids=["few", "many"])
def test_columns_of_type_void_are_null_in_every_row_of_every_output(
    tmp_path: Path, command: Commands, rows: int
) -> None:
    folder = tmp_path / "orders"
    void_table(folder, rows)
    expected = [
        {"id": number, **NOTHING, "inner": None if number % 2 else {"a": 1, "b": None}}
        for number in range(rows)
    ]

    found = command.tail(folder, "--from", "0").rows
    assert list(found[0])[:5] == ["id", "nothing", "inner", "all", "by"]
    plain = [{name: row[name] for name in expected[0]} for row in found]
    assert plain == expected
    envelopes = command("tail", folder, "--from", "0", "--once", "--format", "debezium").rows
    assert [envelope["after"] for envelope in envelopes] == plain
    for ended in every_command(command, folder, tmp_path):
        assert ended.status == 0, ended
    assert "nothing" in command("inspect", folder).output


def test_columns_of_type_void_keep_their_type_in_arrow_and_parquet(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    folder = tmp_path / "orders"
    void_table(folder)
    sink = {"kind": "file", "path": str(tmp_path / "out"), "format": "parquet"}
    config = write_config(tmp_path, orders=file_table(folder, tmp_path / "out", sink=sink))
    assert run(["run", "--config", str(config), "--once"]) == 0
    [file] = (tmp_path / "out").glob("*.parquet")
    capfdbinary.readouterr()
    assert run(["tail", str(folder), "--once", "--from", "0", "--format", "arrow"]) == 0
    stream = pa.ipc.open_stream(capfdbinary.readouterr().out).read_all()
    for rows in (pq.read_table(file), stream):
        assert rows.schema.field("nothing").type == pa.null()
        assert rows.schema.field("inner").type == pa.struct({"a": pa.int64(), "b": pa.null()})
        assert rows.num_rows == rows.column("nothing").null_count == 150


def struct_within(depth: int) -> dict[str, Any]:
    kind: Any = "long"
    for _ in range(depth):
        kind = delta_schema.struct(field("a", kind))
    return delta_schema.struct(field("a", kind))


def nested(depth: int, opening: str, closing: str) -> str:
    kind = opening * depth + '"long"' + closing * depth
    return json.dumps(delta_schema.struct(field("a", "?"))).replace('"?"', kind)


SCHEMAS = {
    "space": " ",
    "null": "null",
    "list": "[]",
    "text": '"long"',
    "array": '{"type":"array","elementType":"long"}',
    "torn": '{"type":"struct","fields":[{"na',
    "no-fields": '{"type":"struct"}',
    "fields-are-text": '{"type":"struct","fields":"abc"}',
    "number-for-name": '{"type":"struct","fields":[{"name":5,"type":"long"}]}',
    "null-for-name": '{"type":"struct","fields":[{"name":null,"type":"long"}]}',
    "number-for-type": '{"type":"struct","fields":[{"name":"a","type":5}]}',
    "metadata-is-text": '{"type":"struct","fields":[{"name":"a","type":"long","metadata":"x"}]}',
    "surrogate": '{"type":"struct","fields":[{"name":"a\\ud800","type":"long"}]}',
    "surrogate-type": '{"type":"struct","fields":[{"name":"a","type":"\\udfff"}]}',
    "one-name-twice": json.dumps(delta_schema.struct(field("a", "long"), field("a", "string"))),
    "long-decimal": nested(1, '"decimal(' + "9" * 5000 + ',0)"#', "").replace('#"long"', ""),
    "deep-structs": json.dumps(struct_within(MAX_DEPTH)),
    "deep-arrays": nested(1000, '{"type":"array","elementType":', "}"),
    "deeper-maps": nested(
        20_000, '{"type":"map","keyType":"long","valueType":', ',"valueContainsNull":true}'
    ),
}


DEEPEST = MAX_DEPTH - 2


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_a_schema_that_is_none_ends_every_command_with_one_line_and_status_3(
    tmp_path: Path, command: Commands, schema: str
) -> None:
    folder = tmp_path / "orders"
    table = TableBuilder(folder)
    metadata = table.metadata()
    metadata["metaData"]["schemaString"] = schema
    table.commit(table.protocol(), metadata, *table.data_files([{"id": 1, "name": "a"}]))
    assert command.tail(folder, "--from", "0").status == 3
    for ended in every_command(command, folder, tmp_path):
        assert ended.is_served_or_refused(), ended


def test_types_nested_sixty_deep_are_read_in_every_format(
    tmp_path: Path, command: Commands
) -> None:
    folder = tmp_path / "orders"
    table = TableBuilder(folder)
    table.fields[:] = struct_within(DEEPEST)["fields"]
    value: Any = 1
    for _ in range(DEEPEST):
        value = {"a": value}
    table.append([{"a": value}])
    [row] = command.tail(folder, "--from", "0").rows
    assert row["a"] == value
    for ended in every_command(command, folder, tmp_path):
        assert ended.status == 0, ended


def padded_z85(data: bytes) -> str:
    """Encode as delta-kernel-rs: a short last block is a shorter number, padded in front."""
    rest = len(data) % 4
    if not rest:
        return z85(data)
    return z85(data[:-rest]) + "#" * (4 - rest) + z85(data[-rest:].rjust(4, b"\0"))[4 - rest :]


def test_the_bytes_03_00_are_padded_as_the_writer_pads_them() -> None:
    assert padded_z85(b"\x03\x00") == "##093"
    assert z85_decode("##093") == b"\x03\x00"


@given(st.binary(max_size=40))
def test_both_ways_to_write_z85_give_their_bytes(data: bytes) -> None:
    assert z85_decode(padded_z85(data)) == data
    assert z85_decode(z85(data)) == data + bytes(-len(data) % 4)


@pytest.mark.parametrize(
    "text",
    [
        *("#", "##", "####", "#####", "##09", "#####00000", "00000##09", "0000", "00000 "),
        *("####4", "###31", "##9S1", "#wjjk", "####0", "##093##093", "%nSc1", "$nSc1"),
        *("0000\u20ac", "0000~", "00000\n"),
    ],
)
def test_what_is_no_z85_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"Z85|ascii"):
        z85_decode(text)


@pytest.mark.parametrize("rest", [1, 2, 3])
async def test_inline_vectors_with_a_padded_last_block_delete_their_rows(
    tmp_path: Path, rest: int
) -> None:
    bitmap = BitMap64(
        {1: [1, 2, 3, 4, *range(1 << 16, (1 << 16) + 5)], 2: [1], 3: [1, 2, 3, 4]}[rest]
    )
    if rest != 2:
        bitmap.run_optimize()
    data = MAGIC.to_bytes(4, "little") + bytes(bitmap.serialize())
    assert len(data) % 4 == rest
    table = TableBuilder(tmp_path, reader_features=["deletionVectors"])
    count = bitmap.max() + 2
    ids = pa.table({"id": range(count), "name": pa.nulls(count, pa.string())})
    add = table.data_file(ids, partition={})
    add["add"]["deletionVector"] = {
        "storageType": "i",
        "pathOrInlineDv": padded_z85(data),
        "sizeInBytes": len(data),
        "cardinality": len(bitmap),
    }
    table.create(add)
    found = {row["id"] for row in await changes(tmp_path)}
    assert found == set(range(count)) - set(bitmap)


def mark_group(path: Path, name: str) -> None:
    """Give a group of a Parquet file the logical type UNKNOWN, as older parquet-mr does."""
    body = path.read_bytes()
    size = int.from_bytes(body[-8:-4], "little")
    footer = _Reader(body[-8 - size : -8]).struct()
    [group] = [element for element in footer[2][1][1] if element[4][1] == name.encode()]
    assert 5 in group, "it is no group"
    group[10] = (12, {11: (12, {})})
    out = bytearray()
    _write_struct(out, footer)
    path.write_bytes(body[: -8 - size] + bytes(out) + len(out).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(OSError, match="cannot be applied to group"):
        pq.ParquetFile(path)


def test_files_whose_groups_are_marked_as_nothing_are_read(
    tmp_path: Path, command: Commands
) -> None:
    folder = tmp_path / "orders"
    inner = delta_schema.struct(field("a", "long"), field("b", delta_schema.array("string")))
    table = TableBuilder(folder, fields=[("id", "long"), ("inner", inner)])
    value = {"a": 7, "b": ["x", None]}
    table.append([{"id": number, "inner": value} for number in range(1000)])
    table.checkpoint()
    [file] = folder.glob("*.parquet")
    mark_group(file, "inner")
    mark_group(next(table.log.glob("*.checkpoint.parquet")), "txn")
    table.commit_path(0).unlink()

    found = command.tail(folder, "--from", "snapshot").rows
    assert [(row["id"], row["inner"]) for row in found] == [(n, value) for n in range(1000)]
    table.append([{"id": 1000, "inner": None}])
    for ended in every_command(command, folder, tmp_path):
        # The commit of version 0 is gone.
        assert ended.status == (3 if "--from 0" in " ".join(ended.command) else 0), ended


def damaged_checkpoints(whole: Path) -> dict[str, bytes]:
    """Return what may stand in the place of a checkpoint and cannot be read."""
    table = pq.read_table(whole)
    adds = table.column("add").combine_chunks()
    numbers = pa.array([5] * len(adds))
    paths = pa.StructArray.from_arrays(
        [numbers, adds.field("size")], ["path", "size"], mask=adds.is_null()
    )
    texts = pa.array(["x"] * len(adds))
    columns = table.column_names
    kinds = {
        "texts": table.set_column(columns.index("add"), "add", texts),
        "numbers-for-paths": table.set_column(columns.index("add"), "add", paths),
        "texts-for-protocol": table.set_column(columns.index("protocol"), "protocol", texts),
    }
    bodies = {"torn": whole.read_bytes()[:-100], "noise": b"PAR1" * 1000}
    for name, content in kinds.items():
        sink = pa.BufferOutputStream()
        pq.write_table(content, sink)
        bodies[name] = sink.getvalue().to_pybytes()
    return bodies


KINDS_OF_DAMAGE = ("torn", "noise", "texts", "numbers-for-paths", "texts-for-protocol")


@pytest.mark.parametrize("kind", KINDS_OF_DAMAGE)
@pytest.mark.parametrize("has_older", [False, True], ids=["commits", "older"])
def test_a_checkpoint_that_cannot_be_read_is_skipped_with_one_warning(
    tmp_path: Path, command: Commands, kind: str, has_older: bool
) -> None:
    folder = tmp_path / "orders"
    table = TableBuilder(folder)
    for number in range(6):
        table.append([{"id": number, "name": "a"}])
        if number == 3 and has_older:
            table.checkpoint()
            for version in range(3):
                table.commit_path(version).unlink()
    table.checkpoint()
    newest = sorted(table.log.glob("*.checkpoint.parquet"))[-1]
    newest.write_bytes(damaged_checkpoints(newest)[kind])
    table.append([{"id": 6, "name": "a"}])

    ran = command.tail(folder, "--from", "snapshot")
    assert (ran.status, sorted(row["id"] for row in ran.rows)) == (0, [*range(7)]), ran
    [warning] = ran.errors.splitlines()
    assert warning.startswith("warning[corrupt_log]: The checkpoint of version 5 cannot be used")
    for arguments in (("inspect", folder), ("history", folder), ("maintain", folder)):
        ran = command(*arguments)
        assert (ran.status, ran.errors.count("warning[") <= 1) == (0, True), ran


def test_a_path_that_is_no_utf8_is_read_by_every_command_and_shown_as_text(
    tmp_path: Path, command: Commands
) -> None:
    folder = tmp_path / "orders"
    table = TableBuilder(folder, properties={"delta.enableDeletionVectors": "true"})
    add = table.data_file([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}], path="z.parquet")
    raw = os.fsencode(folder / "z") + b"\xff.parquet"
    os.rename(folder / "z.parquet", raw)
    add["add"]["path"] = "z%FF.parquet"
    table.create(add)
    table.contents["z%FF.parquet"] = table.contents["z.parquet"]
    table.delete_rows(add, [0])
    table.checkpoint()
    found = command.tail(folder, "--from", "0").rows
    assert [(row["id"], row["_change_type"]) for row in found] == [
        *((1, "insert"), (2, "insert")),
        (1, "delete"),
    ]
    for ended in every_command(command, folder, tmp_path):
        assert ended.status == 0, ended

    os.unlink(raw)
    for ended in every_command(command, folder, tmp_path):
        assert ended.is_served_or_refused(), ended
        # Text, whatever is read with it next.
        (ended.output + ended.errors).encode()
    ran = command.tail(folder, "--from", "snapshot")
    assert ran.status == 3
    assert r"z\xff.parquet" in ran.errors


@pytest.mark.parametrize("is_nested", [False, True], ids=["columns", "fields"])
def test_two_columns_of_one_name_are_told_apart_by_field_id(
    tmp_path: Path, command: Commands, is_nested: bool
) -> None:
    folder = tmp_path / "orders"
    fields = [field("a", "long"), field("b", "string"), field("c", "long")]
    if is_nested:
        fields = [field("s", delta_schema.struct(*fields))]
    table = TableBuilder(folder, fields=fields, mapping="id")
    leaves = table.fields[0]["type"]["fields"] if is_nested else table.fields
    columns = [pa.array([1]), pa.array(["two"]), pa.array([3])]
    schema = [
        pa.field(
            "x",
            column.type,
            metadata={"PARQUET:field_id": str(leaf["metadata"]["delta.columnMapping.id"])},
        )
        for leaf, column in zip(leaves, columns, strict=True)
    ]
    if is_nested:
        number = str(table.fields[0]["metadata"]["delta.columnMapping.id"])
        struct = pa.StructArray.from_arrays(columns, fields=schema)
        schema = [pa.field("s", struct.type, metadata={"PARQUET:field_id": number})]
        columns = [struct]
    file = pa.Table.from_arrays(columns, schema=pa.schema(schema))
    table.create(table.data_file(file, partition={}, stats=False))
    [row] = command.tail(folder, "--from", "0").rows
    found = row["s"] if is_nested else row
    assert (found["a"], found["b"], found["c"]) == (1, "two", 3)
    for ended in every_command(command, folder, tmp_path):
        assert ended.status == 0, ended
