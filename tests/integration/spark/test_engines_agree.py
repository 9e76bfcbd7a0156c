"""Both engines give the same rows, or the same refusal, on every table written by others.

The Arrow engine's side is `VersionedSource` as it is; Spark's side is a batch read, taken out of
the session as Arrow. Both are compared as JSON lines, in which a column that a version does not
have yet is the same as one that is null.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tailerd.changefeed.change_batch import (
    CHANGE_COLUMNS,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    ChangeBatch,
)
from tailerd.changefeed.change_task import ChangeSourceKind
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT
from tailerd.changefeed.offset import Version
from tailerd.errors import SchemaChangedError, TailerdError
from tailerd.formats.base import OpenRequest
from tailerd.records.json import JsonEncoder
from tailerd.spark.change_range import batch_range, tasks_between
from tailerd.spark.options import ReadOptions
from tailerd.spark.query_errors import parse_error
from tests.spark_rows import variants_marked
from tests.tables.opened import open_delta

pytestmark = [pytest.mark.spark, pytest.mark.golden, pytest.mark.slow]

Rows = Counter[bytes]
MIN_SERVED = 150


@pytest.mark.full
@pytest.mark.parametrize("options", [{"snapshot": "true"}, {}], ids=["snapshot", "changes"])
def test_both_engines_give_the_same_rows_on_every_table(
    spark: SparkSession,
    given_tables: Path,
    given_manifest: list[dict[str, Any]],
    options: dict[str, str],
) -> None:
    differences, served = [], 0
    for entry in given_manifest:
        folder = given_tables / "tables" / entry["table"]
        features = entry.get("table_features", [])
        is_widened = any(name.startswith("typeWidening") for name in features)
        expected = _of_arrow(folder, options)
        difference = _difference(spark, folder, options, expected, is_widened=is_widened)
        if difference:
            differences.append(f"{entry['table']}: {difference}")
        served += not isinstance(expected, TailerdError)
    assert not differences, "\n".join(differences)
    assert served >= MIN_SERVED


def _difference(
    spark: SparkSession,
    folder: Path,
    options: dict[str, str],
    expected: Rows | TailerdError,
    *,
    is_widened: bool,
) -> str:
    got = _of_spark(spark, folder, options)
    if isinstance(expected, Counter) and isinstance(got, SchemaChangedError):
        # One DataFrame has one schema; what lies on either side of the change can be read.
        return _difference_by_version(spark, folder)
    if isinstance(expected, Counter) and isinstance(got, Counter) and is_widened:
        # Arrow gives each commit its own types, a DataFrame has the widest ones: 1 and 1.0.
        if expected.total() != got.total():
            return f"{expected.total()} rows by Arrow and {got.total()} by Spark"
        return _difference_by_version(spark, folder)
    if isinstance(expected, TailerdError) or isinstance(got, TailerdError):
        return "" if type(expected) is type(got) else f"{expected!r} and {got!r}"
    return _unlike(expected, got)


def _unlike(expected: Rows, got: Rows) -> str:
    # Mostly the lines themselves are equal, and nobody needs to look into them.
    if expected == got:
        return ""
    expected, got = (_normal(rows) for rows in (expected, got))
    return (
        "" if expected == got else f"{expected - got} only by Arrow, {got - expected} only by Spark"
    )


def _difference_by_version(spark: SparkSession, folder: Path) -> str:
    whole = _of_arrow(folder, {})
    assert isinstance(whole, Counter)
    for version in sorted({json.loads(line)["_commit_version"] for line in whole}):
        one = {"startingVersion": str(version), "endingVersion": str(version)}
        expected, got = _of_arrow(folder, one), _of_spark(spark, folder, one)
        if isinstance(got, SchemaChangedError):
            # A commit that replaces the schema removes rows that have the old one.
            continue
        if isinstance(expected, TailerdError) or isinstance(got, TailerdError):
            return f"version {version}: {expected!r} and {got!r}"
        if difference := _unlike(expected, got):
            return f"version {version}: {difference}"
    return ""


def _of_arrow(folder: Path, options: dict[str, str]) -> Rows | TailerdError:
    try:
        return asyncio.run(_arrow_rows(ReadOptions.parse({"path": str(folder), **options})))
    except TailerdError as error:
        return error


async def _arrow_rows(options: ReadOptions) -> Rows:
    source = await open_delta(options.path, OpenRequest(on_warning=lambda error: None))
    start, end = await batch_range(source, options)
    rows: Rows = Counter()
    if start.is_before(end):
        for task in await tasks_between(source, start, end):
            for batch in source.read(task, DEFAULT_BATCH_LIMIT):
                rows.update(_lines(JsonEncoder().encode_lines(batch)))
    return rows


def _of_spark(spark: SparkSession, folder: Path, options: dict[str, str]) -> Rows | TailerdError:
    try:
        frame = spark.read.format("tailerd").options(**options).load(str(folder))
        batches = frame._collect_as_arrow()  # type: ignore[operator]
    except PySparkException as error:
        return parse_error(str(error))
    rows: Rows = Counter()
    for batch in batches:
        for changes in change_batches(batch):
            rows.update(_lines(JsonEncoder().encode_lines(changes)))
    return rows


def change_batches(batch: pa.RecordBatch) -> Iterator[ChangeBatch]:
    """Cut a batch where the commit changes, in the order of its rows."""
    if batch.num_rows == 0:
        return
    versions = batch.column(COMMIT_VERSION).to_numpy(zero_copy_only=False)
    micros = batch.column(COMMIT_TIMESTAMP).cast(pa.int64()).to_numpy(zero_copy_only=False)
    rows = variants_marked(batch.drop_columns(list(CHANGE_COLUMNS)))
    cuts = np.flatnonzero(np.diff(versions)) + 1
    for start, stop in zip([0, *cuts], [*cuts, batch.num_rows], strict=True):
        count = int(stop - start)
        yield ChangeBatch(
            rows=rows.slice(start, count),
            change_type=batch.column(CHANGE_TYPE).slice(start, count),
            version=Version(int(versions[start])),
            timestamp_us=int(micros[start]),
            change_source=ChangeSourceKind.NONE,
        )


def _lines(data: bytes) -> list[bytes]:
    # Only `\n` ends a line: a value may contain other separators.
    return [line for line in data.split(b"\n") if line]


def _normal(rows: Rows) -> Rows:
    """Return rows without nulls, in which columns come by name."""
    found: Rows = Counter()
    for line, count in rows.items():
        found[json.dumps(_without_nulls(json.loads(line)), sort_keys=True).encode()] += count
    return found


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    return value
