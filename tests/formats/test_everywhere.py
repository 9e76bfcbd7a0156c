"""A format that nobody but the registry knows runs through every command, engine and Spark."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from tests.doubles.memory_format import MemoryTable
from tests.formats.conftest import ROOT, WrittenMemory
from tests.formats.delivering import changes, delivered
from tests.integration.daemon.running import file_table, run_to_end, write_config
from tests.spark_session import require_java

pytestmark = pytest.mark.usefixtures("memory_is_installed")

VERSIONS = (10, 20, 30)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Three versions: five rows, two more, and the first five gone."""
    table = WrittenMemory(tmp_path / "table")
    first = table.append(range(5))
    table.append([7, 8])
    table.remove(first)
    return table.place


FROM_BEGINNING = Counter(
    {
        **{("insert", number, 10): 1 for number in range(5)},
        **{("insert", number, 20): 1 for number in (7, 8)},
        **{("delete", number, 30): 1 for number in range(5)},
    }
)


@pytest.mark.full
@pytest.mark.parametrize("table_format", ["auto", "memory"])
def test_tail_prints_its_changes(place: Path, table_format: str) -> None:
    done = run_to_end(
        *("tail", place, "--from", "10", "--to", "30", "--format", "jsonl"),
        *("--table-format", table_format),
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert changes(rows) == FROM_BEGINNING
    once = run_to_end("tail", place, "--from", "20", "--once", "--columns", "id")
    assert once.returncode == 0, once.stderr


def test_tail_names_what_is_known_where_a_format_is_not(place: Path) -> None:
    done = run_to_end("tail", place, "--once", "--table-format", "memroy")
    assert done.returncode != 0
    assert "`memory`" in done.stderr


@pytest.mark.parametrize(
    "options", [{}, {"format": "memory", "format_options": {"task_rows": "1"}}]
)
def test_the_arrow_engine_delivers_it_goes_on_and_verifies(
    place: Path, tmp_path: Path, options: dict[str, object]
) -> None:
    table = file_table(place, tmp_path / "out", **{"from": "10"}, **options)
    config = write_config(tmp_path, orders=table)
    for more in ([], [9]):
        if more:
            written = MemoryTable.load((place / "_memory/table.jsonl").read_text())
            written.commit(*(("insert", number, f"n{number}") for number in more))
            written.save(place)
        done = run_to_end("run", "--config", config, "--once")
        assert done.returncode == 0, done.stderr
    found = changes(delivered(tmp_path / "out"))
    assert found == FROM_BEGINNING + Counter({("insert", 9, 40): 1})
    verified = run_to_end("verify", "orders", "--config", config, "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    verdict = json.loads(verified.stdout)
    assert (verdict["version"], verdict["rows"], verdict["is_equal"]) == (40, 3, True)
    validated = run_to_end("validate", config, "--json")
    assert '"head_version": 40' in validated.stdout, validated.stdout + validated.stderr


@pytest.mark.full
def test_a_gap_is_crossed_as_the_policy_says(place: Path, tmp_path: Path) -> None:
    table = file_table(place, tmp_path / "out", **{"from": "10", "on_gap": "snapshot"})
    config = write_config(tmp_path, orders=table)
    assert run_to_end("run", "--config", config, "--once").returncode == 0
    written = MemoryTable.load((place / "_memory/table.jsonl").read_text())
    for number in (20, 21):
        written.commit(("insert", number, "x"))
    written.first = written.head
    written.save(place)
    done = run_to_end("run", "--config", config, "--once")
    assert done.returncode == 0, done.stderr
    found = changes(delivered(tmp_path / "out"))
    expected = Counter({("insert", number, 50): 1 for number in (7, 8, 20, 21)})
    assert found == FROM_BEGINNING + expected


SPARK = """
    import json, sys
    from tailerd.spark import register
    from tailerd.spark.session import local_session
    spark = local_session("tests", "local[2]", {"spark.sql.shuffle.partitions": "1"})
    register(spark)
    place, folder = sys.argv[1:]
    def shown(rows):
        return sorted([r["_change_type"], r["id"], r["_commit_version"]] for r in rows)
    reader = spark.read.format("tailerd")
    all = reader.option("startingVersion", 10).load(place)
    kept = all.filter("id = 7 and _commit_version < 25")
    past = spark.read.format("tailerd").option("snapshot", "true").option("endingVersion", 20)
    query = (
        spark.readStream.format("tailerd").option("startingVersion", 10)
        .option("maxFilesPerTrigger", 2).load(place)
        .writeStream.format("parquet").option("path", folder + "/streamed")
        .option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start()
    )
    query.awaitTermination()
    print(json.dumps({
        "batch": shown(all.collect()),
        "filtered": shown(kept.collect()),
        "snapshot": shown(past.load(place).collect()),
        "stream": shown(spark.read.parquet(folder + "/streamed").collect()),
    }))
    spark.stop()
"""


@pytest.mark.full
@pytest.mark.spark
def test_spark_reads_it_in_batches_and_streams(place: Path, tmp_path: Path) -> None:
    require_java()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SPARK), str(place), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    expected = sorted(list(key) for key in FROM_BEGINNING)
    assert found["batch"] == found["stream"] == expected
    assert found["filtered"] == [["insert", 7, 20]]
    assert found["snapshot"] == [["insert", number, 20] for number in (0, 1, 2, 3, 4, 7, 8)]
