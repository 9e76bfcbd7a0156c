from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailerd.delta.protocol.partition_values import parse_partition_value
from tailerd.errors import CorruptLogError

UTC = pa.timestamp("us", tz="UTC")
NTZ = pa.timestamp("us")
NINES = "9" * 28
DAY = 86_400_000_000
NOON_2000 = 951_827_696_000_000
"""2000-02-29T12:34:56Z in microseconds."""


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("", pa.string(), ""),
        (" a/ü%20 ", pa.string(), " a/ü%20 "),
        ("-128", pa.int8(), -128),
        ("32767", pa.int16(), 32767),
        ("+7", pa.int32(), 7),
        ("-9223372036854775808", pa.int64(), -(2**63)),
        ("1.5", pa.float32(), 1.5),
        ("-1.0E-3", pa.float64(), -0.001),
        ("Infinity", pa.float64(), float("inf")),
        ("-Infinity", pa.float32(), float("-inf")),
        ("true", pa.bool_(), True),
        ("FALSE", pa.bool_(), False),
        ("\x01\x02\x03", pa.binary(), b"\x01\x02\x03"),
        ("1.5", pa.decimal128(5, 2), Decimal("1.50")),
        ("-0.00", pa.decimal128(5, 2), Decimal("0.00")),
        ("9" * 38, pa.decimal128(38, 0), Decimal("9" * 38)),
        (f"-{NINES}.{NINES[:10]}", pa.decimal128(38, 10), Decimal(f"-{NINES}.{NINES[:10]}")),
        ("1970-01-01", pa.date32(), datetime.date(1970, 1, 1)),
        ("2024-02-29", pa.date32(), datetime.date(2024, 2, 29)),
        ("0001-01-01", pa.date32(), datetime.date(1, 1, 1)),
        ("9999-12-31", pa.date32(), datetime.date(9999, 12, 31)),
    ],
)
def test_a_value_of_every_type_is_parsed(text: str, kind: pa.DataType, value: Any) -> None:
    scalar = parse_partition_value(text, kind, "p")
    assert scalar.type == kind
    assert scalar.as_py() == value


def test_not_a_number_is_parsed() -> None:
    value = parse_partition_value("NaN", pa.float64(), "p").as_py()
    assert value != value


ALL_TYPES = [
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(),
    pa.binary(), pa.decimal128(5, 2), pa.date32(), UTC, NTZ,
]  # fmt: skip


@pytest.mark.parametrize("kind", [*ALL_TYPES, pa.string()], ids=str)
def test_an_absent_value_is_null(kind: pa.DataType) -> None:
    assert parse_partition_value(None, kind, "p") == pa.scalar(None, kind)


@pytest.mark.parametrize("kind", ALL_TYPES, ids=str)
def test_an_empty_text_is_null_for_every_type_but_string(kind: pa.DataType) -> None:
    assert parse_partition_value("", kind, "p") == pa.scalar(None, kind)


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("2000-02-29 12:34:56", NOON_2000),
        ("2000-02-29T12:34:56", NOON_2000),
        ("2000-02-29 12:34:56.1", NOON_2000 + 100_000),
        ("2000-02-29 12:34:56.123456", NOON_2000 + 123_456),
        ("2000-02-29 12:34:56.123456789", NOON_2000 + 123_456),
        ("2000-02-29T12:34:56.123456Z", NOON_2000 + 123_456),
        ("2000-02-29T12:34:56Z", NOON_2000),
        ("2000-02-29T14:34:56+02:00", NOON_2000),
        ("2000-02-29T07:04:56-0530", NOON_2000),
        ("2000-02-29 12:34", NOON_2000 - 56_000_000),
        ("2000-02-29", NOON_2000 - 45_296_000_000),
        ("1969-12-31 23:59:59.999999", -1),
        ("0001-01-01 00:00:00", -62_135_596_800_000_000),
        ("0000-12-31 00:00:00", -62_135_596_800_000_000 - DAY),
        ("-0001-12-31 00:00:00", -62_135_596_800_000_000 - 367 * DAY),
        ("9999-12-31 23:59:59.999999", 253_402_300_799_999_999),
        ("+10000-01-01 00:00:00", 253_402_300_800_000_000),
        ("290000-01-01 00:00:00", 9_089_348_860_800_000_000),
    ],
)
def test_a_timestamp_of_every_form_and_of_far_years_is_parsed(text: str, micros: int) -> None:
    assert parse_partition_value(text, UTC, "p").value == micros
    shifts = {"+02:00": 7_200_000_000, "-0530": -19_800_000_000}
    shift = next((shift for end, shift in shifts.items() if text.endswith(end)), 0)
    assert parse_partition_value(text, NTZ, "p").value == micros + shift


@pytest.mark.parametrize(("text", "days"), [("10000-01-01", 2_932_897), ("-0044-03-15", -735_525)])
def test_a_date_of_a_far_year_is_proleptic_gregorian(text: str, days: int) -> None:
    assert parse_partition_value(text, pa.date32(), "p").value == days


@given(st.datetimes())
def test_every_date_and_time_a_writer_prints_comes_back(value: datetime.datetime) -> None:
    text = value.isoformat(sep=" ")
    assert parse_partition_value(text, NTZ, "p").as_py() == value
    assert parse_partition_value(text[:10], pa.date32(), "p").as_py() == value.date()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("128", pa.int8()),
        ("x", pa.int32()),
        ("1.5", pa.int64()),
        ("99999999999999999999", pa.int64()),
        ("x", pa.float64()),
        ("yes", pa.bool_()),
        ("1", pa.bool_()),
        ("x", pa.decimal128(5, 2)),
        ("NaN", pa.decimal128(5, 2)),
        ("Infinity", pa.decimal128(5, 2)),
        ("1000.00", pa.decimal128(5, 2)),
        ("1e999999", pa.decimal128(5, 2)),
        ("2023-02-29", pa.date32()),
        ("2024-13-01", pa.date32()),
        ("20240101", pa.date32()),
        ("2024-01-01 00:00:00", pa.date32()),
        ("2024-01-01 24:00:00", UTC),
        ("2024-01-01 00:60:00", UTC),
        ("2024-01-01 00:00:60", UTC),
        ("2024-01-01 00:00:00 CET", UTC),
        ("999999-01-01 00:00:00", UTC),
        ("yesterday", NTZ),
        ("\ud800", pa.binary()),
        ("[1]", pa.list_(pa.int64())),
    ],
    ids=range(24),
)
def test_a_text_that_is_no_value_of_the_type_is_named(text: str, kind: pa.DataType) -> None:
    with pytest.raises(CorruptLogError) as raised:
        parse_partition_value(text, kind, "my column")
    assert "my column" in str(raised.value)
    assert repr(text) in str(raised.value)


@given(st.text(max_size=12), st.sampled_from(ALL_TYPES))
def test_no_text_is_another_error(text: str, kind: pa.DataType) -> None:
    try:
        value = parse_partition_value(text, kind, "p")
    except CorruptLogError:
        return
    assert value.type == kind
