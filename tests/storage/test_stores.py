"""From URLs to stores."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailerd.errors import ConfigError, FileMissingError
from tailerd.storage.local import LocalStore
from tailerd.storage.memory import MemoryStore
from tailerd.storage.stores import Stores, normal_url


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("/lake/orders", "/lake/orders"),
        ("/lake/orders/", "/lake/orders"),
        ("/lake//x/../orders/.", "/lake/orders"),
        ("//lake/orders", "/lake/orders"),
        ("/lake/a%20b", "/lake/a%20b"),
        ("file:///lake/a%20b", "/lake/a b"),
        ("file:///lake/a%2520b", "/lake/a%20b"),
        ("file:/lake/orders", "/lake/orders"),
        ("file://localhost/lake", "/lake"),
        ("FILE:///lake", "/lake"),
        ("/", "/"),
    ],
)
def test_a_path_is_taken_literally_and_a_file_url_is_decoded_once(url: str, path: str) -> None:
    store, found = Stores().locate(url)
    assert isinstance(store, LocalStore)
    assert found == path


def test_a_relative_path_becomes_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert Stores().locate("orders")[1] == f"{tmp_path}/orders"
    assert Stores().locate("with:colon")[1] == f"{tmp_path}/with:colon"


def test_a_memory_url_names_the_same_store_within_one_object() -> None:
    stores = Stores()
    store, path = stores.locate("memory://test/a%20b/c/")
    assert path == "/a b/c"
    assert store is stores.locate("memory://test")[0] is stores.memory("test")
    assert store is not stores.locate("memory://another")[0]
    assert store is not Stores().memory("test")
    other = MemoryStore("test")
    stores.add(other)
    assert stores.memory("test") is other


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n", "S3"])
def test_a_path_in_a_bucket_is_taken_literally(scheme: str) -> None:
    store, path = Stores().locate(f"{scheme}://bucket/lake/a%20b c/")
    assert (store.scheme, path) == ("s3", "bucket/lake/a%20b c")
    assert store.format_url(path) == "s3://bucket/lake/a%20b c"


@pytest.mark.parametrize("url", ["/lake/a%20b c", "memory://test-url-of/a%20b/ü c"])
def test_url_of_is_what_locate_turns_back(url: str) -> None:
    stores = Stores()
    store, path = stores.locate(url)
    assert stores.locate(store.format_url(path)) == (store, path)
    assert normal_url(url) == store.format_url(path)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3:///orders", "names no bucket"),
        ("hdfs://x/z", "unknown scheme 'hdfs'. Known are: a path, abfs://"),
        ("file://server/share", "names the host 'server'"),
        ("", "is empty"),
    ],
)
def test_an_unsupported_url_is_refused_with_the_reason(url: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Stores().locate(url)
    assert words in str(caught.value)


async def test_a_data_file_is_opened_by_path_or_url(tmp_path: Path) -> None:
    path = tmp_path / "a b.parquet"
    pq.write_table(pa.table({"id": [1, 2]}), path)
    for url in (str(path), f"file://{tmp_path}/a%20b.parquet"):
        with Stores().open_data_file(url) as opened:
            assert pq.ParquetFile(opened).metadata.num_rows == 2
    with pytest.raises(FileMissingError):
        Stores().open_data_file(f"{path}x")


@pytest.mark.parametrize(
    "url", ["s3://me:hush@lake/orders", "s3a://me:hush@lake", "s3n://hush@l", "s3://me:hu/sh@l"]
)
def test_a_url_with_credentials_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigError, match="cannot contain credentials") as caught:
        Stores().locate(url)
    assert "hu" not in str(caught.value)
