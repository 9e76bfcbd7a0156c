"""Masked values: functions of the value, of a known type, that show no more than they may."""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailerd.changefeed.change_batch import VARIANT_FIELD
from tailerd.errors import UsageError
from tailerd.transforms.mask import Hasher, Mask, MaskKind
from tests.transforms.batches import seen, view_of

KEY = "secret"
DAY = dt.date(2026, 11, 27)
TWELVE = dt.datetime(2026, 11, 27, 12, tzinfo=dt.UTC)
NOON = dt.datetime(2026, 11, 27, 12, 34, 56, 789, tzinfo=dt.UTC)


def hashed(text: str, key: str = KEY) -> str:
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).digest()[:16].hex()


@pytest.mark.parametrize(
    ("values", "kind", "texts"),
    [
        (["a", None, "ä\n", "a"], pa.string(), ['"a"', None, '"ä\\n"', '"a"']),
        ([5, None], pa.int8(), ["5", None]),
        ([5, None], pa.int64(), ["5", None]),
        ([5], pa.uint32(), ["5"]),
        ([True], pa.bool_(), ["true"]),
        ([Decimal("1.50")], pa.decimal128(9, 2), ["1.50"]),
        ([b"\xff"], pa.binary(), ['"/w=="']),
        ([DAY], pa.date32(), ['"2026-11-27"']),
        ([[1, None]], pa.list_(pa.int64()), ["[1,null]"]),
        ([{"a": 1}, None], pa.struct([("a", pa.int64())]), ['{"a":1}', None]),
    ],
)
@pytest.mark.parametrize("key", [KEY, "k" * 100])
def test_a_hash_is_that_of_the_json_text(
    values: list[Any], kind: pa.DataType, texts: list[str | None], key: str
) -> None:
    rows = pa.RecordBatch.from_arrays([pa.array(values, kind)], names=["v"])
    expected = [None if text is None else hashed(text, key) for text in texts]
    assert seen(rows, mask={"v": "hash"}, mask_key=key) == {"v": expected}


@pytest.mark.parametrize(
    ("mask", "values", "kind", "expected"),
    [
        ("redact", ["a", None, ""], pa.string(), ["***", None, "***"]),
        ("redact", [b"a", None], pa.binary(), ["***", None]),
        ("redact", [1, None], pa.int64(), [None, None]),
        ("redact", [[1]], pa.list_(pa.int64()), [None]),
        ("null", ["a"], pa.string(), [None]),
        (None, [1.5], pa.float64(), [None]),
        (
            "partial",
            ["4111111111111111", "1234567", "12345678", None],
            pa.string(),
            ["***1111", "***", "***5678", None],
        ),
        ("partial", ["äöüßäöüß"], pa.string(), ["***äöüß"]),
        ("partial", [4111111111111111, 12], pa.int64(), ["***1111", "***"]),
        ("partial", [DAY], pa.date32(), ["***1-27"]),
        ({"truncate": "year"}, [DAY, None], pa.date32(), [dt.date(2026, 1, 1), None]),
        ({"truncate": "month"}, [dt.date(1969, 12, 31)], pa.date32(), [dt.date(1969, 12, 1)]),
        (
            {"truncate": "hour"},
            [NOON],
            pa.timestamp("us", "UTC"),
            [TWELVE],
        ),
        (
            {"truncate": "day"},
            [dt.datetime(1, 1, 1, 5)],
            pa.timestamp("us"),
            [dt.datetime(1, 1, 1)],
        ),
        (
            {"truncate": 10},
            [19, -19, 10, None, 2**63 - 1],
            pa.int64(),
            [10, -10, 10, None, 2**63 - 8],
        ),
        ({"truncate": 100}, [127, -128], pa.int8(), [100, -100]),
        ({"truncate": 1000}, [127, -128], pa.int8(), [0, 0]),
        ({"truncate": 10}, [19.5, -19.5, None], pa.float64(), [10.0, -10.0, None]),
        (
            {"truncate": 10},
            [Decimal("19.99"), Decimal("-9.99"), None, Decimal(10**36 - 1)],
            pa.decimal128(38, 2),
            [Decimal("10.00"), Decimal("0.00"), None, Decimal(10**36 - 10)],
        ),
    ],
)
def test_values_are_replaced(
    mask: Any, values: list[Any], kind: pa.DataType, expected: list[Any]
) -> None:
    rows = pa.RecordBatch.from_arrays([pa.array(values, kind)], names=["v"])
    assert seen(rows, mask={"v": mask}) == {"v": expected}


