from __future__ import annotations

import pytest

from tailerd.errors import CorruptLogError, InvalidDeletionVectorError, PathOutsideTableError
from tailerd.formats.delta.protocol.actions import DeletionVectorDescriptor
from tailerd.formats.delta.protocol.data_path import DataPaths

LOCAL = DataPaths("/lake/my table")
BUCKET = DataPaths("s3://bucket/table")


def descriptor(kind: str, text: str) -> DeletionVectorDescriptor:
    return DeletionVectorDescriptor(
        storage_type=kind, path_or_inline_dv=text, size_in_bytes=40, cardinality=6, offset=4
    )


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("a.parquet", "/lake/my table/a.parquet"),
        ("p=1/a.parquet", "/lake/my table/p=1/a.parquet"),
        ("a%20b", "/lake/my table/a b"),
        ("a b", "/lake/my table/a b"),
        ("a%2520b", "/lake/my table/a%20b"),
        ("p=50%25/a", "/lake/my table/p=50%/a"),
        ("p=%C3%BC/a", "/lake/my table/p=ü/a"),
        ("p=ü/a", "/lake/my table/p=ü/a"),
        ("p=1+2&c#d?e/a", "/lake/my table/p=1+2&c#d?e/a"),
        ("ts=2024-01-01 00:00:00/a", "/lake/my table/ts=2024-01-01 00:00:00/a"),
        ("ts=2024-01-01%2000%3A00%3A00/a", "/lake/my table/ts=2024-01-01 00:00:00/a"),
        ("..a/b..", "/lake/my table/..a/b.."),
        ("p/../a", "/lake/my table/a"),
        ("/lake/my%20table/a", "/lake/my table/a"),
        ("/lake/my table/a", "/lake/my table/a"),
        ("file:/lake/my%20table/a", "/lake/my table/a"),
        ("file:///lake/my%20table/a", "/lake/my table/a"),
        ("%2Fetc/passwd", "/lake/my table//etc/passwd"),
        ("a:b=x/a", "/lake/my table/a:b=x/a"),
        ("a:b=%2Fetc/a", "/lake/my table/a:b=/etc/a"),
        ("file:etc/passwd", "/lake/my table/file:etc/passwd"),
        ("file%3A/etc/passwd", "/lake/my table/file:/etc/passwd"),
        ("a%zz", "/lake/my table/a%zz"),
        ("a%FF", "/lake/my table/a\udcff"),
    ],
)
def test_a_path_is_decoded_exactly_once(path: str, location: str) -> None:
    assert LOCAL.resolve(path) == location


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "p/../../x",
        "%2e%2e/x",
        "%2E%2E%2Fx",
        "p/%2e%2e/%2e%2e/x",
        "/etc/passwd",
        "/lake/my table",
        "/lake/my table2/x",
        "/lake/my table/../x",
        "/lake/my%20table/%2e%2e/x",
        "file:///etc/passwd",
        "file:/etc/passwd",
        "a:b/../../x",
        "FILE:///lake/my table/x",
        "//lake/my table/x",
        "s3://bucket/x",
        "http://host/lake/my table/x",
    ],
)
def test_a_path_that_leaves_the_table_is_refused(path: str) -> None:
    with pytest.raises(PathOutsideTableError, match="is outside the table"):
        LOCAL.resolve(path)


@pytest.mark.parametrize("path", ["a%00b", "a\0b", "/lake/my%20table/%00", "p%00/../a"])
def test_a_path_that_no_file_can_have_is_an_error_of_the_log(path: str) -> None:
    for paths in (LOCAL, BUCKET):
        with pytest.raises(CorruptLogError, match="NUL"):
            paths.resolve(path)


@pytest.mark.parametrize(
    "path", ["s3://bucket/table2/x", "s3://bucket/table/../x", "../x", "%2e%2e/x", "s3a://other/x"]
)
def test_a_path_that_leaves_the_prefix_of_a_bucket_is_refused(path: str) -> None:
    with pytest.raises(PathOutsideTableError):
        BUCKET.resolve(path)


def test_paths_below_a_bucket_are_resolved() -> None:
    assert BUCKET.resolve("p=1/a%20b") == "s3://bucket/table/p=1/a b"
    assert BUCKET.resolve("s3://bucket/table/a%20b") == "s3://bucket/table/a b"
    assert BUCKET.resolve("s3://bucket/table/p/../a") == "s3://bucket/table/a"


def test_the_protocols_vector_examples_lie_where_it_says() -> None:
    paths = DataPaths("s3://mytable")
    name = "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    relative = paths.vector(descriptor("u", "ab^-aqEH.-t@S}K{vb[*k^"))
    assert (relative.url, relative.offset) == (f"s3://mytable/ab/{name}", 4)
    absolute = paths.vector(descriptor("p", f"s3://mytable/{name}"))
    assert absolute.url == f"s3://mytable/{name}"
    assert paths.vector(descriptor("i", "text")).url == ""


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("p", "file:///etc/passwd"),
        ("p", "../x"),
        ("u", "../^-aqEH.-t@S}K{vb[*k^"),
        ("u", "..^-aqEH.-t@S}K{vb[*k^"),
    ],
)
def test_a_vector_outside_the_table_is_refused(kind: str, text: str) -> None:
    with pytest.raises(PathOutsideTableError):
        LOCAL.vector(descriptor(kind, text))


def test_a_vector_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(CorruptLogError, match="NUL"):
        LOCAL.vector(descriptor("p", "/lake/my table/a%00"))
    with pytest.raises(CorruptLogError, match="NUL"):
        LOCAL.vector(descriptor("u", "a\0^-aqEH.-t@S}K{vb[*k^"))
    with pytest.raises(CorruptLogError, match="'x'; known are u, p and i"):
        LOCAL.vector(descriptor("x", "a"))
    with pytest.raises(InvalidDeletionVectorError):
        LOCAL.vector(descriptor("u", "short"))


@pytest.mark.parametrize(
    ("root", "allowed", "path", "location"),
    [
        ("s3://b/t", (), "x%20y.parquet", "s3://b/t/x y.parquet"),
        ("s3://b/t", (), "s3://b/t/x", "s3://b/t/x"),
        ("s3://b/t", (), "s3a://b/t/x", "s3://b/t/x"),
        ("s3://b/t", ("s3://other/source",), "s3a://other/source/x", "s3://other/source/x"),
        ("/t", ("s3://b/source",), "s3://b/source/x", "s3://b/source/x"),
    ],
)
def test_files_of_a_bucket_are_found_by_all_names_of_s3(
    root: str, allowed: tuple[str, ...], path: str, location: str
) -> None:
    assert DataPaths(root, allowed).resolve(path) == location


@pytest.mark.parametrize(
    ("root", "path"),
    [
        ("s3://b/t", "s3://b/other/x"),
        ("s3://b/t", "s3://b/t/../other/x"),
        ("s3://b/t", "s3://b/t-other/x"),
        ("s3://b/t", "s3a://other/t/x"),
        ("s3://b/t", "/etc/passwd"),
        ("s3://b/t", "file:///etc/passwd"),
        ("s3://b/t", "../other/x"),
        ("/t", "s3://b/t/x"),
    ],
)
def test_a_log_cannot_name_files_outside_its_table(root: str, path: str) -> None:
    with pytest.raises(PathOutsideTableError):
        DataPaths(root).resolve(path)
