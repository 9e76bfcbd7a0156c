from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailerd.errors import CorruptLogError
from tailerd.formats.delta.protocol.partition_values import (
    in_zone,
    lacks_zone,
    parse_partition_value,
)

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


@pytest.mark.parametrize("kind", [kind for kind in ALL_TYPES if kind != pa.binary()], ids=str)
def test_an_empty_text_is_null_for_every_type_but_string_and_binary(kind: pa.DataType) -> None:
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
        ("maybe", pa.bool_()),
        ("2", pa.bool_()),
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


@pytest.mark.parametrize(
    ("zone", "text", "instant"),
    [
        ("Europe/Berlin", "2024-01-15 12:00:00", "2024-01-15T11:00:00Z"),
        ("Europe/Berlin", "2024-07-01 00:00:00.123456", "2024-06-30T22:00:00.123456Z"),
        ("Europe/Berlin", " 2024-07-01T08:30 ", "2024-07-01T06:30:00Z"),
        ("Asia/Kolkata", "2024-02-29", "2024-02-28T18:30:00Z"),
        # Left out in spring: moved on by what was left out.
        ("Europe/Berlin", "2024-03-31 01:59:59.999999", "2024-03-31T00:59:59.999999Z"),
        ("Europe/Berlin", "2024-03-31 02:00:00", "2024-03-31T01:00:00Z"),
        ("Europe/Berlin", "2024-03-31 02:30:00", "2024-03-31T01:30:00Z"),
        ("Europe/Berlin", "2024-03-31 03:00:00", "2024-03-31T01:00:00Z"),
        ("America/New_York", "2024-03-10 02:30:00", "2024-03-10T07:30:00Z"),
        ("Australia/Lord_Howe", "2024-10-06 02:15:00", "2024-10-05T15:45:00Z"),
        # Twice in autumn: the earlier one.
        ("Europe/Berlin", "2024-10-27 02:00:00", "2024-10-27T00:00:00Z"),
        ("Europe/Berlin", "2024-10-27 02:59:59.999999", "2024-10-27T00:59:59.999999Z"),
        ("Europe/Berlin", "2024-10-27 03:00:00", "2024-10-27T02:00:00Z"),
        ("America/New_York", "2024-11-03 01:30:00", "2024-11-03T05:30:00Z"),
        # A day that a location did not have, and a location's own sun before there were zones.
        ("Pacific/Apia", "2011-12-30 12:00:00", "2011-12-30T22:00:00Z"),
        ("Europe/Berlin", "1800-01-01 00:00:00", "1799-12-31T23:06:32Z"),
        ("America/New_York", "0001-01-01 00:00:00", "0001-01-01T04:56:02Z"),
        ("America/New_York", "0000-02-29 00:00:00", "0000-02-29T04:56:02Z"),
        ("America/New_York", "-0044-03-15 00:00:00", "-0044-03-15T04:56:02Z"),
        ("Europe/Berlin", "9999-12-31 23:59:59", "9999-12-31T22:59:59Z"),
        ("Europe/Berlin", "10000-01-01 00:00:00", "9999-12-31T23:00:00Z"),
        ("Europe/Berlin", "12024-03-31 02:30:00", "12024-03-31T01:30:00Z"),
        ("Europe/Berlin", "+294000-07-01 00:00:00", "+294000-06-30T22:00:00Z"),
    ],
)
def test_a_local_time_is_the_instant_that_java_takes_it_for(
    zone: str, text: str, instant: str
) -> None:
    assert lacks_zone(text)
    zoned = in_zone(text, ZoneInfo(zone))
    assert not lacks_zone(zoned)
    found = parse_partition_value(zoned, UTC, "p")
    assert found == parse_partition_value(instant, UTC, "p")
    assert in_zone(zoned, ZoneInfo("Asia/Tokyo")) == zoned


@pytest.mark.parametrize(
    "text", ["2024-07-01T12:00:00Z", "2024-07-01 12:00:00+01:00", "", "yesterday", "2024-02-30"]
)
def test_what_has_a_zone_or_is_no_time_stays_as_it_is(text: str) -> None:
    assert in_zone(text, ZoneInfo("Europe/Berlin")) == text


@pytest.mark.parametrize("text", ["2024-13-01 00:00:00", "2024-01-01 25:00:00", "0000-02-30"])
def test_no_zone_makes_a_time_of_what_is_none(text: str) -> None:
    with pytest.raises(CorruptLogError):
        parse_partition_value(in_zone(text, ZoneInfo("Europe/Berlin")), UTC, "p")


@given(st.datetimes(), st.sampled_from(["Europe/Berlin", "America/St_Johns", "Africa/Cairo"]))
def test_any_local_time_that_a_clock_shows_is_its_instant(
    local: datetime.datetime, name: str
) -> None:
    zone = ZoneInfo(name)
    zoned = in_zone(local.isoformat(sep=" "), zone)
    micros = parse_partition_value(zoned, UTC, "p").value
    epoch = datetime.datetime(1970, 1, 1)
    offset = zone.utcoffset(local)
    assert offset is not None
    assert micros == (local - epoch - offset) // datetime.timedelta(microseconds=1)
