"""Groups that tables leave while a batch of theirs is not finished: who waits for what.

A group that does not run is asked what it has delivered, which claims its transactional id: so it
must not start meanwhile. It is asked in the background, once for all tables that leave it, and
dead brokers are left alone for a while: no table of another group waits for them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tailerd.backoff import Backoff
from tailerd.config import SinkConfig
from tailerd.errors import EngineError, SinkError, TailerdError
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.spark.checkpoints import CHECKPOINT_FOLDER
from tailerd.spark.group.members import Members
from tailerd.spark.group.published import end_digest, published_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPlacement:
    """Why a table has no place yet.

    Attributes:
        error: What to tell.
        seconds: When to look again.
        is_failure: Whether this was an attempt that failed; else the group that it leaves runs.
    """

    error: TailerdError
    seconds: float
    is_failure: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """An answer: the last batch that counts; None where only Spark's own word counts."""

    batch_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    error: SinkError
    attempt: int
    until: float


class LeftGroups:
    """What groups that do not run have delivered, by the kind of sink that asks. In one loop."""

    def __init__(self) -> None:
        """Begin knowing nothing."""
        self._answers: dict[str, dict[str, Delivered | _Failure]] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    def answer(self, group: str, kind: str) -> Delivered | PendingPlacement | None:
        """Return what is known, or how long to leave it alone; None: it is to be asked."""
        found = self._answers.get(group, {}).get(kind)
        if not isinstance(found, _Failure):
            return found
        seconds = found.until - time.monotonic()
        if seconds <= 0:
            return None
        return PendingPlacement(error=found.error, seconds=seconds, is_failure=True)

    def asking(self, group: str) -> asyncio.Task[None] | None:
        """Return what asks a group now; until it is done the group must not start."""
        return self._asking.get(group)

    async def ask(self, group: str, kind: str, call: Callable[[], int | None]) -> None:
        """Ask a group, or wait for whoever does already; then see `answer`.

        Args:
            group: It does not run.
            kind: Of the sink that asks.
            call: Asks; blocking.

        Raises:
            TailerdError: Another than `SinkError`, which `answer` gives; of one's own question.
        """
        other = self._asking.get(group)
        if other is not None:
            # It may ask elsewhere, for another kind of sink: its error says nothing here.
            await asyncio.wait([other])
            return
        task = asyncio.create_task(self._ask(group, kind, call), name=f"asking {group}")
        self._asking[group] = task
        # Whoever is cancelled leaves it to the others, and to `aclose`.
        await asyncio.shield(task)

    async def _ask(self, group: str, kind: str, call: Callable[[], int | None]) -> None:
        answers = self._answers.setdefault(group, {})
        before = answers.get(kind)
        try:
            answers[kind] = Delivered(batch_id=await asyncio.to_thread(call))
        except SinkError as error:
            attempt = before.attempt + 1 if isinstance(before, _Failure) else 0
            wait = Backoff().wait_seconds(attempt, random.Random())
            until = time.monotonic() + wait
            answers[kind] = _Failure(error=error, attempt=attempt, until=until)
        finally:
            del self._asking[group]

    def forget(self, group: str) -> None:
        """Know nothing of a group any more, because it starts."""
        self._answers.pop(group, None)

    async def aclose(self) -> None:
        """Wait for what is asked now: nobody else may have the id before."""
        if self._asking:
            await asyncio.wait(self._asking.values())


def waits_for(name: str, group: str, seconds: float) -> PendingPlacement:
    """Return that a table waits for the group that it leaves, which runs."""
    error = EngineError(
        f"{name} waits for the group {group}, which it leaves: a micro-batch with its rows is not"
        " finished there, and the table's position is known only then.",
        remedy="See what the tables of that group say, and bring back what they write to (its"
        f" brokers), or give the wait up: tailerd offsets reset {name} --to ...",
    )
    return PendingPlacement(error=error, seconds=seconds, is_failure=False)


def delivered_by(folder: Path, group: str, name: str, sink: SinkConfig) -> int | None:
    """Return the last batch that counts of a group that does not run and whose sink knows it.

    Files of lines say it beside the group's checkpoint. Of Kafka, exactly once, whatever the group
    had not committed when its process ended is undone, so it never will; it is asked for where the
    table writes now: other brokers have other rows. Blocking, seconds.

    Args:
        folder: Of the group.
        group: Its name.
        name: The table that leaves it.
        sink: What the table has now.

    Returns:
        None where nothing is known of one, or a row may come twice anyway.

    Raises:
        TailerdError: The brokers do not answer, or the group's files cannot be read.
    """
    published = published_batch(folder)
    if published is not None:
        return published.batch_id
    checkpoint = folder / CHECKPOINT_FOLDER
    if not isinstance(sink, KafkaSinkConfig) or not sink.is_exactly_once:
        return None
    # These load the client, which files do without.
    from tailerd.spark.kafka.group_identity import has_identity, writer_name
    from tailerd.spark.kafka.group_sink import KafkaGroupSink

    if not has_identity(checkpoint):
        return None
    before = _before(folder, name, sink)
    writer = writer_name(folder, group)
    kafka = KafkaGroupSink(lambda: {name: before}, checkpoint, writer, partial(end_digest, folder))
    try:
        return kafka.recover()
    finally:
        kafka.close()


def _before(folder: Path, name: str, sink: KafkaSinkConfig) -> KafkaSinkConfig:
    """Return the section that the group knew, with the way to brokers that is configured now."""
    try:
        found = {each.name: each.kafka for each in Members.read(folder).tables}.get(name)
    except TailerdError:
        found = None
    if found is None or not found.is_exactly_once:
        return sink
    now = {"bootstrap_servers": sink.bootstrap_servers, "producer": sink.producer}
    return found.model_copy(update=now)
