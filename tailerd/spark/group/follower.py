"""All tables of a group in the source's one process: who gives how much to the next batch.

Tables are asked in turn, beginning behind the last one that was; each may give as much as its own
limits and an equal share of what the batch has left for those that still wait. So what small
tables leave goes to the large ones, and nobody waits longer than one round. A table that fails
keeps its offset and is tried again by itself.

Nothing is polled here: a table is looked at when its wakeup has rung, when it gave rows before, or
when its wait after an error is over.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tailerd.changefeed.change_task import ChangeTask
from tailerd.changefeed.limits import ReadLimit
from tailerd.clock import SystemClock
from tailerd.errors import BugError, TailerdError
from tailerd.formats.detect import commit_folder, presumed_format
from tailerd.registry import is_remote
from tailerd.spark.change_range import tasks_between
from tailerd.spark.group.assignments import Assignments
from tailerd.spark.group.followed_member import FollowedMember, Step
from tailerd.spark.group.group_offset import Entry, GroupOffset
from tailerd.spark.group.members import MEMBERS_FILE, Members
from tailerd.spark.group.quarantine import read_holds
from tailerd.spark.group.record_partitions import TableRows
from tailerd.spark.group.report import SourceReport
from tailerd.spark.spark_offset import check_repeats
from tailerd.spark.table_source import check_listening
from tailerd.storage.stores import Stores
from tailerd.telemetry import Telemetry
from tailerd.watchers.opening import WatchedFolder, open_watchers
from tailerd.watchers.wakeups import WakeupRegistry

WAIT_SECONDS = 1.0
"""How long an idle look waits for a commit before it answers that nothing is new."""

BATCH_LIMIT = ReadLimit()
"""How much one batch admits of all tables together: as much as of one by default."""

_LOOKS_AT_ONCE = 8


class GroupFollower:
    """The tables of one group. Use it from one event loop."""

    def __init__(
        self, folder: Path, hints: Path | None = None, stores: Stores | None = None
    ) -> None:
        """Take the group's folder; nothing is read yet.

        Args:
            hints: Where the daemon leaves hints of tables in buckets.
            stores: How tables are reached; by default as the environment says.
        """
        self._folder = folder
        self._hints = hints
        self._stores = stores or Stores()
        self._holds = read_holds(folder)
        self._rung = asyncio.Event()
        self._board = WakeupRegistry()
        self._listening: asyncio.Task[None] | None = None
        self._members = Members(number=-1)
        self._seen: tuple[int, int] | None = None
        self._tables: dict[str, FollowedMember] = {}
        self._turn = ""
        self._planned: tuple[int, dict[str, Step]] = (-1, {})
        self._reported = SourceReport()
        self.is_once = False

    async def latest(self, start: GroupOffset) -> GroupOffset:
        """Return the end of the next batch; `start` itself when nothing is new for a moment.

        Raises:
            OffsetError, StorageError: The group's own files cannot be read.
        """
        await self._take_members()
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            self._rung.clear()
            steps = await self._round(start)
            self._report()
            if steps:
                return self._end(start, steps)
            wait = self._patience(deadline)
            if wait <= 0:
                return start
            try:
                async with asyncio.timeout(wait):
                    await self._rung.wait()
            except TimeoutError:
                if self._listening is not None:
                    check_listening(self._listening)

    async def rows(self, start: GroupOffset, end: GroupOffset) -> list[TableRows]:
        """Return what each table gives to a batch that `latest` has answered, now or long ago."""
        if end.number == start.number:
            return []
        if end.number != start.number + 1:
            raise BugError(f"Spark asks for the batches {start.number} to {end.number} in one.")
        if self._seen is None:
            await self._take_members()
        number, steps = self._planned
        return [
            await self._rows(name, end, steps.get(name) if number == end.number else None)
            for name in end.begins
            if not (self._is_held(name, end) or self._is_past(name, end))
        ]

    async def commit(self, end: GroupOffset) -> None:
        """Hear that everything before `end` is delivered."""
        for name in end.begins:
            if (table := self._tables.get(name)) is not None:
                await table.forget_before(end.tables[name].offset)

    async def aclose(self) -> None:
        """Stop listening."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
            self._listening = None

    def _end(self, start: GroupOffset, steps: dict[str, Step]) -> GroupOffset:
        number = start.number + 1
        self._planned = number, steps
        return start.next(
            {
                name: (
                    step.begin,
                    Entry(
                        offset=step.end,
                        generation=self._tables[name].member.generation,
                        moved=number,
                        changes=self._tables[name].changes.value,
                    ),
                )
                for name, step in steps.items()
            }
        )

    async def _round(self, start: GroupOffset) -> dict[str, Step]:
        """Ask every ready table once, in turn, until the batch is full."""
        ready = [name for name in self._in_turn() if self._tables[name].is_ready]
        files, size = BATCH_LIMIT.max_files, BATCH_LIMIT.max_bytes
        steps: dict[str, Step] = {}
        for at in range(0, len(ready), _LOOKS_AT_ONCE):
            some = ready[at : at + _LOOKS_AT_ONCE]
            if files <= 0 or size <= 0:
                break
            waiting = len(ready) - at
            share = ReadLimit(max_files=-(-files // waiting), max_bytes=-(-size // waiting))
            found = await asyncio.gather(*(self._look(name, start, share) for name in some))
            self._turn = some[-1]
            for name, step in zip(some, found, strict=True):
                if step is not None:
                    steps[name] = step
                    files -= len(step.tasks)
                    size -= sum(task.size_bytes for task in step.tasks)
        return steps

    def _in_turn(self) -> list[str]:
        names = list(self._tables)
        behind = names.index(self._turn) + 1 if self._turn in self._tables else 0
        return names[behind:] + names[:behind]

    async def _look(self, name: str, start: GroupOffset, share: ReadLimit) -> Step | None:
        table = self._tables[name]
        entry = start.tables.get(name)
        if entry is not None and entry.generation != table.member.generation:
            entry = None
        own = table.member.limit
        limit = ReadLimit(
            max_files=min(own.max_files, share.max_files),
            max_bytes=min(own.max_bytes, share.max_bytes),
        )
        return await table.look(entry, limit, once=self.is_once)

    def _patience(self, deadline: float) -> float:
        """Return how long to wait for a wakeup; 0 to answer that nothing is new."""
        retries = [table.seconds_to_retry for table in self._tables.values()]
        waits = [wait for wait in retries if wait is not None]
        if self.is_once:
            # A query that ends when nothing is new must not end before the last try.
            return min(waits, default=0.0)
        return min([deadline - time.monotonic(), *(max(wait, 0.001) for wait in waits)])

    def _is_held(self, name: str, end: GroupOffset) -> bool:
        hold = self._holds.get(name)
        return hold is not None and hold.counts(end.tables[name])

    def _is_past(self, name: str, end: GroupOffset) -> bool:
        """Tell whether the table has begun another life, before the batch was done.

        That life may be in another group, which begins where this one had delivered it up to.
        """
        table, generation = self._tables.get(name), end.tables[name].generation
        if table is not None and not table.member.is_leaving:
            return table.member.generation > generation
        found = Assignments.around(self._folder).find(name)
        return found is not None and found.generation > generation

    async def _rows(self, name: str, end: GroupOffset, step: Step | None) -> TableRows:
        table = self._tables.get(name)
        if table is None:
            raise BugError(
                f"Spark repeats a batch with rows of {name}, which is no longer known.",
                remedy=f"{MEMBERS_FILE} in {self._folder} names no such table.",
            )
        entry, kafka = end.tables[name], table.member.kafka
        table_id = entry.offset.table_id
        begin = end.begins[name] if step is None else step.begin
        planned = TableRows(name=name, table_id=table_id, kafka=kafka)
        try:
            if step is not None:
                tasks: Sequence[ChangeTask] = step.tasks
            else:
                # Not planned by this process: a repetition. Its errors are those of its rows now.
                check_repeats(begin, entry.offset, entry.changes, table.changes)
                tasks = await tasks_between(await table.source(), begin, entry.offset)
            formats = await table.formats(tasks, table_id)
        except TailerdError as error:
            return replace(planned, error=error)
        return replace(planned, tasks=tasks, formats=formats)

    async def _take_members(self) -> None:
        """Follow the tables that the file names, if it was replaced."""
        status = (self._folder / MEMBERS_FILE).stat()
        seen = status.st_mtime_ns, status.st_ino
        if seen == self._seen:
            return
        members = Members.read(self._folder)
        self._seen = seen
        if members.number == self._members.number:
            return
        self._members = members
        known = self._tables
        self._tables = {}
        for member in members.tables:
            table = known.get(member.name)
            if table is None or table.member != member:
                hold = self._holds.get(member.name)
                table = FollowedMember(member, hold, self._rung, self._stores)
            self._tables[member.name] = table
        await self._listen()

    async def _listen(self) -> None:
        await self.aclose()
        self._board = WakeupRegistry()
        watched = []
        for table in self._tables.values():
            config = table.member.config
            if table.member.is_leaving:
                continue
            folder = commit_folder(config.path, config.format)
            self._board.subscribe(folder, table.wakeup)
            # Commits between the old watch and the new one.
            table.wakeup.ring()
            watched.append(
                WatchedFolder(
                    folder=folder,
                    version_of=presumed_format(config.path, config.format).names.version_of,
                    is_remote=is_remote(config.path),
                    poll_interval=config.poll_interval,
                    hints="" if self._hints is None else str(self._hints / table.member.name),
                )
            )
        watchers = open_watchers(
            watched,
            None,
            finished=self._stores.local.finished,
            telemetry=Telemetry(),
            clock=SystemClock(),
        )
        self._listening = asyncio.get_running_loop().create_task(self._board.run(watchers))

    def _report(self) -> None:
        tables = self._tables
        report = SourceReport(
            pid=os.getpid(),
            members=self._members.number,
            standings={n: t.standing for n, t in tables.items() if t.standing is not None},
            problems={n: t.problem for n, t in tables.items() if t.problem is not None},
        )
        if report != self._reported:
            report.write(self._folder)
            self._reported = report
