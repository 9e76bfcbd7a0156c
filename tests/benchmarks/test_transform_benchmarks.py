"""What choosing columns, rows and values costs or saves; DuckDB and Polars beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.benchmarks.big_tables import wide_feed, wide_files
from tests.benchmarks.conftest import Report
from tests.benchmarks.measuring import Measured, Row, middle, per_second, run_process
from tests.benchmarks.test_kafka_delivery_benchmarks import OURS, configured

if TYPE_CHECKING:
    from tests.kafka.broker import Broker
    from tests.kafka.topics import Topics

pytestmark = [pytest.mark.benchmark, pytest.mark.slow]

TIMES = 3
WHERE = "amount < 0.95"
"""Of a column with even values between 0 and 1."""
FILES = 20
READ = f"""
    import json, sys, time
    from tailerd.arrow_start import start_arrow
    start_arrow()
    import tailerd
    options = json.loads(sys.argv[2])
    # What is timed is the reading, not the loading of modules.
    for batch in tailerd.changes(sys.argv[1], since={FILES}, **options):
        pass
    rows = [0, time.perf_counter()]
    for batch in tailerd.changes(sys.argv[1], since=0, **options):
        rows[0] += batch.num_rows
    result = dict(rows=rows[0], seconds=time.perf_counter() - rows[1])
"""
TO_KAFKA = OURS.replace("told = []", "import tailerd.transforms.where\n\n    told = []")
PEERS = {
    "DuckDB": """
        import sys, time, duckdb
        start = time.perf_counter()
        files = f"{sys.argv[1]}/**/*.parquet"
        table = duckdb.sql(f"from read_parquet('{files}') where {sys.argv[2]}").to_arrow_table()
        result = {"rows": table.num_rows, "seconds": time.perf_counter() - start}
    """,
    "Polars": """
        import sys, time, polars
        start = time.perf_counter()
        files = polars.scan_parquet(f"{sys.argv[1]}/**/*.parquet", missing_columns="insert")
        table = files.filter(polars.sql_expr(sys.argv[2])).collect()
        result = {"rows": table.height, "seconds": time.perf_counter() - start}
    """,
}


def in_turns(works: dict[str, Any]) -> dict[str, Measured]:
    """Run all in turns; return the medians."""
    runs = [{name: work() for name, work in works.items()} for _ in range(TIMES)]
    return {name: middle([each[name] for each in runs]) for name in works}


def read(table: Path, options: str) -> Measured:
    return run_process(READ, table, options)


def test_two_of_fifty_columns(report: Report) -> None:
    table = wide_files(files=FILES, rows=50_000, columns=50)
    found = in_turns(
        {
            "two": lambda: read(table, '{"columns": ["id", "c7"]}'),
            "all": lambda: read(table, "{}"),
        }
    )
    two, whole = found["two"].result, found["all"].result
    assert two["rows"] == whole["rows"] == FILES * 50_000
    ratio = whole["seconds"] / two["seconds"]
    report(
        [
            Row(
                "2 of 50 columns, against all",
                per_second(two["rows"], two["seconds"]),
                per_second(whole["rows"], whole["seconds"]),
                ratio,
                ">= 6x",
                ratio >= 6,
            )
        ]
    )


def test_a_filter_that_keeps_most_rows(report: Report) -> None:
    # Appends alone: the rows of the table's files are its changes.
    table = wide_files(files=FILES, rows=50_000, columns=8)
    options = f'{{"where": "{WHERE}"}}'
    works: dict[str, Any] = {
        "ours": lambda: read(table, options),
        "no filter": lambda: read(table, "{}"),
    }
    for name, program in PEERS.items():
        works[name] = lambda program=program: run_process(program, table, WHERE)
    found = in_turns(works)
    ours, whole = found["ours"].result, found["no filter"].result
    rows = []
    for name in ("no filter", *PEERS):
        other = found[name].result
        if name in PEERS:
            assert other["rows"] == ours["rows"] < whole["rows"]
        ratio = other["seconds"] / ours["seconds"]
        rows.append(
            Row(
                f"rows of a filter that keeps 95 %, by input rows; {name}",
                per_second(whole["rows"], ours["seconds"]),
                per_second(whole["rows"], other["seconds"]),
                ratio,
                "",
                True,
            )
        )
    report(rows)


@pytest.mark.kafka
@pytest.mark.parametrize("masked", [("product", "status"), ("customer", "product")], ids=str)
def test_a_filter_and_two_masks_as_json_to_kafka(
    masked: tuple[str, str],
    tmp_path: Path,
    kafka_broker: Broker,
    topics: Topics,
    report: Report,
) -> None:
    table = wide_feed(200, 5000)
    fields = {
        "where": WHERE,
        "mask": dict.fromkeys(masked, "hash"),
        "mask_key": "deep-thought-42",
    }

    def deliver(fields: dict[str, Any]) -> Measured:
        topic = topics.create(partitions=4)
        path = configured(tmp_path, table, kafka_broker, topic)
        config = yaml.safe_load(path.read_text())
        config["tables"][topic] |= fields
        path.write_text(yaml.safe_dump(config))
        run = run_process(TO_KAFKA, path)
        assert sum(topics.end_offsets(topic).values()) == run.result["rows"]
        topics.delete(topic)
        return run

    found = in_turns({"governed": lambda: deliver(fields), "raw": lambda: deliver({})})
    governed, raw = found["governed"].result, found["raw"].result
    assert 0.94 < governed["rows"] / raw["rows"] < 0.96
    ratio = raw["seconds"] / governed["seconds"]
    # Nearly each value of `customer` is another one, and must be hashed by itself.
    goal = 0.0 if "customer" in masked else 0.85
    report(
        [
            Row(
                f"filter of 95 %, hashes of {' and '.join(masked)}: JSON to Kafka, by input rows",
                per_second(raw["rows"], governed["seconds"]),
                per_second(raw["rows"], raw["seconds"]),
                ratio,
                f">= {goal}x" if goal else "",
                ratio >= goal,
            )
        ]
    )
