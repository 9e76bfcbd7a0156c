"""Change rows into a real broker from Spark's executors, against the Arrow engine.

The same daemon, configuration and table; both engines are measured from their first delivery on,
so that neither Java's start nor Python's counts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.benchmarks.big_tables import update_feed
from tests.benchmarks.conftest import Report
from tests.benchmarks.measuring import Measured, Row, middle, run_process
from tests.spark_session import require_java

if TYPE_CHECKING:
    from tests.kafka.broker import Broker
    from tests.kafka.topics import Topics

pytestmark = [pytest.mark.benchmark, pytest.mark.slow, pytest.mark.spark]

PARTITIONS = 4
TIMES = 2
GOAL = 0.6

RUN = """
    import asyncio, pathlib, sys, time
    from tailerd.config import load_config
    from tailerd.daemon.daemon import Daemon
    from tailerd.telemetry import events

    told = []
    def hear(event):
        if isinstance(event, events.DeliveryAcknowledged):
            told.append((time.perf_counter(), sum(event.rows.values())))

    config = load_config(pathlib.Path(sys.argv[1]))
    asyncio.run(Daemon(config, is_once=True, handlers=[hear]).run())
    result = {
        "rows": sum(rows for _, rows in told[1:]),
        "all_rows": sum(rows for _, rows in told),
        "seconds": told[-1][0] - told[0][0],
    }
"""


class Bench:
    """Runs an engine into a topic of its own, which is deleted right afterwards."""

    def __init__(self, folder: Path, broker: Broker, topics: Topics, delivery: str) -> None:
        self._folder, self._broker, self._topics = folder, broker, topics
        self._delivery = delivery

    def run(self, engine: str, table: Path, files: int) -> Measured:
        topic = self._topics.create(partitions=PARTITIONS)
        sink = {
            "kind": "kafka",
            "bootstrap_servers": [self._broker.plain],
            "topic": topic,
            "key": ["id"],
            "delivery": self._delivery,
        }
        config = {
            "engine": engine,
            "state": f"{self._folder}/state-{topic}",
            "http": {"listen": None},
            "spark": {"master": "local[2]"},
            "tables": {
                topic: {"path": str(table), "from": "0", "max_files_per_batch": files, "sink": sink}
            },
        }
        path = self._folder / f"{topic}.yaml"
        path.write_text(yaml.safe_dump(config))
        run = run_process(RUN, path)
        there = sum(self._topics.end_offsets(topic).values())
        assert there >= run.result["all_rows"] > run.result["rows"] > 0
        self._topics.delete(topic)
        return run


def speed(run: Measured) -> float:
    return float(run.result["rows"] / run.result["seconds"])


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_change_rows_from_executors(
    tmp_path: Path, kafka_broker: Broker, topics: Topics, report: Report, delivery: str
) -> None:
    require_java()
    # Five micro-batches of a million rows: with small ones Spark's own cost of each would count.
    table = update_feed(1000, 5000)
    bench = Bench(tmp_path, kafka_broker, topics, delivery)
    runs = [(bench.run("spark", table, 200), bench.run("arrow", table, 200)) for _ in range(TIMES)]
    spark, arrow = (middle([each[side] for each in runs]) for side in (0, 1))
    ratio = speed(spark) / speed(arrow)
    report(
        [
            Row(
                f"{spark.result['rows'] / 1e6:.1f}M change rows to Kafka, {delivery},"
                " Spark's executors against the Arrow engine",
                f"{speed(spark) / 1000:,.0f} k rows/s",
                f"{speed(arrow) / 1000:,.0f} k rows/s",
                ratio,
                f">= {GOAL}x",
                ratio >= GOAL,
            )
        ]
    )
