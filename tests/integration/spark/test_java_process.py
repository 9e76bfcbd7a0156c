"""The Java that tailerd starts itself, as users have it: without what tests set for theirs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.tables.builder import TableBuilder
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.spark, pytest.mark.slow]

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


KILLED_ONCE = """#!/bin/sh
if [ "$1" != "-version" ] && mkdir {folder}/killed 2>/dev/null; then kill -9 $$; fi
exec {java} "$@"
"""


@pytest.mark.attack
@pytest.mark.full
def test_a_java_that_is_killed_while_it_starts_is_started_again(tmp_path: Path) -> None:
    home = os.environ.get("JAVA_HOME")
    found = f"{home}/bin/java" if home else shutil.which("java")
    assert found is not None
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text(KILLED_ONCE.format(folder=tmp_path, java=found))
    java.chmod(0o700)
    table = TableBuilder(tmp_path / "t")
    table.append([{"id": 1, "name": "a"}])
    config = tmp_path / "tailerd.yaml"
    sink = {"kind": "file", "path": f"{tmp_path}/out"}
    tables = {"t": {"path": str(table.folder), "from": 0, "sink": sink}}
    fields = {"engine": "spark", "state": f"{tmp_path}/state", "http": {"listen": None}}
    config.write_text(yaml.safe_dump({**fields, "tables": tables}))
    done = subprocess.run(
        [sys.executable, "-m", "tailerd", "run", "--once", "--config", str(config)],
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (done.returncode, (tmp_path / "killed").exists()) == (0, True), done.stderr
    assert "ended while it started, and another is started" in done.stderr
    assert len(list((tmp_path / "out").glob("*.jsonl"))) == 1


@pytest.mark.full
@pytest.mark.parametrize("named", [False, True])
def test_workers_load_pyspark_from_where_pip_put_it_unless_a_home_was_named(named: bool) -> None:
    import pyspark

    own = os.path.dirname(pyspark.__file__)
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    if named:
        environment["SPARK_HOME"] = own
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    location, home = done.stdout.split()
    if named:
        assert location.startswith(f"{own}/python/lib/pyspark.zip/")
        assert home == own
    else:
        assert location == f"{own}/__init__.py"
        assert home == "None"
