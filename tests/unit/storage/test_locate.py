"""From URLs to stores."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailerd.errors import ConfigError, FileMissingError
from tailerd.storage.local import LocalStore
from tailerd.storage.locate import locate, open_data_file, url_of
from tailerd.storage.memory import MemoryStore


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
    store, found = locate(url)
    assert isinstance(store, LocalStore)
    assert found == path


def test_a_relative_path_becomes_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate("orders")[1] == f"{tmp_path}/orders"
    assert locate("with:colon")[1] == f"{tmp_path}/with:colon"


def test_a_memory_url_names_the_same_store_everywhere() -> None:
    store, path = locate("memory://test-locate/a%20b/c/")
    assert path == "/a b/c"
    assert store is locate("memory://test-locate")[0] is MemoryStore.named("test-locate")
    assert store is not locate("memory://another")[0]
    MemoryStore.forget("test-locate")
    assert locate("memory://test-locate")[0] is not store
    MemoryStore.forget("test-locate")
    MemoryStore.forget("another")


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n", "S3"])
def test_a_place_in_a_bucket_is_taken_literally(scheme: str) -> None:
    store, path = locate(f"{scheme}://bucket/lake/a%20b c/")
    assert (store.scheme, path) == ("s3", "bucket/lake/a%20b c")
    assert url_of(store, path) == "s3://bucket/lake/a%20b c"


@pytest.mark.parametrize("url", ["/lake/a%20b c", "memory://test-url-of/a%20b/ü c"])
def test_url_of_is_what_locate_turns_back(url: str) -> None:
    store, path = locate(url)
    assert locate(url_of(store, path)) == (store, path)
    MemoryStore.forget("test-url-of")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3:///orders", "names no bucket"),
        ("abfss://x@y/z", "unknown scheme 'abfss'. Known are: a path, file://, s3://, memory://"),
        ("file://server/share", "names the host 'server'"),
        ("", "is empty"),
    ],
)
def test_a_place_that_is_not_served_is_refused_with_the_reason(url: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        locate(url)
    assert words in str(caught.value)


async def test_a_data_file_is_opened_by_path_or_url(tmp_path: Path) -> None:
    path = tmp_path / "a b.parquet"
    pq.write_table(pa.table({"id": [1, 2]}), path)
    for url in (str(path), f"file://{tmp_path}/a%20b.parquet"):
        with open_data_file(url) as opened:
            assert pq.ParquetFile(opened).metadata.num_rows == 2
    with pytest.raises(FileMissingError):
        open_data_file(f"{path}x")


@pytest.mark.parametrize(
    "url", ["s3://me:hush@lake/orders", "s3a://me:hush@lake", "s3n://hush@l", "s3://me:hu/sh@l"]
)
def test_a_url_with_credentials_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigError, match="has no room for credentials") as caught:
        locate(url)
    assert "hu" not in str(caught.value)
