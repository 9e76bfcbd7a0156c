"""Which columns and fields are delivered, in which order and under which names."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tailerd.errors import UsageError
from tailerd.transforms.columns import parse_path
from tailerd.transforms.options import make_view, parse_pairs
from tests.transforms.batches import change_batch, seen, view_of

ROWS = {
    "id": [1, 2],
    "home": [{"city": "Ulm", "zip": {"no": 5, "ext": None}}, None],
    "a.b": ["x", None],
}


@pytest.mark.parametrize(
    ("text", "path"),
    [("a", ("a",)), ("a.b", ("a", "b")), ("`a.b`", ("a.b",)), ("`a.b`.c d", ("a.b", "c d"))],
)
def test_a_path_names_a_column_and_fields_inside_it(text: str, path: tuple[str, ...]) -> None:
    assert parse_path(text) == path


@pytest.mark.parametrize("text", ["", "a.", ".a", "a..b", "`a", "a`.b"])
def test_other_paths_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not the name of a column"):
        parse_path(text)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"columns": ["home", "id"]}, {"home": ROWS["home"], "id": [1, 2]}),
        ({"columns": "id"}, {"id": [1, 2]}),
        ({"columns": ["`a.b`"]}, {"a.b": ["x", None]}),
        ({"columns": ["home.city"]}, {"home": [{"city": "Ulm"}, None]}),
        (
            {"columns": ["home.zip.no", "home.city"]},
            {"home": [{"zip": {"no": 5}, "city": "Ulm"}, None]},
        ),
        (
            {"columns": {"exclude": ["home.zip.ext", "id"]}},
            {"home": [{"city": "Ulm", "zip": {"no": 5}}, None], "a.b": ["x", None]},
        ),
        ({"columns": {"include": ["id"]}, "rename": {"id": "no"}}, {"no": [1, 2]}),
        (
            {"columns": ["home.zip"], "rename": {"home": "at", "home.zip.no": "n"}},
            {"at": [{"zip": {"n": 5, "ext": None}}, None]},
        ),
    ],
)
def test_columns_and_fields_are_selected_and_renamed(
    options: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert seen(ROWS, **options) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["ids"]}, "columns names 'ids'.*Did you mean 'id'"),
        ({"columns": ["home.town"]}, "columns names 'home.town'.*The fields are city, zip"),
        ({"columns": ["id.x"]}, "'id' has no fields"),
        ({"columns": {"exclude": ["x"]}}, "columns names 'x'"),
        ({"columns": 5}, "columns is 5"),
        ({"columns": ["id", "id"]}, "'id' twice"),
        ({"columns": {"include": ["id"], "exclude": ["home"]}}, "one of the two words"),
        ({"columns": {"only": ["id"]}}, "one of the two words"),
        ({"rename": {"id": "home"}}, "Two columns would have the name 'home'"),
        ({"rename": {"id": ""}}, "is empty"),
        ({"rename": {"no": "x"}}, "rename names 'no'"),
        ({"unchanged": "skip"}, "unchanged is 'skip'"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        seen(ROWS, **options)


def test_rows_without_any_column_are_counted() -> None:
    batch = change_batch(ROWS)
    found = view_of(columns=[]).bind(batch.rows.schema).apply(batch)
    assert found is not None
    assert (found.num_rows, found.rows.num_columns) == (2, 0)


def test_options_that_change_nothing_make_no_view() -> None:
    assert make_view() is None
    assert make_view(columns=None, rename={}, mask={}, key=["id"], mask_key="x") is None


@pytest.mark.parametrize("text", ["a", "a=", "=b", "a=b,", "a=b,a=c"])
def test_pairs_have_a_name_and_a_value(text: str) -> None:
    with pytest.raises(UsageError, match="not a list of pairs"):
        parse_pairs(text, "--rename")


def test_metadata_and_nullability_stay() -> None:
    field = pa.field("id", pa.int64(), nullable=False, metadata={b"comment": b"x"})
    view = make_view(columns=["id"], rename={"id": "no"})
    assert view is not None
    found = view.schema(pa.schema([field]))
    assert found.equals(pa.schema([field.with_name("no")]), check_metadata=True)
