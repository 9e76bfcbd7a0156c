"""Settings of storage reach Spark's Python processes in the class of the data source."""

from __future__ import annotations

import subprocess
import sys

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource

from tailerd.spark.datasource import TailerdDataSource, configure_source
from tailerd.storage.s3.settings import S3Account, S3Settings
from tailerd.storage.stores import StoreSettings

PROGRAM = """
import pickle, sys
source = pickle.load(sys.stdin.buffer)
[(name, settings)] = source.storage.by_name
print(source.name(), name, settings.default.secret_access_key, source.storage)
"""


def test_settings_travel_with_a_source_to_a_process_that_has_none() -> None:
    account = S3Account(access_key_id="me", secret_access_key="hush")
    before = TailerdDataSource.storage
    given: type[DataSource] = configure_source(
        TailerdDataSource, StoreSettings((("s3", S3Settings(default=account)),))
    )
    pickled: bytes = cloudpickle.dumps(given)  # type: ignore[no-untyped-call]
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=pickled, capture_output=True, check=True
    )
    assert ran.stdout.decode().strip() == "tailerd s3 hush StoreSettings()"
    assert TailerdDataSource.storage == before
