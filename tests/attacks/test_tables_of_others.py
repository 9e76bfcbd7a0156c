"""Tables that others read: what writers leave out, pad, mark or name in ways of their own.

Where such a table says something impossible, every command ends with status 3 and one line.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from tailerd.cli import run
from tailerd.delta.protocol.deletion_vector import MAGIC, z85_decode
from tailerd.delta.protocol.schema import MAX_DEPTH
from tests.attacks.every_command import every_command
from tests.corners.feed import changes
from tests.integration.daemon.running import file_table, write_config
from tests.tables import delta_schema
from tests.tables.builder import TableBuilder
from tests.tables.delta_schema import field
from tests.tables.vectors import z85
from tests.unit.cli.commands import Commands


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capfd)


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
    wanted = [
        {"id": number, **NOTHING, "inner": None if number % 2 else {"a": 1, "b": None}}
        for number in range(rows)
    ]

    found = command.tail(folder, "--from", "0").rows
    assert list(found[0])[:5] == ["id", "nothing", "inner", "all", "by"]
    plain = [{name: row[name] for name in wanted[0]} for row in found]
    assert plain == wanted
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
