from __future__ import annotations

from urllib.parse import quote

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailerd.formats.delta.protocol.checkpoint import (
    NAMES_AT_ONCE,
    FileVector,
    list_vectors,
    logical_keys,
)
from tailerd.formats.delta.protocol.file_key import file_key, hash_names, normal_path

ROOT = "/lake/my table"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a%20b", "a b"),
        ("p=%C3%BC/x", "p=ü/x"),
        ("p=50%25/x", "p=50%/x"),
        ("a%2Fb", "a/b"),
        ("a%2fb", "a%2Fb"),
        ("/lake/my%20table/x", "x"),
        ("file:///lake/my%20table/x", "x"),
        ("file:/lake/my%20table/x", "x"),
        ("/lake/my table/x%20y", "x y"),
    ],
)
def test_two_spellings_of_one_path_are_one_file(one: str, other: str) -> None:
    assert file_key(one, None, ROOT) == file_key(other, None, ROOT)
    assert file_key(one, "u1", ROOT) == file_key(other, "u1", ROOT)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a%2520b", "a b"),
        ("a%2520b", "a%20b"),
        ("a+b", "a b"),
        ("/lake/my tables/x", "x"),
        ("/lake/x", "x"),
        ("s3://bucket/lake/my table/x", "x"),
        ("A", "a"),
    ],
)
def test_other_paths_are_other_files(one: str, other: str) -> None:
    assert file_key(one, None, ROOT) != file_key(other, None, ROOT)


def test_an_absolute_path_below_a_bucket_is_relative() -> None:
    root = "s3://bucket/table"
    assert file_key("s3://bucket/table/a%20b", None, root) == file_key("a b", None, root)
    assert file_key("s3://bucket/table2/a", None, root) != file_key("a", None, root)


@pytest.mark.parametrize("scheme", ["s3a", "s3n"])
def test_names_of_hadoop_for_a_bucket_are_the_same_paths(scheme: str) -> None:
    root = "s3://bucket/table"
    assert file_key(f"{scheme}://bucket/table/a%20b", None, root) == file_key("a b", None, root)
    clone = file_key("s3://other/a", "u1", root)
    assert file_key(f"{scheme}://other/a", "u1", root) == clone
    texts = pa.array([f"{scheme}://bucket/table/a", f"{scheme}://other/b", f"{scheme}/a"])
    expected = [file_key(path, None, root) for path in ("a", "s3://other/b", f"{scheme}/a")]
    assert logical_keys(texts, [], root).tolist() == expected


def test_one_path_with_other_vectors_is_another_file() -> None:
    ids = [None, "", "u1", "u1@0", "u1@4", "i1"]
    assert len({file_key("a", vector) for vector in ids}) == len(ids)


def test_keys_never_change_because_they_are_part_of_saved_offsets() -> None:
    assert file_key("part-0.parquet", None) == 2_582_827_908_771_206_966
    assert file_key("part-0.parquet", "uab@4") == 11_277_932_210_515_333_200


paths = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)


@given(st.lists(st.tuples(paths, st.booleans(), st.none() | st.text("ab@1", max_size=3))))
def test_checkpoints_give_the_keys_that_commits_give(
    files: list[tuple[str, bool, str | None]],
) -> None:
    names = [quote(path) if is_quoted else path for path, is_quoted, _ in files]
    vectors = [
        None if text is None else {"storageType": "u", "pathOrInlineDv": text, "offset": None}
        for _, _, text in files
    ]
    kind = {"storageType": pa.string(), "pathOrInlineDv": pa.string(), "offset": pa.int32()}
    texts = pa.array(names, pa.string())
    entries = pa.StructArray.from_arrays(
        [texts, pa.array(vectors, pa.struct(kind))], ["path", "deletionVector"]
    )
    keys = [
        file_key(name, None if text is None else f"u{text}", ROOT)
        for name, (_, _, text) in zip(names, files, strict=True)
    ]
    assert logical_keys(texts, list_vectors(entries), ROOT).tolist() == keys


@given(paths)
def test_decoding_undoes_encoding(path: str) -> None:
    assert normal_path(quote(path)) == path.encode()
    assert hash_names([path.encode()]).tolist() == [file_key(quote(path), None)]


def test_keys_of_many_entries_are_those_of_each() -> None:
    count = 3 * NAMES_AT_ONCE + 5
    paths = [f"p={n % 7}/x%20{n}" if n % 5 == 0 else f"p/{n}" for n in range(count)]
    positions = [0, 5, NAMES_AT_ONCE - 1, NAMES_AT_ONCE, 2 * NAMES_AT_ONCE + 1, count - 1]
    vectors = [FileVector(row, f"u{row}", 1) for row in positions]
    ids = {vector.row: vector.unique_id for vector in vectors}
    for several in (paths, [f"p/{n}" for n in range(count)]):
        found = logical_keys(pa.array(several), vectors, ROOT)
        expected = [file_key(path, ids.get(n), ROOT) for n, path in enumerate(several)]
        assert found.tolist() == expected
    assert logical_keys(pa.array([], pa.string()), (), ROOT).tolist() == []
