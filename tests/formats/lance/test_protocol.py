"""Manifests are read as the library wrote them, and nothing else is taken for one."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailerd.errors import CorruptLogError, LogChangedError, TailerdError
from tailerd.formats.lance.protocol.columns import parse_columns
from tailerd.formats.lance.protocol.fragments import parse_fragment
from tailerd.formats.lance.protocol.manifest import parse_manifest
from tailerd.formats.lance.protocol.transactions import Operation, parse_operation
from tailerd.formats.lance.protocol.version_names import (
    VERSIONS,
    Scheme,
    detect_scheme,
    parse_version,
    staged_version,
)
from tailerd.formats.lance.protocol.wire import decode_signed, fields, number, numbers, runs
from tailerd.formats.plain_schema import plain_type
from tests.formats.lance.wire_format import field, manifest_file, message, varint
from tests.tables.lance_writer import LanceWriter

NUMBERS = st.integers(0, (1 << 64) - 1)
FIELDS = st.lists(st.tuples(st.integers(1, 5000), NUMBERS | st.binary(max_size=300)), max_size=20)


@given(FIELDS)
def test_messages_are_read_as_they_were_written(written: list[tuple[int, int | bytes]]) -> None:
    assert list(fields(message(written))) == written


@given(FIELDS, st.integers(1, 15))
def test_runs_of_a_field_are_what_fields_says(
    written: list[tuple[int, int | bytes]], field: int
) -> None:
    written = [(n, v) for n, v in written if n != field or isinstance(v, bytes)]
    found, others = runs(message(written), field)
    assert found == [value for number, value in written if number == field]
    assert others == [each for each in written if each[0] != field]


@given(st.lists(st.integers(-(1 << 31), (1 << 31) - 1)))
def test_packed_numbers_may_be_below_zero(values: list[int]) -> None:
    assert numbers(b"".join(map(varint, values))) == values
    assert [decode_signed(number(value & (1 << 64) - 1)) for value in values] == values


@given(st.binary(max_size=200))
def test_no_bytes_are_read_as_something_else_than_a_message(junk: bytes) -> None:
    try:
        read = list(fields(junk))
    except CorruptLogError:
        return
    assert all(number >= 0 for number, _ in read)


@given(st.binary(max_size=200), st.sampled_from([parse_fragment, parse_operation]))
def test_junk_is_refused_as_damage(junk: bytes, parse: object) -> None:
    assert callable(parse)
    for read in (
        parse,
        lambda raw: parse_columns([raw]),
        lambda raw: _manifest(manifest_file(raw)),
    ):
        try:
            read(junk)
        except TailerdError:
            continue


def _manifest(content: bytes) -> object:
    return parse_manifest(content, "it")


@given(st.integers(1, (1 << 64) - 2), st.sampled_from(Scheme))
def test_names_say_versions(version: int, scheme: Scheme) -> None:
    if scheme is Scheme.ASCENDING:
        version = min(version, 10**18)
    name = scheme.format_name(version)
    assert parse_version(name) == version
    assert detect_scheme([name, "latest_version_hint.json"]) is scheme
    assert staged_version(f"{name}-1b4e28ba") == version
    assert VERSIONS.version_before(VERSIONS.next_version(version)) == version  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    ["d5.manifest", "5.manifest-1b4e", "latest_version_hint.json", "0.manifest", ".manifest",
     "5.manifest.tmp", "18446744073709551615.manifest", "x5.manifest", "٣.manifest"],
)  # fmt: skip
def test_other_names_are_no_versions(name: str) -> None:
    assert parse_version(name) is None


def test_manifests_named_in_two_ways_are_refused() -> None:
    names = [Scheme.ASCENDING.format_name(1), Scheme.DESCENDING.format_name(2)]
    with pytest.raises(LogChangedError, match="both ways"):
        detect_scheme(names)


def test_a_manifest_that_is_cut_anywhere_is_damage(tmp_path: Path) -> None:
    LanceWriter(tmp_path / "t").append([{"id": 1, "name": "n"}])
    [path] = (tmp_path / "t/_versions").glob("*.manifest")
    content = path.read_bytes()
    assert parse_manifest(content, "it").version == 1
    for end in range(0, len(content) - 1, 7):
        with pytest.raises(CorruptLogError):
            parse_manifest(content[:end], "it")


def test_flags_and_what_they_mean_are_read() -> None:
    body = message([(3, 5), (9, 2 | 1 << 20)])
    found = parse_manifest(manifest_file(body), "it")
    assert found.flags_shown == ["stable row ids", f"bit {1 << 20}"]
    assert found.has_stable_row_ids
    assert parse_operation(field(1, 3) + field(104, b"")) is Operation.REWRITE
    assert parse_operation(field(999, b"")) is Operation.UNKNOWN


def test_manifests_of_other_releases_say_what_the_library_says(given_tables: Path) -> None:
    import lance

    folders = sorted({path.parents[1] for path in given_tables.glob("tables/**/*.manifest")})
    assert len(folders) > 20
    for folder in folders:
        for path in sorted(folder.glob("_versions/*.manifest")):
            found = parse_manifest(path.read_bytes(), str(path))
            assert parse_version(path.name) == found.version
            dataset = lance.dataset(str(folder), version=found.version)
            columns = parse_columns(found.fields)
            expected = [(each.name, plain_type(each.type)) for each in dataset.schema]
            assert [(each.name, each.type) for each in columns] == expected
            theirs = [each.metadata for each in dataset.get_fragments()]
            ours = [parse_fragment(each) for each in found.fragments]
            assert [each.id for each in ours] == [each.id for each in theirs]
            assert [[file.path for file in each.files] for each in ours] == [
                [file.path for file in each.files] for each in theirs
            ]


TYPES = [
    *(pa.int8(), pa.uint16(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.bool_()),
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(4), pa.null()),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time64("ns"), pa.duration("us")),
    *(pa.timestamp("s"), pa.timestamp("ns", "Europe/Berlin"), pa.timestamp("us", "+01:00")),
    *(pa.decimal128(10, 2), pa.decimal256(40, 5), pa.dictionary(pa.int8(), pa.string())),
    *(pa.list_(pa.float32(), 4), pa.list_(pa.list_(pa.int8(), 2), 3), pa.list_(pa.int64())),
    *(pa.large_list(pa.string()), pa.list_(pa.list_(pa.int64()))),
    pa.struct([("a", pa.int32()), ("b", pa.list_(pa.struct([("c", pa.string())])))]),
    pa.map_(pa.string(), pa.int32()),
    pa.list_(pa.struct([("q", pa.int8())]), 2),
]


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_types_are_those_of_the_library(tmp_path: Path, kind: pa.DataType) -> None:
    writer = LanceWriter(tmp_path / "t", version="2.2")
    rows = pa.table({"first": pa.array([1]), "it": pa.nulls(1, kind), "last": pa.array(["x"])})
    writer.write(rows)
    [path] = (tmp_path / "t/_versions").glob("*.manifest")
    columns = parse_columns(parse_manifest(path.read_bytes(), "it").fields)
    assert [each.name for each in columns] == ["first", "it", "last"]
    assert columns[1].type == plain_type(writer.dataset.schema.field("it").type)


@pytest.mark.attack
@pytest.mark.parametrize(("writer", "rows"), [(b"", None), (field(1, b"lance"), 92)])
def test_row_counts_of_releases_that_did_not_record_themselves_are_unknown(
    writer: bytes, rows: int | None
) -> None:
    # These releases filled in the number of live rows as the number of all.
    fragment = message([(1, 1), (4, 102), (3, message([(2, 3), (4, 10)]))])
    body = message([(3, 5), (2, fragment), *([(13, writer)] if writer else [])])
    found = parse_manifest(manifest_file(body), "it")
    assert [found.parse(each).live_rows for each in found.fragments] == [rows]
