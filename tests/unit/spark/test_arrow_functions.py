"""What functions over Arrow columns take from PySpark is as it was when it was read."""

from __future__ import annotations

import inspect
from importlib.metadata import version

from pyspark.sql.pandas.map_ops import PandasMapOpsMixin
from pyspark.sql.udf import UserDefinedFunction


def test_spark_is_the_release_whose_insides_were_read() -> None:
    assert version("pyspark") == "4.2.0"


def test_batches_are_mapped_as_pyspark_does_it_where_there_is_pandas() -> None:
    source = inspect.getsource(PandasMapOpsMixin.mapInArrow)
    assert "self._jdf.mapInArrow(udf_column._jc, barrier, jrp)" in source
    assert "PythonEvalType.SQL_MAP_ARROW_ITER_UDF" in source
    parameters = inspect.signature(UserDefinedFunction.__init__).parameters
    assert {"func", "returnType", "evalType"} <= set(parameters)
