"""The Java that tailerd starts itself, as users have it: without what tests set for theirs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.usefixtures("workers_of_spark")]

# What a worker says of itself, and which home was left in this process.
PROGRAM = """
import os
from tailerd.spark.session import local_session
spark = local_session("home", "local[1]")
def place(batches):
    import pyarrow, pyspark
    yield from (pyarrow.RecordBatch.from_pydict({"place": [pyspark.__file__]}) for _ in batches)
[row] = spark.range(0, 1, 1, 1).mapInArrow(place, "place string").collect()
print(row.place, os.environ.get("SPARK_HOME"))
"""


@pytest.mark.full
@pytest.mark.parametrize("named", [False, True])
def test_workers_load_pyspark_from_where_pip_put_it_unless_a_home_was_named(named: bool) -> None:
    import pyspark

    own = os.path.dirname(pyspark.__file__)
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    if named:
        environment["SPARK_HOME"] = own
    else:
        environment.pop("SPARK_SUBMIT_OPTS", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    place, home = done.stdout.split()
    if named:
        assert place.startswith(f"{own}/python/lib/pyspark.zip/")
        assert home == own
    else:
        assert place == f"{own}/__init__.py"
        assert home == "None"
