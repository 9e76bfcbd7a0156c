"""`kill -9` of the real daemon, again and again, while a table keeps changing.

The law: replayed in order, what was delivered of each row is an insert, its delete or update, and
so on, and ends as the table does. A row that is lost or doubled breaks it at once.
"""

from __future__ import annotations

import abc
import json
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.formats.delivering import delivered
from tests.integration.daemon.running import daemon, file_table, read_log, write_config
from tests.kafka.broker import Broker
from tests.kafka.reader import read_topic
from tests.kafka.topics import Topics
from tests.waiting import eventually

DEFAULT_KILLS = 5
# A busy machine makes more commits until the last kill, and reads each of them more slowly.
CATCH_UP_SECONDS = 900.0
Row = dict[str, Any]


class ChangingTable(abc.ABC):
    """A table whose rows are known.

    Attributes:
        location: Where it is.
        start: What a pipeline begins with.
        pause_seconds: Between two commits.
        rows: By column `id`.
    """

    start = "1"
    pause_seconds = 0.03

    def __init__(self, location: str) -> None:
        self.location = location
        self.rows: dict[int, Row] = {}
        self.chance = random.Random(7)

    @abc.abstractmethod
    def change(self) -> None:
        """Commit something."""

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Commit from a thread until the `with` ends."""
        stop = threading.Event()

        def write() -> None:
            while not stop.wait(self.pause_seconds):
                self.change()

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def replayed(changes: Iterable[Row]) -> dict[int, Row]:
    """Replay changes in order; fails where one cannot be."""
    state: dict[int, Row] = {}
    for change in changes:
        row = {name: value for name, value in change.items() if not name.startswith("_")}
        if change["_change_type"] in ("insert", "update_postimage"):
            assert row["id"] not in state, f"doubled: {change}"
            state[row["id"]] = row
        else:
            assert state.pop(row["id"], None) == row, f"not what was there: {change}"
    return state


class Kills:
    """The tests of a format: its module subclasses this and has a fixture `table`."""

    @pytest.mark.kafka
    def test_kills_lose_and_double_nothing_in_files_and_in_kafka(
        self,
        table: ChangingTable,
        kafka_broker: Broker,
        topics: Topics,
        tmp_path: Path,
        pytestconfig: pytest.Config,
    ) -> None:
        """Deliver into files, and exactly once into a topic of three partitions."""
        topic = topics.create(partitions=3)
        topics.delete_later(f"{topic}-offsets")
        sink = {
            "kind": "kafka",
            "bootstrap_servers": kafka_broker.plain,
            "topic": topic,
            "key": ["id"],
            "delivery": "exactly-once",
            "transactional_id": f"tailerd-{topic}",
            "offsets_topic": f"{topic}-offsets",
        }
        start = {"from": table.start}
        config = write_config(
            tmp_path,
            files=file_table(Path(table.location), tmp_path / "out", **start),
            kafka={"path": table.location, "sink": sink, **start},
        )

        def is_done() -> bool:
            if replayed(delivered(tmp_path / "out")) != table.rows:
                return False
            records = read_topic(kafka_broker.plain, topic)
            return replayed(json.loads(each.value or b"") for each in records) == table.rows

        _killed(config, table, pytestconfig, is_done)


def _killed(
    config: Path, table: ChangingTable, pytestconfig: pytest.Config, is_done: Callable[[], bool]
) -> None:
    """Kill daemons as often as `--kills` says, then let one catch up."""
    requested = pytestconfig.getoption("--kills")
    kills = DEFAULT_KILLS if requested is None else int(requested)
    chance = random.Random(5)
    delivering = 0
    for number in range(kills):
        (config.parent / "daemon.log").unlink(missing_ok=True)
        with table.changing(), daemon(config) as process:
            eventually(lambda: "Daemon started" in read_log(config))
            # Some die before they deliver anything, some while they catch up or follow.
            if number % 2:
                eventually(lambda: _have_both_delivered(config))
            time.sleep(chance.random())
            process.send_signal(signal.SIGKILL)
            process.wait()
            delivering += _have_both_delivered(config)
    assert delivering >= kills // 3
    with daemon(config):
        eventually(is_done, CATCH_UP_SECONDS)
    assert is_done()


def _have_both_delivered(config: Path) -> bool:
    lines = [line for line in read_log(config).splitlines() if "Batch delivered" in line]
    return all(any(f'"table": "{name}"' in line for line in lines) for name in ("files", "kafka"))
