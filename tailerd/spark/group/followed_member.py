"""One table of a group in the source's process: looked at, planned, waited for, by itself."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tailerd.backoff import ATTEMPTS_ONCE, Backoff
from tailerd.changefeed.change_task import ChangeMode, ChangeTask
from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import Offset, whole_before
from tailerd.errors import BugError, TailerdError
from tailerd.formats.base import ChangeSource, OpenRequest
from tailerd.formats.detect import open_table
from tailerd.formats.ledger import LedgerPlace
from tailerd.spark.change_range import clamped, tasks_between
from tailerd.spark.given_formats import DriverFormats, GivenFormats
from tailerd.spark.group.group_offset import Entry
from tailerd.spark.group.members import GroupTable
from tailerd.spark.group.quarantine import Hold, stands_at
from tailerd.spark.group.report import Problem, Standing
from tailerd.spark.spark_offset import check_continues
from tailerd.spark.table_source import warn
from tailerd.storage.stores import Stores
from tailerd.watchers.wakeups import Wakeup


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one table gives to a batch: [begin, end) as tasks."""

    begin: Offset
    end: Offset
    tasks: tuple[ChangeTask, ...]


class MemberWakeup(Wakeup):
    """A table's wakeup that wakes its group too.

    Attributes:
        is_rung: Whether it rang since the table was looked at.
    """

    def __init__(self, group: asyncio.Event) -> None:
        super().__init__()
        self.is_rung = True
        self._group = group

    def ring(self) -> None:
        """Wake whoever waits for any table."""
        super().ring()
        self.is_rung = True
        self._group.set()


class FollowedMember:
    """A table that stays open between batches.

    Its errors are its own: `look` keeps them as `problem` and says when it may be asked again.

    Attributes:
        member: What is known of it.
        wakeup: Notifies when its log may have grown.
        problem: Why it is not planned at present; None when it is.
        standing: Where it is, as of the last look.
    """

    def __init__(
        self,
        member: GroupTable,
        hold: Hold | None,
        group: asyncio.Event,
        stores: Stores | None = None,
    ) -> None:
        self.member = member
        self._stores = stores or Stores()
        self.wakeup = MemberWakeup(group)
        self.problem: Problem | None = None
        self.standing: Standing | None = None
        self._hold = hold
        self._source: ChangeSource | None = None
        self._attempt = hold.attempt if hold is not None else 0
        wait = 0.0 if hold is None else max(0.0, hold.retry_at - time.time())
        # The clock may have been set back since; no wait is longer than the longest.
        self._retry_at = time.monotonic() + min(wait, Backoff().max_seconds)
        self._is_more = True
        self._final: Offset | None = None
        self._formats: DriverFormats | None = None

    @property
    def changes(self) -> ChangeMode:
        """How its commits become rows."""
        return ChangeMode(self.member.config.changes)

    @property
    def is_lost(self) -> bool:
        """Whether it failed for good."""
        return self.problem is not None and self.problem.wait_seconds is None

    @property
    def seconds_to_retry(self) -> float | None:
        """How long until it may be tried again; None where it does not wait for that."""
        if self.is_lost or self.member.is_leaving:
            return None
        wait = self._retry_at - time.monotonic()
        return wait if wait > 0 else None

    @property
    def is_ready(self) -> bool:
        """Whether a look at it may find something now."""
        if self.member.is_leaving or self.is_lost or self.seconds_to_retry is not None:
            return False
        return self._is_more or self.wakeup.is_rung

    async def source(self) -> ChangeSource:
        """Return the open table.

        Raises:
            ConfigError, TableError, StorageError: It cannot be opened.
        """
        if self._source is None:
            config = self.member.config
            self._source = await open_table(
                config.path,
                OpenRequest(
                    stores=self._stores,
                    changes=self.changes,
                    allowed_paths=config.allowed_paths,
                    identity=config.pairing_columns,
                    on_warning=warn,
                    options=config.options_of_format(),
                    ledger=None if config.ledger is None else LedgerPlace(config.ledger),
                ),
                config.format,
            )
        return self._source

    async def look(self, entry: Entry | None, limit: ReadLimit, *, once: bool) -> Step | None:
        """Plan its next rows; None when there are none, or it is in problem.

        Args:
            entry: Where the last batch left it, if one did in this life.
            limit: How much it may give.
            once: Whether it ends at the head that the first look found.
        """
        self.wakeup.is_rung = False
        seen = self.wakeup.begin_poll()
        try:
            if seen.is_woken or seen.version is not None:
                (await self.source()).hear(seen.version)
            step = await self._planned(entry, limit, once=once)
        except TailerdError as error:
            self._failed(error, once=once)
            return None
        except Exception as error:  # noqa: BLE001 - told as this table's; the others go on
            said = BugError(f"The table cannot be planned: {error!r}.", remedy="Please report it.")
            self._failed(said, once=once)
            return None
        self.wakeup.end_poll(seen, is_news=step is not None and step.begin != step.end)
        self.problem = None
        self._attempt = 0
        self._is_more = step is not None
        return step

    async def formats(self, tasks: Sequence[ChangeTask], table_id: str) -> GivenFormats | None:
        """Return what makes the records of tasks, where a registry has their schemas.

        Args:
            tasks: Of one batch.
            table_id: Of tasks that say none.

        Raises:
            TailerdError: The registry cannot be asked, or refuses.
        """
        kafka = self.member.kafka
        if kafka is None or not kafka.has_schemas:
            return None
        if self._formats is None:
            self._formats = DriverFormats(kafka, self.member.name)
        return await asyncio.to_thread(self._formats.of_tasks, tasks, table_id)

    async def forget_before(self, offset: Offset) -> None:
        """Let caches forget what is delivered."""
        if self._source is not None:
            await self._source.commit(offset)

    async def _planned(self, entry: Entry | None, limit: ReadLimit, *, once: bool) -> Step | None:
        source = await self.source()
        is_new = entry is None
        if entry is None:
            begin = self.member.begin or await source.initial_offset(self.member.config.start)
        else:
            begin = stands_at(entry, self._hold)
            check_continues(begin, entry.changes, self.changes)
        if once and self._final is None:
            self._final = await source.initial_offset("latest")
        end = await source.latest_offset(begin, limit)
        end = clamped(end, start=begin, end=self._final)
        await self._measure(source, begin)
        if end == begin:
            # The first offset is kept even without rows: `latest` must not mean later once more.
            return Step(begin=begin, end=end, tasks=()) if is_new else None
        return Step(begin=begin, end=end, tasks=tuple(await tasks_between(source, begin, end)))

    async def _measure(self, source: ChangeSource, begin: Offset) -> None:
        backlog = await source.backlog(begin)
        self.standing = Standing(
            version=begin.version,
            head_version=backlog.head_version,
            versions=backlog.versions,
            oldest_ms=backlog.oldest_undelivered_timestamp_ms if backlog.versions else None,
            retention_seconds=backlog.retention_seconds,
            delivered_version=whole_before(source, begin),
        )

    def _failed(self, error: TailerdError, *, once: bool) -> None:
        most = self.member.config.max_attempts or (ATTEMPTS_ONCE if once else None)
        wait: float | None = None
        if error.retryable and (most is None or self._attempt < most):
            wait = Backoff().wait_seconds(self._attempt, random.Random())
            self._retry_at = time.monotonic() + wait
            # What was seen before the error may be what was wrong.
            self._source = None
        self._attempt += 1
        self._is_more = True
        self.problem = Problem.of(error, self._attempt, wait)
