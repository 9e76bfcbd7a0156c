"""Settings of storage reach Spark's Python processes in the class of the data source."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource

from tailerd.spark.datasource import TailerdDataSource, configured
from tailerd.spark.group.records_source import RecordsDataSource
from tailerd.storage.s3.settings import S3Account, S3Settings
from tailerd.storage.stores import StoreSettings

PROGRAM = """
import pickle, sys
source = pickle.load(sys.stdin.buffer)
[(name, settings)] = source.storage.by_name
print(source.name(), name, settings.default.secret_access_key, source.storage)
"""


@pytest.mark.parametrize("source", [TailerdDataSource, RecordsDataSource])
def test_settings_travel_with_a_source_to_a_process_that_has_none(
    source: type[TailerdDataSource] | type[RecordsDataSource],
) -> None:
    account = S3Account(access_key_id="me", secret_access_key="hush")
    before = source.storage
    given: type[DataSource] = configured(
        source, StoreSettings((("s3", S3Settings(default=account)),))
    )
    pickled: bytes = cloudpickle.dumps(given)  # type: ignore[no-untyped-call]
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=pickled, capture_output=True, check=True
    )
    assert ran.stdout.decode().strip() == f"{source.name()} s3 hush StoreSettings()"
    assert source.storage == before
