"""Delta's row changes on Spark: `format("tailerd")`, and the supervised queries of `tailerd run`.

import tailerd.spark
tailerd.spark.register(spark)
spark.readStream.format("tailerd").load("/data/orders")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `format("tailerd")` known to this session, for reading and for writing.

    Switches `spark.sql.python.filterPushdown.enabled` on: batch reads leave out commits and files
    that a filter excludes.
    """
    # Imported here: the daemon asks this package about Java before it pays for pyspark.
    from tailerd.spark.datasource import FilteringDataSource

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(FilteringDataSource)