def test_a_field_of_a_struct_is_masked_alone() -> None:
    rows = {"home": [{"city": "Ulm", "zip": "89073"}, None, {"city": None, "zip": None}]}
    assert seen(rows, mask={"home.city": "redact"}) == {
        "home": [{"city": "***", "zip": "89073"}, None, {"city": None, "zip": None}]
    }


def test_conditions_see_the_values_and_names_are_those_of_the_table() -> None:
    rows = {"mail": ["a@x", "b@x"], "id": [1, 2]}
    options = {"mask": {"mail": "redact"}, "rename": {"mail": "address"}}
    assert seen(rows, where="mail = 'b@x'", **options) == {"address": ["***"], "id": [2]}


@pytest.mark.parametrize(
    ("mask", "kind", "message"),
    [
        ("md5", pa.string(), "The mask of 'v' is 'md5'"),
        ("truncate", pa.date32(), "The mask of 'v' is 'truncate'"),
        ({"truncate": "hour"}, pa.date32(), "Write one of year"),
        ({"truncate": "year"}, pa.int64(), "a positive integer"),
        ({"truncate": 0}, pa.int64(), "a positive integer"),
        ({"truncate": "year"}, pa.string(), "is for dates, times and numbers"),
        ("partial", pa.list_(pa.string()), "is not for 'v'"),
        ({"hash": 5}, pa.string(), "The mask of 'v' is"),
    ],
)
def test_what_a_mask_cannot_do_is_refused(mask: Any, kind: pa.DataType, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        seen(pa.RecordBatch.from_arrays([pa.array([], kind)], names=["v"]), mask={"v": mask})


def test_a_hash_needs_a_key_which_is_never_shown() -> None:
    rows = {"v": ["a"]}
    with pytest.raises(UsageError, match="needs a secret key"):
        seen(rows, mask={"v": "hash"})
    view = view_of(mask={"v": "hash"}, mask_key=KEY)
    assert KEY not in repr(view)
    assert KEY not in view.digest()
    assert view.digest() != view_of(mask={"v": "hash"}, mask_key="other").digest()
    assert pickle.loads(pickle.dumps(view)) == view


def test_a_masked_variant_is_a_text() -> None:
    field = pa.field("v", pa.struct([("metadata", pa.binary()), ("value", pa.binary())]))
    field = field.with_metadata(VARIANT_FIELD)
    view = view_of(mask={"v": "hash"}, mask_key=KEY)
    assert view.schema(pa.schema([field])).field("v").type == pa.string()
    assert not view.schema(pa.schema([field])).field("v").metadata


@given(st.lists(st.none() | st.text(), min_size=1), st.sampled_from(["hash", "redact", "partial"]))
def test_masks_are_functions(values: list[str | None], kind: str) -> None:
    """A value has one masked value, whatever rows are around it, and null stays null."""
    mask, field, hasher = Mask(kind=MaskKind(kind)), pa.field("v", pa.string()), Hasher(b"k")
    together = mask.values(pa.array(values, pa.string()), field, Hasher(b"k")).to_pylist()
    alone = [mask.values(pa.array([v], pa.string()), field, hasher)[0].as_py() for v in values]
    assert together == alone
    assert [each is None for each in together] == [each is None for each in values]
