"""The laws of masks, conditions and `unchanged`, for every type that a table's column may have."""

from __future__ import annotations

import datetime as dt
import itertools
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.changefeed.change_task import ChangeType
from tailerd.errors import UsageError
from tests.transforms.batches import change_batch, view_of
from tests.transforms.test_keys import FORMATS, records

INSTANT = dt.datetime(2024, 2, 29, 12, 34, 56, 789012)
TYPES: dict[str, tuple[pa.DataType, tuple[Any, Any]]] = {
    "boolean": (pa.bool_(), (True, False)),
    "int8": (pa.int8(), (-5, 127)),
    "int16": (pa.int16(), (-5, 2**15 - 1)),
    "int32": (pa.int32(), (0, -(2**31))),
    "int64": (pa.int64(), (2**63 - 1, -1)),
    "uint8": (pa.uint8(), (0, 255)),
    "uint64": (pa.uint64(), (2**64 - 1, 1)),
    "float": (pa.float32(), (1.5, -0.25)),
    "double": (pa.float64(), (0.1, 1e300)),
    "decimal": (pa.decimal128(38, 9), (Decimal("1.500000000"), Decimal("-0.000000001"))),
    "string": (pa.string(), ("ä\n", "anna@example.org")),
    "large string": (pa.large_string(), ("a", "anna@example.org")),
    "binary": (pa.binary(), (b"\xff\x00", b"")),
    "fixed binary": (pa.binary(4), (b"\x00\x01\x02\x03", b"abcd")),
    "date": (pa.date32(), (dt.date(1, 1, 1), dt.date(2024, 2, 29))),
    "timestamp": (pa.timestamp("us", "UTC"), (INSTANT, dt.datetime(1969, 12, 31, 23, 59))),
    "timestamp_ntz": (pa.timestamp("us"), (INSTANT, dt.datetime(9999, 12, 31))),
    "struct": (pa.struct([("a", pa.int64()), ("b", pa.string())]), ({"a": 1, "b": None}, {"a": 2})),
    "list": (pa.list_(pa.string()), (["x", None], [])),
    "map": (pa.map_(pa.string(), pa.int64()), ([("k", 1)], [])),
}
MASKS = ("hash", "redact", "null", "partial", {"truncate": "year"}, {"truncate": "10"})
KINDS = ["update_preimage", "update_postimage"]


def column(name: str, numbers: list[int | None]) -> pa.Array:
    """Return values of a type by their numbers; None is null."""
    kind, values = TYPES[name]
    return pa.array([None if number is None else values[number] for number in numbers], kind)


def masked(name: str, mask: Any, numbers: list[int | None]) -> pa.Array | None:
    """Return masked values; None if the mask is not for this type."""
    batch = change_batch({"v": column(name, numbers)}, ChangeType.INSERT)
    view = view_of(mask={"v": mask}, mask_key="k")
    try:
        view.check(batch.rows.schema)
    except UsageError:
        return None
    found = view.bind(batch.rows.schema).apply(batch)
    assert found is not None
    assert found.rows.schema == view.schema(batch.rows.schema)
    found.rows.validate(full=True)
    return found.rows.column(0)


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("name", TYPES)
def test_a_mask_is_a_function_and_keeps_null(name: str, mask: Any) -> None:
    together = masked(name, mask, [0, None, 1, 0])
    if together is None:
        assert mask == "partial" or isinstance(mask, dict), "hash, redact and null are for all"
        return
    first, null, second, again = together.to_pylist()
    assert null is None
    assert again == first
    for number, expected in ((0, first), (None, None), (1, second)):
        alone = masked(name, mask, [number])
        assert alone is not None
        assert alone.to_pylist() == [expected]
    if mask == "hash":
        assert first != second, "different values have different hashes"
    if mask in ("hash", "redact", "partial", "null"):
        texts = [str(value) for value in TYPES[name][1] if str(value) and str(value) != "[]"]
        assert not [text for text in texts if text in (str(first), str(second))]


@pytest.mark.parametrize("name", TYPES)
@given(numbers=st.lists(st.sampled_from([0, 1, None]), min_size=1, max_size=8))
@settings(max_examples=20, deadline=None)
def test_a_condition_passes_the_rows_for_which_it_is_true(
    name: str, numbers: list[int | None]
) -> None:
    values = column(name, numbers)
    batch = change_batch({"v": values}, ChangeType.INSERT)
    for condition, passing in (
        ("v is null", pc.is_null(values)),
        ("v is not null", pc.is_valid(values)),
        ("not (v is null) or v is null", pa.array([True] * len(values))),
    ):
        found = view_of(where=condition).bind(batch.rows.schema).apply(batch)
        expected = values.filter(passing).to_pylist()
        assert (found.rows.column(0).to_pylist() if found else []) == expected


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize(("before", "after"), list(itertools.product([0, 1, None], repeat=2)))
def test_an_update_is_unchanged_if_both_images_are_equal(
    name: str, before: int | None, after: int | None
) -> None:
    rows = {"id": pa.array([1, 1]), "v": column(name, [before, after])}
    batch = change_batch(rows, KINDS)
    view = view_of(unchanged="drop", key=["id"])
    found = view.bind(batch.rows.schema).apply(batch)
    assert (found is None) == (before == after)
    # Of a column that is not delivered, a change is none.
    hidden = view_of(columns=["id"], unchanged="drop", key=["id"])
    assert hidden.bind(batch.rows.schema).apply(batch) is None


@pytest.mark.parametrize("value_format", FORMATS)
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("mask", ["hash", "redact", "null"])
def test_masked_values_can_be_delivered_in_every_form(
    name: str, mask: str, value_format: str
) -> None:
    rows = {"id": pa.array([1, 2]), "v": column(name, [0, None])}
    batch = change_batch(rows, ChangeType.INSERT)
    view = view_of(mask={"v": mask}, mask_key="k")
    found = view.bind(batch.rows.schema).apply(batch)
    assert found is not None
    made = records(value_format, found.rows, ["id"], ChangeType.INSERT)
    assert len(made.values) == 2
