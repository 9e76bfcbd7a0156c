"""A session that no daemon started: errors are sentences for people."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark_session import require_java
from tests.tables.builder import TableBuilder
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.spark, pytest.mark.full]

PROGRAM = """
import sys
from pyspark.sql import SparkSession
import tailerd.spark

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
tailerd.spark.register(spark)
try:
    spark.read.format("tailerd").load(sys.argv[1]).collect()
except Exception as error:
    print(error)
spark.stop()
"""


def test_an_error_is_shown_as_a_sentence_without_its_data(tmp_path: Path) -> None:
    require_java()
    table = TableBuilder(tmp_path / "t")
    commit = table.append([{"id": 1, "name": "a"}])
    name = commit.adds[0]["add"]["path"]
    (table.folder / name).unlink()
    own = {key: value for key, value in os.environ.items() if not key.startswith("TAILERD_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(table.folder)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
        env={**own, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert "MissingDataFileError" in done.stdout
    assert name in done.stdout
    assert "tailerd-error:" not in done.stdout
