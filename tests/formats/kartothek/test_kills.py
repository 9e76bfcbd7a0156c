"""`kill -9` of the real daemon, again and again, while a dataset keeps changing.

`--kills 30` kills thirty times; five without it. The law: replayed in order, what was delivered of
each row is an insert, its delete or update, and so on, and ends as the dataset does. A row that is
lost or doubled breaks it at once.
"""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pytest

from tests.formats.kartothek.test_daemon import delivered
from tests.integration.daemon.running import daemon, eventually, log_of, write_config
from tests.kafka.broker import Broker
from tests.kafka.reader import read_topic
from tests.kafka.topics import Topics
from tests.tables.dataset_writer import DatasetWriter

pytestmark = [pytest.mark.slow, pytest.mark.full]
DEFAULT_KILLS = 5
SCHEMA = pa.schema(
    [pa.field("id", pa.int64()), pa.field("part", pa.int64()), pa.field("name", pa.string())]
)
Row = dict[str, Any]


class Changing(Protocol):
    """A table that is changed while daemons die."""

    def changing(self) -> AbstractContextManager[None]:
        """Commit from a thread until the `with` ends."""
        ...


class ChangingDataset:
    """A dataset whose rows are known: appended to, rewritten with a few changes, deleted from."""

    def __init__(self, store: Path) -> None:
        self.writer = DatasetWriter(store, schema=SCHEMA, partition_on=["part"])
        self.rows: dict[int, Row] = {}
        self._chance = random.Random(7)
        self._next_id = 0
        self._append()

    def change(self) -> None:
        self._chance.choice(
            [self._append, self._append, self._rewrite, self._rewrite, self._drop]
        )()

    def _append(self) -> None:
        ids = range(self._next_id, self._next_id + 100)
        self._next_id += 100
        rows: list[Row] = [
            {"id": n, "part": self._chance.randrange(8), "name": f"n{n}"} for n in ids
        ]
        self.rows |= {row["id"]: row for row in rows}
        self.writer.commit(rows)

    def _rewrite(self) -> None:
        part = self._chance.randrange(8)
        rows = [row for row in self.rows.values() if row["part"] == part]
        changed = [
            {**row, "name": f"{row['name']}'"} if self._chance.random() < 0.05 else row
            for row in rows
        ]
        self.rows |= {row["id"]: row for row in changed}
        self.writer.commit(changed, without=_of(part))

    def _drop(self) -> None:
        part = self._chance.randrange(8)
        self.rows = {n: row for n, row in self.rows.items() if row["part"] != part}
        self.writer.commit(without=_of(part))

    @contextmanager
    def changing(self, pause_seconds: float = 0.03) -> Iterator[None]:
        """Commit from a thread until the `with` ends."""
        stop = threading.Event()

        def write() -> None:
            while not stop.wait(pause_seconds):
                self.change()

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _of(part: int) -> Any:
    return lambda label: label.startswith(f"part={part}/")


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


def killed_and_caught_up(config: Path, dataset: Changing, kills: int, is_done: Any) -> None:
    chance = random.Random(5)
    delivering = 0
    for number in range(kills):
        (config.parent / "daemon.log").unlink(missing_ok=True)
        with dataset.changing(), daemon(config) as process:
            eventually(lambda: "Daemon started" in log_of(config), 180)
            # Some die before they deliver anything, some while they catch up or follow.
            if number % 2:
                eventually(lambda: "Batch delivered" in log_of(config), 180)
            time.sleep(chance.random() * 2)
            process.send_signal(signal.SIGKILL)
            process.wait()
            delivering += "Batch delivered" in log_of(config)
    assert delivering >= kills // 3
    with daemon(config):
        eventually(is_done, 180)


def test_kills_lose_and_double_nothing_in_files(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    dataset = ChangingDataset(tmp_path / "store")
    table: dict[str, object] = {
        "path": str(dataset.writer.place),
        "from": "snapshot",
        "sink": {"kind": "file", "path": str(tmp_path / "out")},
    }
    config = write_config(tmp_path, orders=table)

    def is_done() -> bool:
        return replayed(delivered(tmp_path / "out")) == dataset.rows

    killed_and_caught_up(config, dataset, kills_asked(pytestconfig), is_done)
    assert is_done()


@pytest.mark.kafka
def test_kills_lose_and_double_nothing_in_kafka(
    kafka_broker: Broker, topics: Topics, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    dataset = ChangingDataset(tmp_path / "store")
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
    table: dict[str, object] = {"path": str(dataset.writer.place), "from": "snapshot", "sink": sink}
    config = write_config(tmp_path, orders=table)

    def is_done() -> bool:
        records = read_topic(kafka_broker.plain, topic)
        return replayed(json.loads(each.value or b"") for each in records) == dataset.rows

    killed_and_caught_up(config, dataset, kills_asked(pytestconfig), is_done)
    assert is_done()


def kills_asked(pytestconfig: pytest.Config) -> int:
    asked = pytestconfig.getoption("--kills")
    return DEFAULT_KILLS if asked is None else int(asked)
