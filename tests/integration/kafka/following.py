"""A table that keeps changing, followed into a topic by a real daemon; and the law it is held to.

The law: what a read_committed consumer sees are the table's change rows, each once with
exactly-once, each at least once else; the changes of one key come in the order of the commits.
"""

from __future__ import annotations

import collections
import json
import random
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, get_args

from tests.integration.daemon.running import daemon, page, write_config
from tests.kafka.reader import Record, read_topic
from tests.kafka.topics import Topics
from tests.tables.builder import TableBuilder
from tests.tables.naive_log import Action
from tests.waiting import PATIENCE_SECONDS, eventually

Guarantee = Literal["exactly-once", "at-least-once"]
GUARANTEES: tuple[Guarantee, ...] = get_args(Guarantee)
# One change: id of the row, kind, version. A writer never repeats one.
Change = tuple[int, str, int]
NAME = "orders"


class Table:
    """A real table whose every change row is known without asking tailerd."""

    def __init__(self, folder: Path, *, row_bytes: int = 200) -> None:
        """Create it, empty, at version 0."""
        self.folder = folder
        self.changes: set[Change] = set()
        self._text = "x" * row_bytes
        self._chance = random.Random(7)
        self._next_id = 0
        self._alive: list[tuple[Action, list[int]]] = []
        features = ["deletionVectors"]
        self._builder = TableBuilder(
            folder, start_ms=None, reader_features=features, writer_features=features
        )
        self._builder.create()

    @property
    def version(self) -> int:
        """The newest version."""
        return self._builder.version

    def insert(self, rows: int = 100) -> int:
        """Commit new rows; return the version."""
        ids = list(range(self._next_id, self._next_id + rows))
        self._next_id += rows
        # Known before it is there: a reader is never ahead of what is expected.
        version = self.version + 1
        self.changes |= {(each, "insert", version) for each in ids}
        [add] = self._builder.append([self._row(each) for each in ids]).adds
        self._alive.append((add, ids))
        return version

    def delete(self) -> int:
        """Commit the deletion of some rows of one file; return the version."""
        add, ids = self._alive.pop(self._chance.randrange(len(self._alive)))
        positions = sorted(self._chance.sample(range(len(ids)), max(1, len(ids) // 10)))
        version = self.version + 1
        self.changes |= {(ids[each], "delete", version) for each in positions}
        self._builder.delete_rows(add, positions)
        return version

    def rewrite(self, rows: int = 100) -> int:
        """Commit one file in place of another, in another order, as writers without vectors do.

        It has half of its rows, and `rows` new ones: what is in both is no change.
        """
        add, ids = self._alive.pop(self._chance.randrange(len(self._alive)))
        kept = self._chance.sample(ids, len(ids) // 2)
        new = list(range(self._next_id, self._next_id + rows))
        self._next_id += rows
        version = self.version + 1
        self.changes |= {(each, "delete", version) for each in set(ids) - set(kept)}
        self.changes |= {(each, "insert", version) for each in new}
        mixed = self._chance.sample([*kept, *new], len(kept) + rows)
        written = self._builder.data_file([self._row(each) for each in mixed])
        self._builder.commit(self._builder.remove(add), written)
        self._alive.append((written, mixed))
        return version

    def change(self, rows: int = 100) -> int:
        """Commit something: mostly new rows, sometimes a deletion or a file rewritten."""
        what = self._chance.random() if self._alive else 1.0
        if what < 0.2:
            return self.delete()
        return self.rewrite(rows) if what < 0.4 else self.insert(rows)

    def _row(self, row: int) -> dict[str, Any]:
        return {"id": row, "name": self.format_text(row)}

    def format_text(self, row: int) -> str:
        """Return what the column `name` holds in that row."""
        return f"{row}-{self._text}"


class Writer:
    """Commits to a table from a thread until the `with` ends."""

    def __init__(self, table: Table, *, rows: int = 100, pause_seconds: float = 0.05) -> None:
        self._table = table
        self._rows = rows
        self._pause_seconds = pause_seconds
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _write(self) -> None:
        try:
            while not self._stop.wait(self._pause_seconds):
                self._table.change(self._rows)
        except BaseException as error:  # noqa: BLE001 - raised again by the test's own thread
            self._error = error


class Follower:
    """A daemon's configuration, what it says of itself, and what it delivered."""

    def __init__(
        self,
        folder: Path,
        table: Table,
        topic: str,
        *,
        bootstrap: str,
        reads_from: str | None = None,
        guarantee: Guarantee = "exactly-once",
        options: dict[str, Any] | None = None,
        beside: Mapping[str, dict[str, Any]] | None = None,
        **sink: Any,
    ) -> None:
        """Write the configuration.

        Args:
            folder: Of its configuration, state and log.
            table: What it follows, from version 0 on.
            topic: Where it writes.
            bootstrap: The address the daemon is given.
            reads_from: The address for the test's own reader; by default the same.
            guarantee: The sink's `delivery`.
            options: Fields of the table, beside the sink.
            beside: Further tables of the same daemon, by name.
            **sink: Fields of the sink.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.table = table
        self.topic = topic
        self.guarantee = guarantee
        self.sink: dict[str, Any] = {
            "kind": "kafka",
            "bootstrap_servers": bootstrap,
            "topic": topic,
            "key": ["id"],
            "delivery": guarantee,
            **sink,
        }
        if guarantee == "exactly-once":
            self.sink.setdefault("transactional_id", f"tailerd-{topic}")
            self.sink.setdefault("offsets_topic", f"{topic}-offsets")
        self._reads_from = reads_from or bootstrap
        self._next_offsets: dict[int, int] = {}
        self._delivered: set[Change] = set()
        self._options = {"from": "0", "poll_interval": "200ms", **(options or {})}
        self._beside = dict(beside or {})
        self.config = self.write()

    def __repr__(self) -> str:
        """Say in failures which one it is."""
        return f"<follower {self.guarantee} into {self.topic}>"

    def write(self, **sink: Any) -> Path:
        """Write the configuration again, with some fields of the sink changed."""
        self.sink.update(sink)
        fields = {"path": str(self.table.folder), **self._options, "sink": self.sink}
        return write_config(self.folder, **{NAME: fields, **self._beside})

    @contextmanager
    def running(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        """Run the daemon; killed at the end if it still runs."""
        log = self.folder / "daemon.log"
        if log.exists():
            # So that what is asked of the daemon is asked of this one.
            log.rename(self.folder / f"daemon-{time.monotonic_ns()}.log")
        with daemon(self.config, *options) as process:
            yield process

    def status(self) -> dict[str, Any]:
        """Return what /status says of the pipeline."""
        tables = json.loads(page(self.config, "/status"))["tables"]
        [found] = [each for each in tables if each["table"] == NAME]
        return dict(found)

    def waits_for_error(self, text: str, *, state: str, seconds: float = PATIENCE_SECONDS) -> str:
        """Wait until the pipeline is in a state with that error; return all of the error."""

        def is_told() -> bool:
            found = self.status()
            message = (found["last_error"] or {}).get("message", "")
            return found["state"] == state and text.lower() in message.lower()

        try:
            eventually(is_told, seconds)
        except AssertionError as error:
            raise AssertionError(f"not {state} with {text!r}: {self.status()}") from error
        return str(self.status()["last_error"]["message"])

    def catches_up(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until the daemon has delivered all there is, by its own word."""
        head = self.table.version

        def is_there() -> bool:
            found = self.status()
            assert found["state"] != "failed", found["last_error"]
            return found["offset_version"] is not None and found["offset_version"] > head

        try:
            eventually(is_there, seconds)
        except AssertionError as error:
            raise AssertionError(f"version {head} is not delivered: {self.status()}") from error

    def last_delivered(self) -> int:
        """Return the newest version that the last daemon says it delivered; -1 for none."""
        lines = (self.folder / "daemon.log").read_text().splitlines()
        # The last line may be cut off by a kill.
        reported = [json.loads(line) for line in lines if line.endswith("}")]
        ours = [event for event in reported if event.get("table") == NAME]
        return max((event.get("end_version", -1) for event in ours), default=-1)

    def records(self, start: Mapping[int, int] | None = None) -> list[Record]:
        """Return what a read_committed consumer sees of the topic.

        Args:
            start: Partition → first offset to read; other partitions from their beginning.
        """
        return read_topic(self._reads_from, self.topic, start=start)

    def delivered(self) -> set[Change]:
        """Return the changes a read_committed consumer sees; only what is new is read."""
        for record in self.records(self._next_offsets):
            self._next_offsets[record.partition] = record.offset + 1
            self._delivered.add(change_of(record))
        return set(self._delivered)

    def obeys_the_law(self, expected: set[Change] | None = None) -> None:
        """Check the law over the whole topic."""
        expected = self.table.changes if expected is None else expected
        # The brokers decide on a transaction first and show its rows a moment later.
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not expected <= self.delivered() and time.monotonic() < deadline:
            time.sleep(0.1)
        records = self.records()
        counted = collections.Counter(change_of(record) for record in records)
        lost = expected - set(counted)
        assert not lost, f"{len(lost)} lost, of versions {sorted({each[2] for each in lost})}"
        assert not set(counted) - expected, "rows that nobody wrote"
        if self.guarantee == "exactly-once":
            doubled = {change: n for change, n in counted.items() if n > 1}
            versions = sorted({change[2] for change in doubled})
            assert not doubled, f"{len(doubled)} doubled, of versions {versions}"
        self._is_in_order(records)
        self._have_own_ids(records)
        for record in records:
            row = json.loads(record.value or b"")
            assert row["name"] == self.table.format_text(row["id"])

    def _have_own_ids(self, records: list[Record]) -> None:
        """Check that who leaves out ids that were seen has each change once."""
        found = {(dict(record.headers).get("tailerd.id"), change_of(record)) for record in records}
        if self.guarantee == "at-least-once":
            ids, changes = zip(*found, strict=True)
            assert None not in ids
            assert len(found) == len(set(ids)) == len(set(changes)), "an id is of one change"

    def _is_in_order(self, records: list[Record]) -> None:
        locations: dict[int, int] = {}
        newest: dict[int, list[int]] = {}
        for record in records:
            row, _, version = change_of(record)
            assert locations.setdefault(row, record.partition) == record.partition
            seen = newest.setdefault(row, [])
            # A repeated delivery begins again at an older version; what is new to a reader comes
            # in order.
            assert version in seen or version > max(seen, default=-1), f"row {row}: {version}"
            seen.append(version)


class Followers:
    """Two daemons that follow one table, one with each guarantee: both meet the same outage."""

    def __init__(
        self,
        folder: Path,
        table: Table,
        topics: Topics,
        *,
        topic: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        """Create a topic for each and write their configurations.

        Args:
            folder: They have folders of their own in it.
            table: What they follow.
            topics: Where to create the topics.
            topic: Arguments of `Topics.create`.
            **fields: Arguments of each `Follower`.
        """
        self.each = [
            Follower(
                folder / guarantee,
                table,
                topic_for(topics, **(topic or {})),
                guarantee=guarantee,
                **fields,
            )
            for guarantee in GUARANTEES
        ]

    @contextmanager
    def running(self) -> Iterator[list[subprocess.Popen[str]]]:
        """Run both daemons; killed at the end if they still run."""
        with ExitStack() as stack:
            yield [stack.enter_context(each.running()) for each in self.each]

    def deliver(self, changes: int, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until each of them has delivered so many changes more."""
        wanted = [len(each.delivered()) + changes for each in self.each]
        for each, least in zip(self.each, wanted, strict=True):
            eventually(lambda e=each, n=least: len(e.delivered()) > n, seconds)  # type: ignore[misc]

    def catch_up(self) -> None:
        """Wait until both have delivered all there is, by their own word."""
        for each in self.each:
            each.catches_up()

    def obey_the_law(self) -> None:
        """Check the law over both topics."""
        for each in self.each:
            each.obeys_the_law()


def change_of(record: Record) -> Change:
    """Return which change a record is."""
    row = json.loads(record.value or b"")
    return row["id"], row["_change_type"], row["_commit_version"]


def topic_for(topics: Topics, **options: Any) -> str:
    """Create a topic; it and the topic of its offsets are deleted at the end."""
    topic = topics.create(**options)
    topics.delete_later(f"{topic}-offsets")
    return topic
