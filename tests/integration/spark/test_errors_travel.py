"""Every error comes back as it was raised: from a real task, and from what `foreachBatch` calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tailerd.errors import EngineError, SinkError, TailerdError
from tailerd.spark.query_errors import parse_error
from tailerd.spark.worker_edge import errors_travel
from tests.errors_tree import CLASSES, with_all_fields

pytestmark = pytest.mark.spark


def described(error: TailerdError) -> tuple[object, ...]:
    return (type(error), str(error), *(getattr(error, name) for name in error.fields))


@pytest.mark.full
def test_every_error_comes_back_from_a_task(spark: SparkSession) -> None:
    for kind in CLASSES:
        error = with_all_fields(kind)

        def work(_: int, error: TailerdError = error) -> int:
            raise error

        with pytest.raises(PySparkException) as raised:
            spark.sparkContext.parallelize([1], 1).map(errors_travel(work)).collect()
        assert described(parse_error(str(raised.value))) == described(error)


@pytest.mark.parametrize("is_ours", [True, False])
def test_an_error_comes_back_from_a_query_that_ended(
    spark: SparkSession, tmp_path: Path, is_ours: bool
) -> None:
    error = with_all_fields(SinkError)

    @errors_travel
    def write(rows: DataFrame, batch_id: int) -> None:
        raise error if is_ours else KeyError(batch_id)

    writer = spark.readStream.format("rate").load().writeStream.foreachBatch(write)
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(PySparkException):
        query.awaitTermination(60)
    found = parse_error(str(query.exception()))
    if is_ours:
        assert described(found) == described(error)
    else:
        assert type(found) is EngineError
        assert "KeyError" in str(found)
