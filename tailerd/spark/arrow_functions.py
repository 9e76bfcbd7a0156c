"""Functions over Arrow batches in Spark's plans, without pandas.

PySpark's `mapInArrow` asks for pandas and then makes no use of it. What it makes is made here;
PySpark is pinned, and a test guards what this takes from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from tailerd.arrow_start import start_without_pandas
from tailerd.spark.worker_edge import errors_travel

BATCH_BYTES = 512 * 1024
"""About so much a function is given at once. Spark would gather all rows of a task, where they are
few and large, before the function sees the first of them."""


_OfBatches = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_batches(
    frame: DataFrame,
    function: _OfBatches,
    schema: str | StructType,
) -> DataFrame:
    """Return what a function makes of the batches of each partition, as `mapInArrow`.

    Batches are small (`BATCH_BYTES`), also for what else is done in this session from then on.

    Args:
        frame: Any.
        function: Called once per task, on an executor.
        schema: Of what it yields, as Spark writes it.
    """
    # The session of a micro-batch is its query's own.
    frame.sparkSession.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(BATCH_BYTES))
    made = UserDefinedFunction(
        errors_travel(_without_pandas(function)),
        returnType=schema,
        evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
    )
    column = made(*(frame[name] for name in frame.columns))
    return DataFrame(frame._jdf.mapInArrow(column._jc, False, None), frame.sparkSession)


def _without_pandas(function: _OfBatches) -> _OfBatches:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        start_without_pandas()
        return function(batches)

    return run
