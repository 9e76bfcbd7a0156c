"""Tables that move between the engines, killed on each of them under load, go on where they were.

In turn the Arrow engine and Spark run them, each until `kill -9`. `--kills 30` kills thirty times;
four without it, twice on each engine.
"""

from __future__ import annotations

import random
import time
from itertools import cycle
from pathlib import Path

import pytest

from tests.integration.daemon.running import file_table, read_log
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
from tests.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FILES = "files"
DEFAULT_KILLS = 4
MEAN_LIFE_SECONDS = 0.5
"""After the first delivery."""


@pytest.mark.full
def test_killed_on_each_engine_in_turn_every_row_is_in_one_file_and_every_change_in_the_topic_once(
    kafka_broker: Broker, topics: Topics, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    require_java()
    busy = BusyTable(TableBuilder(tmp_path / "busy", start_ms=None))
    busy.builder.create()
    for _ in range(20):
        busy.commit(1)
    out = tmp_path / "out"
    table = Table(tmp_path / "followed")
    # Several batches while it lives, and no long way to the head at the end.
    options = {"max_files_per_batch": 100}
    follower = Follower(
        tmp_path / "daemon",
        table,
        topic_for(topics, partitions=3),
        bootstrap=kafka_broker.plain,
        options=options,
        beside={FILES: file_table(busy.builder.folder, out, **options)},
    )
    state = follower.folder / "state"
    requested = pytestconfig.getoption("--kills")
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    chances, engines = random.Random(seed), cycle(("arrow", "spark"))
    with busy.written_to(random.Random(f"{seed}/writer")):
        for _ in range(DEFAULT_KILLS if requested is None else requested):
            reached = len(delivered(out))
            with (
                Writer(table, pause_seconds=0.1),
                follower.running("--engine", next(engines)) as process,
            ):
                eventually(lambda known=reached: len(delivered(out)) > known)  # type: ignore[misc]
                eventually(lambda: follower.last_delivered() >= 0)
                time.sleep(chances.expovariate(1 / MEAN_LIFE_SECONDS))
                process.kill()
                process.wait(10)
            check_what_a_kill_left(busy, out, state, FILES)
    with follower.running("--engine", next(engines)) as process:
        end = (busy.builder.version + 1, 1, 0)
        eventually(lambda: saved_order(state, FILES) == end)
        follower.catches_up()
        process.terminate()
        assert process.wait(60) == 0, read_log(follower.config)
    assert check_what_a_kill_left(busy, out, state, FILES) == 0
    check_everything_came(busy, out)
    assert not list(out.glob(".*.tmp"))
    follower.obeys_the_law()
