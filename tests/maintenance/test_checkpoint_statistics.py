"""Statistics that an earlier checkpoint, Spark's for instance, has as columns of INT96 times."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailerd.formats.delta.protocol.statistics_columns import statistics_texts
from tests.formats.delta.log_bodies import add
from tests.formats.delta.test_types import int96
from tests.maintenance.test_checkpoints import NO_JSON, STRUCT, write
from tests.maintenance.written import checkpoint_actions, checkpoint_of, state_of
from tests.tables.builder import TableBuilder

FIELDS = [("valid_to", "timestamp"), ("local", "timestamp_ntz"), ("id", "long")]
NEAR = datetime.datetime(2001, 1, 1)
BEFORE = datetime.datetime(2000, 12, 31)
FAR = datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999)
EARLY = datetime.datetime(1, 1, 1)


def times(low: datetime.datetime, high: datetime.datetime) -> dict[str, Any]:
    """Return statistics of one row, as JSON has them."""
    bounds = [
        {"valid_to": f"{at.isoformat()}Z", "local": at.isoformat(), "id": 1} for at in (low, high)
    ]
    return {"numRecords": 1, "minValues": bounds[0], "maxValues": bounds[1]}


def put_far_int96(path: Path) -> None:
    """Write a checkpoint anew as Spark does, `BEFORE` and `NEAR` replaced by far times."""
    pq.write_table(
        pq.read_table(path),
        path,
        use_deprecated_int96_timestamps=True,
        use_dictionary=False,
        compression="none",
        write_statistics=False,
    )
    body = path.read_bytes()
    for old, new in ((BEFORE, EARLY), (NEAR, FAR)):
        assert body.count(int96(old)) == 2
        body = body.replace(int96(old), int96(new))
    path.write_bytes(body)
    schema = pq.ParquetFile(path).schema
    kinds = {schema.column(at).physical_type for at in range(len(schema))}
    assert "INT96" in kinds


@pytest.mark.parametrize(
    "expected", [STRUCT, STRUCT | NO_JSON, {}], ids=["both", "columns", "texts"]
)
def test_far_times_in_the_statistics_of_spark_pass_through(
    tmp_path: Path, expected: dict[str, str]
) -> None:
    table = TableBuilder(tmp_path, fields=FIELDS, properties=STRUCT | NO_JSON)
    table.create(add("a", stats=json.dumps(times(BEFORE, NEAR))))
    write(tmp_path)
    put_far_int96(checkpoint_of(table.log, 0))
    table.change_metadata(properties=dict.fromkeys(STRUCT | NO_JSON) | expected)
    table.commit_path(0).unlink()
    write(tmp_path)

    [found] = state_of(checkpoint_actions(table.log, 1), 1).adds.values()

    assert ("stats" in found) == (not NO_JSON.items() <= expected.items())
    if "stats" in found:
        stats = json.loads(found["stats"])
        assert reported(stats["minValues"]) == times(EARLY, FAR)["minValues"]
        assert reported(stats["maxValues"]) == times(EARLY, FAR)["maxValues"]
        assert stats["maxValues"]["valid_to"].endswith("Z")
    assert ("stats_parsed" in found) == bool(expected)
    if expected:
        parsed = found["stats_parsed"]
        for bounds, at in ((parsed["minValues"], EARLY), (parsed["maxValues"], FAR)):
            assert bounds["valid_to"] == at.replace(tzinfo=datetime.UTC)
            assert (bounds["local"], bounds["id"]) == (at, 1)


@pytest.mark.parametrize("far", [2**63 - 1, -(2**63), 971_922_564_648_000_000])
@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.date32()])
def test_bounds_in_years_that_cannot_be_spelt_are_left_out(kind: pa.DataType, far: int) -> None:
    days = pa.types.is_date(kind)
    values = pa.array([0, far >> 32 if days else far], pa.int32() if days else pa.int64())
    bounds = pa.StructArray.from_arrays([values.cast(kind)], ["at"])
    parsed = pa.StructArray.from_arrays([pa.array([1, 1]), bounds], ["numRecords", "maxValues"])
    near, spelt = (json.loads(text) for text in statistics_texts(parsed).to_pylist())
    assert near["maxValues"]["at"].startswith("1970-01-01")
    assert spelt == {"numRecords": 1, "maxValues": {}}


def reported(bounds: dict[str, Any]) -> dict[str, Any]:
    """Return bounds with times as Python spells them."""
    names = ("valid_to", "local")
    spelt = {name: datetime.datetime.fromisoformat(bounds[name]).isoformat() for name in names}
    return {**bounds, **{n: t.replace("+00:00", "Z") for n, t in spelt.items()}}
