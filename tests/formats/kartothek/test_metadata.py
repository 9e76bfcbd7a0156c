"""Metadata files: both spellings, addresses of tables, and what is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pyarrow as pa
import pytest

from tailerd.errors import (
    AccessDeniedError,
    ConfigError,
    TableError,
    TailerdError,
    UnreadableMetadataError,
    UnsupportedFeatureError,
    UsageError,
)
from tailerd.formats.base import OpenRequest
from tailerd.formats.detect import find_format, open_table
from tailerd.formats.kartothek.format import KartothekFormat
from tailerd.formats.kartothek.metadata import parse_metadata, parse_metadata_name
from tailerd.formats.kartothek.table_schema import path_pieces, path_value
from tailerd.storage.table_location import locate_table
from tests.formats.kartothek.observing import Follower, inserted, opened
from tests.tables.builder import TableBuilder
from tests.tables.dataset_writer import DatasetWriter

ROW: dict[str, object] = {"id": 1, "name": "n1"}


def content(**changed: object) -> bytes:
    whole: dict[str, object] = {
        "dataset_metadata_version": 4,
        "dataset_uuid": "ds",
        "metadata": {"creation_time": "2026-11-20T22:09:12"},
        "partitions": {"p": {"files": {"table": "ds/table/p.parquet"}}},
        **changed,
    }
    return json.dumps({name: value for name, value in whole.items() if value is not ...}).encode()


@pytest.mark.parametrize("suffix", ["json", "msgpack.zstd"])
def test_both_spellings_say_the_same(tmp_path: Path, suffix: str) -> None:
    writer = DatasetWriter(tmp_path, suffix=suffix)
    writer.user_metadata = {"b": "2", "a": "1"}
    writer.indices = {"id": "ds/indices/id/x.by-dataset-index.parquet"}
    writer.commit([ROW])
    found = parse_metadata(writer.metadata_path.read_bytes(), "ds", suffix)
    [key] = found.files["table"]
    assert key.startswith("ds/table/")
    assert found.creation_time == writer.creation_time
    assert found.user_metadata == '{"a":"1","b":"2"}'
    assert found.indices == writer.indices


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"dataset_metadata_version": 3}, UnsupportedFeatureError),
        ({"dataset_metadata_version": ...}, UnsupportedFeatureError),
        ({"dataset_uuid": "other"}, TableError),
        ({"partitions": ...}, UnsupportedFeatureError),
        ({"partitions": {"p": {"files": {"t": "other/t/p.parquet"}}}}, TableError),
        ({"partitions": {"p": {"files": {"t": "ds/t/../../p.parquet"}}}}, TableError),
        ({"partitions": {"p": {"files": {"t": "ds/u/p.parquet"}}}}, TableError),
        ({"partitions": {"p": {"files": {"t": "ds/t/p.csv"}}}}, UnsupportedFeatureError),
        ({"partitions": {"p": {}}}, UnreadableMetadataError),
        ({"partitions": []}, UnreadableMetadataError),
    ],
)
def test_what_cannot_be_served_is_refused(
    changed: dict[str, object], error: type[TailerdError]
) -> None:
    with pytest.raises(error):
        parse_metadata(content(**changed), "ds", "json")


def test_metadata_may_lack_what_is_optional() -> None:
    found = parse_metadata(content(metadata=..., partitions={}), "ds", "json")
    assert (found.creation_time, found.files, found.indices) == ("", {}, {})


@pytest.mark.parametrize("cut", [0, 1, 50, -1])
@pytest.mark.parametrize("suffix", ["json", "msgpack.zstd"])
def test_a_torn_file_is_told_as_such(tmp_path: Path, suffix: str, cut: int) -> None:
    writer = DatasetWriter(tmp_path, suffix=suffix)
    writer.commit([ROW])
    with pytest.raises(UnreadableMetadataError):
        parse_metadata(writer.metadata_path.read_bytes()[:cut], "ds", suffix)


async def test_a_file_in_the_middle_of_being_written_is_read_once_it_is_whole(
    tmp_path: Path,
) -> None:
    writer = DatasetWriter(tmp_path)
    writer.commit([ROW])
    follower = await Follower.open(writer.location, "latest")
    writer.write([{"id": 2, "name": "n2"}])
    whole = writer.encoded(writer.content())
    writer.metadata_path.write_bytes(whole[:-10])

    async def finish() -> None:
        await asyncio.sleep(0.1)
        writer.metadata_path.write_bytes(whole)

    async with asyncio.TaskGroup() as group:
        group.create_task(finish())
        found = await follower.step()
    assert sum(inserted(found).values()) == 1


@pytest.mark.parametrize(
    ("name", "uuid"),
    [
        ("ds.by-dataset-metadata.json", "ds"),
        ("a+b-c_d.by-dataset-metadata.msgpack.zstd", "a+b-c_d"),
        ("ds.by-dataset-metadata.json.tmp", None),
        (".ds.by-dataset-metadata.json.draft", None),
        ("ds.by-dataset-index.parquet", None),
    ],
)
def test_names_of_metadata_files_are_matched_whole(name: str, uuid: str | None) -> None:
    assert parse_metadata_name(name) == uuid


async def test_datasets_whose_names_begin_alike_are_told_apart(tmp_path: Path) -> None:
    short, long = DatasetWriter(tmp_path, "ds"), DatasetWriter(tmp_path, "ds2")
    short.commit([ROW])
    long.commit([{"id": 7, "name": "x"}])
    follower = await Follower.open(short.location)
    assert list(inserted(await follower.rest())) == [("1", "'n1'")]


async def test_a_table_is_named_where_there_are_several(tmp_path: Path) -> None:
    first, second = DatasetWriter(tmp_path, table="a"), DatasetWriter(tmp_path, table="b")
    second.commit([{"id": 7, "name": "x"}])
    first.commit([ROW])
    first.partitions |= second.partitions
    first.store_metadata()
    with pytest.raises(UsageError) as error:
        await opened(first.location)
    assert f"{first.location}/a or {first.location}/b" in str(error.value)
    follower = await Follower.open(first.location / "b")
    assert list(inserted(await follower.rest())) == [("7", "'x'")]
    assert (await find_format(locate_table(str(first.location / "b")))).name == "kartothek"


async def test_a_folder_of_two_formats_asks_which_is_meant(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path)
    writer.commit([ROW])
    TableBuilder(writer.location).append([ROW])
    with pytest.raises(ConfigError) as error:
        await open_table(locate_table(str(writer.location)), OpenRequest())
    assert "delta, kartothek" in str(error.value)
    assert (await opened(writer.location)).table_id.startswith("ds@")


async def test_rights_that_end_at_a_tables_folder_suffice_for_other_formats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object) -> bool:
        raise AccessDeniedError("beside the table")

    TableBuilder(tmp_path / "delta").append([ROW])
    monkeypatch.setattr(KartothekFormat, "detect", refused)
    assert (await find_format(locate_table(str(tmp_path / "delta")))).name == "delta"
    with pytest.raises(AccessDeniedError):
        await find_format(locate_table(str(tmp_path / "nothing")))


@pytest.mark.parametrize(
    ("folder", "pieces"),
    [
        ("", ()),
        ("city=k%C3%B6ln", (("city", "köln"),)),
        ("city=a%3Db%20c/d=1", (("city", "a=b c"), ("d", "1"))),
        ("city=s%C3%A3o%20paulo/x", (("city", "são paulo"),)),
        ("a%20b=1/c=2=3", (("a b", "1"),)),
        ("city=", (("city", ""),)),
    ],
)
def test_paths_say_columns(folder: str, pieces: tuple[tuple[str, str], ...]) -> None:
    assert path_pieces(folder) == pieces


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("7", pa.int64(), 7),
        ("0.5", pa.float64(), 0.5),
        ("x", pa.string(), "x"),
        ("", pa.string(), ""),
        ("True", pa.bool_(), True),
        ("False", pa.bool_(), False),
        ("2020-01-31", pa.date32(), "2020-01-31"),
        ("2020-01-31 00:00:00", pa.date32(), "2020-01-31"),
        ("2020-01-31 10:00:00", pa.timestamp("us"), "2020-01-31 10:00:00"),
    ],
)
def test_values_of_paths_have_the_type_of_their_column(
    text: str, kind: pa.DataType, value: object
) -> None:
    found = path_value(text, pa.field("c", kind), "key").as_py()
    assert (str(found) if isinstance(value, str) else found) == value


def test_a_path_that_says_no_value_of_its_column_is_told() -> None:
    with pytest.raises(TableError):
        path_value("x", pa.field("c", pa.int64()), "ds/table/c=x/p.parquet")
