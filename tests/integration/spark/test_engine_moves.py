"""A table that moves between the engines, killed on each of them under load, goes on where it was.

In turn the Arrow engine and Spark run it, each until `kill -9`. `--kills 30` kills thirty times;
four without it, twice on each engine.
"""

from __future__ import annotations

import random
import time
from itertools import cycle
from pathlib import Path

import pytest

from tests.integration.daemon.running import daemon, eventually, file_table, log_of, write_config
from tests.integration.faults.test_kills import (
    BusyTable,
    check_everything_came,
    check_what_a_kill_left,
    delivered,
    saved_order,
)
from tests.integration.kafka.following import Follower, Table, Writer, topic_for
from tests.kafka.broker import Broker
from tests.kafka.topics import Topics
from tests.spark_session import require_java
from tests.tables.builder import TableBuilder

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DEFAULT_KILLS = 4
SECONDS = 240.0
MEAN_LIFE_SECONDS = 0.5
"""After the first delivery."""


def kills_of(config: pytest.Config) -> int:
    asked = config.getoption("--kills")
    return DEFAULT_KILLS if asked is None else int(asked)


@pytest.mark.full
def test_killed_on_each_engine_in_turn_every_row_is_in_one_file(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    require_java()
    table = BusyTable(TableBuilder(tmp_path / "t", start_ms=None))
    table.builder.create()
    for _ in range(20):
        table.commit(1)
    out, state = tmp_path / "out", tmp_path / "state"
    config = write_config(tmp_path, orders=file_table(tmp_path / "t", out, max_files_per_batch=100))
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    chances, engines = random.Random(seed), cycle(("arrow", "spark"))
    with table.written_to(random.Random(f"{seed}/writer")):
        for _ in range(kills_of(pytestconfig)):
            reached = len(delivered(out))
            with daemon(config, "--engine", next(engines)) as process:
                eventually(lambda known=reached: len(delivered(out)) > known, SECONDS)  # type: ignore[misc]
                time.sleep(chances.expovariate(1 / MEAN_LIFE_SECONDS))
                process.kill()
                process.wait(10)
            check_what_a_kill_left(table, out, state)
    with daemon(config, "--engine", next(engines)) as process:
        end = (table.builder.version + 1, 1, 0)
        eventually(lambda: saved_order(state) == end, SECONDS)
        process.terminate()
        assert process.wait(60) == 0, log_of(config)
    assert check_what_a_kill_left(table, out, state) == 0
    check_everything_came(table, out)
    assert not list(out.glob(".*.tmp"))


@pytest.mark.full
def test_killed_on_each_engine_in_turn_every_change_is_in_the_topic_once(
    kafka_broker: Broker, topics: Topics, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    require_java()
    table, topic = Table(tmp_path / "t"), topic_for(topics, partitions=3)
    # Several batches while it lives, and no long way to the head at the end.
    options = {"max_files_per_batch": 100}
    follower = Follower(tmp_path / "d", table, topic, bootstrap=kafka_broker.plain, options=options)
    chances, engines = random.Random(), cycle(("arrow", "spark"))
    for _ in range(kills_of(pytestconfig)):
        engine = next(engines)
        with (
            Writer(table, rows=100, pause_seconds=0.1),
            follower.running("--engine", engine) as process,
        ):
            eventually(lambda: follower.last_delivered() >= 0, SECONDS)
            time.sleep(chances.expovariate(1 / MEAN_LIFE_SECONDS))
            process.kill()
            process.wait(10)
    with follower.running("--engine", next(engines)):
        follower.catches_up(SECONDS)
    follower.obeys_the_law()
