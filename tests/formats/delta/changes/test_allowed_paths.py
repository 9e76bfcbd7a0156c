from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tailerd.errors import ConfigError, PathOutsideTableError
from tailerd.formats.delta.protocol.data_path import DataPaths
from tailerd.storage.table_location import locate_table


def allowed_locations(locations: Sequence[str]) -> tuple[str, ...]:
    return locate_table("/lake/t", locations).allowed


def test_only_allowed_paths_may_be_named() -> None:
    paths = DataPaths("/lake/clone", allowed_locations(["file:///lake/origin/", "s3://b/t/"]))
    assert paths.resolve("file:/lake/origin/a%20b") == "/lake/origin/a b"
    assert paths.resolve("/lake/origin/a") == "/lake/origin/a"
    assert paths.resolve("s3://b/t/a") == "s3://b/t/a"
    for path in ("/lake/origin2/a", "/lake/origin/../x", "s3://b/t2/a", "../origin2/a"):
        with pytest.raises(PathOutsideTableError):
            paths.resolve(path)


@pytest.mark.parametrize(
    ("location", "path", "found"),
    [
        ("/", "file:///other/x", "/other/x"),
        ("file:///", "/other/x", "/other/x"),
        ("/lake/../other", "/other/x", "/other/x"),
        ("/other//deep/", "/other/deep/x", "/other/deep/x"),
        ("file:///my%20lake", "file:///my%20lake/x%20y", "/my lake/x y"),
        ("/my%20lake", "/my%2520lake/x", "/my%20lake/x"),
        ("other", "/work/other/x", "/work/other/x"),
        ("../other", "/other/x", "/other/x"),
        ("s3://other", "s3a://other/x", "s3://other/x"),
        ("s3a://other/source", "s3n://other/source/x", "s3://other/source/x"),
    ],
)
def test_a_path_is_allowed_however_it_is_written(
    monkeypatch: pytest.MonkeyPatch, location: str, path: str, found: str
) -> None:
    monkeypatch.setattr("os.getcwd", lambda: "/work")
    assert DataPaths("/lake/t", allowed_locations([location])).resolve(path) == found
    assert DataPaths("s3://b/t", allowed_locations([location])).resolve(path) == found


def test_everything_local_is_nothing_in_buckets() -> None:
    with pytest.raises(PathOutsideTableError):
        DataPaths("/lake/t", allowed_locations(["/"])).resolve("s3://b/x")


@pytest.mark.parametrize("location", ["", "hdfs://host/lake", "s3://"])
def test_an_impossible_path_is_refused(location: str) -> None:
    with pytest.raises(ConfigError):
        allowed_locations([location])


def test_a_relative_path_is_one_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert allowed_locations(["."]) == (str(tmp_path),)
