"""Row changes on Spark: `format("tailerd")`, and where `tailerd run` delivers.

import tailerd.spark
tailerd.spark.register(spark)
spark.readStream.format("tailerd").load("/data/orders")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession, *, push_filters: bool = False) -> None:
    """Register `format("tailerd")` in this session, for reading.

    Args:
        push_filters: Whether batch reads leave out commits and files that a filter excludes. This
            switches `spark.sql.python.filterPushdown.enabled` on. PySpark 4.2 keeps what one query
            has pushed for later queries of the same DataFrame, which then lack rows: only for
            programs that `load` again for every query and use a DataFrame once in each.
    """
    # Imported here: the daemon uses this package to find Java before it imports pyspark.
    from tailerd.spark.datasource import FilteringDataSource, TailerdDataSource

    if push_filters:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(FilteringDataSource if push_filters else TailerdDataSource)
