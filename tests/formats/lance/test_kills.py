"""`kill -9` of the real daemon, again and again, while a table keeps changing.

`--kills 30` kills thirty times; five without it. Replayed in order, what was delivered of each row
is an insert, its update or delete, and so on, and ends as the table does.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.formats.kartothek.test_kills import killed_and_caught_up, kills_asked, replayed
from tests.formats.lance.test_daemon import delivered
from tests.integration.daemon.running import write_config
from tests.kafka.broker import Broker
from tests.kafka.reader import read_topic
from tests.kafka.topics import Topics
from tests.tables.lance_writer import LanceWriter

pytestmark = [pytest.mark.slow, pytest.mark.full]
Row = dict[str, Any]


class ChangingTable:
    """A table whose rows are known: appended to, updated, deleted from, compacted."""

    def __init__(self, place: Path) -> None:
        self.writer = LanceWriter(place, stable_ids=True)
        self.rows: dict[int, Row] = {}
        self._chance = random.Random(7)
        self._append()

    def change(self) -> None:
        self._chance.choice(
            [self._append, self._append, self._update, self._update, self._delete, self._compact]
        )()

    def _append(self) -> None:
        first = max(self.rows, default=-1) + 1
        rows: list[Row] = [{"id": n, "name": f"n{n}"} for n in range(first, first + 50)]
        self.rows |= {row["id"]: row for row in rows}
        self.writer.append(rows)

    def _update(self) -> None:
        part = self._chance.randrange(40)
        changed: dict[int, Row] = {
            n: {"id": n, "name": f"{row['name']}'"}
            for n, row in self.rows.items()
            if n % 40 == part
        }
        self.writer.dataset.update({"name": "name || ''''"}, where=f"id % 40 = {part}")
        self.rows |= changed

    def _delete(self) -> None:
        part = self._chance.randrange(20)
        self.writer.delete(f"id % 20 = {part} AND id < {max(self.rows)}")
        last = max(self.rows)
        self.rows = {n: row for n, row in self.rows.items() if n % 20 != part or n == last}

    def _compact(self) -> None:
        self.writer.dataset.optimize.compact_files()

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


def test_kills_lose_and_double_nothing_in_files(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    table = ChangingTable(tmp_path / "t")
    section: dict[str, object] = {
        "path": str(tmp_path / "t"),
        "from": "1",
        "sink": {"kind": "file", "path": str(tmp_path / "out")},
    }
    config = write_config(tmp_path, orders=section)

    def is_done() -> bool:
        return replayed(delivered(tmp_path / "out")) == table.rows

    killed_and_caught_up(config, table, kills_asked(pytestconfig), is_done)
    assert is_done()


@pytest.mark.kafka
def test_kills_lose_and_double_nothing_in_kafka(
    kafka_broker: Broker, topics: Topics, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    table = ChangingTable(tmp_path / "t")
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
    section: dict[str, object] = {"path": str(tmp_path / "t"), "from": "1", "sink": sink}
    config = write_config(tmp_path, orders=section)

    def is_done() -> bool:
        records = read_topic(kafka_broker.plain, topic)
        return replayed(json.loads(each.value or b"") for each in records) == table.rows

    killed_and_caught_up(config, table, kills_asked(pytestconfig), is_done)
    assert is_done()
