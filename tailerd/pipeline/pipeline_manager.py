"""Runs the pipelines, by name: each can be added, removed, altered, paused, resumed or reset.

A command for one never affects another. A pipeline object runs once; a restart builds a new one,
which resumes at the saved offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn, Protocol

from tailerd.errors import BugError, TailerdError, UsageError
from tailerd.pipeline.reset import Reset
from tailerd.pipeline.unexpected import as_bug
from tailerd.registry import suggest_name
from tailerd.state.pauses import Pauses
from tailerd.telemetry import Telemetry, events


class PipelineRunner(Protocol):
    """A pipeline of either engine, run by a manager. `run` is called once.

    Attributes:
        error: Why it failed; None while it runs and when it ended well.
    """

    error: TailerdError | None

    async def run(self) -> None:
        """Run to the end; failures are in `error`."""
        ...

    def stop(self) -> None:
        """Ask `run` to finish pending deliveries and return."""
        ...


class _FailedRunner:
    """Stands for a pipeline that could not be made, such as one whose library is missing."""

    def __init__(self, name: str, engine: str, error: TailerdError, telemetry: Telemetry) -> None:
        self.error: TailerdError | None = error
        self._event = events.PipelineFailed(
            table=name, engine=engine, error_code=error.code, error=str(error)
        )
        self._telemetry = telemetry

    async def run(self) -> None:
        self._telemetry.emit(self._event)

    def stop(self) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """How one table is run.

    Attributes:
        settings: Its configuration; a change of it alters the table.
        engine, path: For telemetry.
        build: Makes a runner.
        reset: Moves the saved offset to a version, a time or a word such as `snapshot`; None where
            another component stores it.
        preview: Returns what `reset` would do.
        idle: Runs while the pipeline is paused or failed, until cancelled; raises nothing.
        ended: Called when a runner has ended, for whatever reason, unless its successor has been
            built by then.
    """

    settings: object
    engine: str
    path: str
    build: Callable[[], PipelineRunner]
    reset: Callable[[str], Awaitable[Reset]] | None = None
    preview: Callable[[str], Awaitable[Reset]] | None = None
    idle: Callable[[], Coroutine[None, None, None]] | None = None
    ended: Callable[[], None] | None = None


@dataclass(slots=True)
class _Slot:
    member: Member
    runner: PipelineRunner | None = None
    task: asyncio.Task[None] | None = None
    idle: asyncio.Task[None] | None = None
    is_paused: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class PipelineManager:
    """Runs members until all have ended, or without end while `is_lasting`.

    Errors of its commands: `UsageError` for a name that is not there.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        *,
        patience_seconds: float,
        is_lasting: bool = False,
        is_once: bool = False,
        pauses: Pauses | None = None,
    ) -> None:
        """Initialize.

        Args:
            telemetry: Receives added and removed tables.
            patience_seconds: How long a pipeline may finish deliveries in flight when it is
                removed, altered, paused or reset; then it is cancelled, and redelivers them.
            is_lasting: Whether it waits for new members when all have ended.
            is_once: Whether paused members are left out instead of waited for.
            pauses: Stores which members are paused, so that they are after a restart.
        """
        self._telemetry = telemetry
        self.patience_seconds = patience_seconds
        self.is_lasting = is_lasting
        self._is_once = is_once
        self._pauses = pauses
        self._slots: dict[str, _Slot] = {}
        self._group: asyncio.TaskGroup | None = None
        self._changed = asyncio.Event()
        self._commands = 0
        self._is_stopping = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all members, in the order they were added."""
        return tuple(self._slots)

    @property
    def errors(self) -> list[TailerdError]:
        """Why members failed, in the order of `names`; each error names its table."""
        found = []
        for name, slot in self._slots.items():
            error = None if slot.runner is None else slot.runner.error
            if error is not None:
                error.table = error.table or name
                found.append(error)
        return found

    def has_engine(self, engine: str) -> bool:
        """Return whether a member runs on this engine."""
        return any(slot.member.engine == engine for slot in self._slots.values())

    def is_paused(self, name: str) -> bool:
        """Return whether a pipeline is paused."""
        return self._slot(name).is_paused

    async def run(self, members: Mapping[str, Member]) -> None:
        """Run these, and members added meanwhile, to the end."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for name, member in members.items():
                self._add(name, member)
            while not self._is_over():
                self._changed.clear()
                await self._changed.wait()
            for slot in self._slots.values():
                _end_idle(slot)

    async def set_members(self, members: Mapping[str, Member], *, reason: str = "") -> None:
        """Remove, alter and add members to match `members`; unchanged ones keep running.

        Args:
            members: All that are to run.
            reason: Why the others are removed; for telemetry.
        """
        with _Busy(self):
            gone = [name for name in self._slots if name not in members]
            altered = [
                name
                for name, slot in self._slots.items()
                if name in members and slot.member.settings != members[name].settings
            ]
            async with asyncio.TaskGroup() as group:
                for name in gone:
                    group.create_task(self._remove(name, reason))
                for name in altered:
                    group.create_task(self._alter(name, members[name]))
            if self._is_stopping:
                return
            for name, member in members.items():
                if name not in self._slots:
                    self._add(name, member)

    async def pause(self, name: str, by: str = "") -> None:
        """Let a pipeline finish deliveries in flight and pause it until `resume`.

        Args:
            name: The pipeline.
            by: Who pauses it, for the status; empty if it is not known.

        Raises:
            StorageError: The pause cannot be saved; the pipeline keeps running.
        """
        async with self._lock(name) as slot:
            if not slot.is_paused:
                if self._pauses is not None:
                    await self._pauses.pause(name, by)
                slot.is_paused = True
                await self._end(slot)
                self._telemetry.emit(
                    events.PipelinePaused(table=name, engine=slot.member.engine, by=by)
                )
                self._start_idle(slot)

    async def resume(self, name: str) -> None:
        """Resume a paused pipeline, or restart a failed or ended one."""
        async with self._lock(name) as slot:
            if self._pauses is not None:
                await self._pauses.release(name)
            slot.is_paused = False
            if slot.task is None or slot.task.done():
                self._start(name, slot)

    def can_reset(self, name: str) -> bool:
        """Return whether `reset` can move a pipeline's offset."""
        return self._slot(name).member.reset is not None

    async def preview_reset(self, name: str, to: str) -> Reset:
        """Return what `reset` would do; the pipeline continues.

        Raises:
            UsageError: As `reset`.
            TailerdError: Of the table or the offset store.
        """
        preview = self._slot(name).member.preview
        return await (preview or self._refuse_reset(name))(to)

    async def reset(self, name: str, to: str) -> Reset:
        """Move a pipeline's offset and resume there, unless it is paused.

        Raises:
            UsageError: Its engine keeps the offset itself, or `to` is not a valid location.
            TailerdError: Of the table or the offset store; the pipeline resumes where it was.
        """
        with _Busy(self):
            async with self._lock(name) as slot:
                reset = slot.member.reset or self._refuse_reset(name)
                await self._end(slot)
                try:
                    return await reset(to)
                finally:
                    self._start_again(name, slot)

    def _refuse_reset(self, name: str) -> NoReturn:
        raise UsageError(
            f"The offset of {name} is kept by its engine, {self._slot(name).member.engine}.",
            remedy="Stop the daemon; `tailerd offsets reset` names the files to remove.",
        )

    def stop(self) -> None:
        """Ask every pipeline to finish pending deliveries; `run` returns when they have."""
        self._is_stopping = True
        for slot in self._slots.values():
            if slot.runner is not None:
                slot.runner.stop()
        self._changed.set()

    def cancel(self, engine: str | None = None) -> None:
        """Cancel every pipeline, or those of one engine; pending deliveries are repeated."""
        for slot in self._slots.values():
            if slot.task is not None and engine in (None, slot.member.engine):
                slot.task.cancel()

    def _slot(self, name: str) -> _Slot:
        if name not in self._slots:
            raise UsageError(f"There is no table {name!r}.", remedy=suggest_name(name, self._slots))
        return self._slots[name]

    @asynccontextmanager
    async def _lock(self, name: str) -> AsyncGenerator[_Slot, None]:
        """Lock a member's slot, after earlier commands for it have ended.

        Raises:
            UsageError: It was removed meanwhile; a runner in its slot could not be stopped.
        """
        slot = self._slot(name)
        async with slot.lock:
            if self._slots.get(name) is not slot:
                raise UsageError(
                    f"The table {name!r} was removed meanwhile.",
                    remedy="Where it is configured again, repeat the command.",
                )
            yield slot

    def _add(self, name: str, member: Member) -> None:
        slot = self._slots[name] = _Slot(member)
        self._telemetry.emit(events.TableAdded(table=name, engine=member.engine, path=member.path))
        if self._pauses is not None and self._pauses.is_paused(name):
            slot.is_paused = True
            by = self._pauses.paused_by(name)
            self._telemetry.emit(events.PipelinePaused(table=name, engine=member.engine, by=by))
        self._start_again(name, slot)

    async def _remove(self, name: str, reason: str) -> None:
        slot = self._slots[name]
        async with slot.lock:
            await self._end(slot)
            del self._slots[name]
            self._telemetry.emit(
                events.TableRemoved(
                    table=name, engine=slot.member.engine, path=slot.member.path, reason=reason
                )
            )

    async def _alter(self, name: str, member: Member) -> None:
        slot = self._slots[name]
        async with slot.lock:
            await self._end(slot)
            slot.member = member
            self._telemetry.emit(
                events.TableAltered(table=name, engine=member.engine, path=member.path)
            )
            self._start_again(name, slot)

    def _start_again(self, name: str, slot: _Slot) -> None:
        if slot.is_paused:
            self._start_idle(slot)
        else:
            self._start(name, slot)

    def _start_idle(self, slot: _Slot) -> None:
        if slot.member.idle is not None and self._group is not None and not self._is_once:
            _end_idle(slot)
            slot.idle = self._group.create_task(slot.member.idle())

    def _start(self, name: str, slot: _Slot) -> None:
        if self._is_stopping:
            return
        if self._group is None:
            raise BugError("Cannot start a pipeline before the manager runs.")
        _end_idle(slot)
        slot.runner = self._build(name, slot.member)
        slot.task = self._group.create_task(slot.runner.run(), name=f"pipeline {name}")
        slot.task.add_done_callback(partial(self._handle_end, slot, slot.member))

    def _build(self, name: str, member: Member) -> PipelineRunner:
        """Return a member's runner; one that fails at once if it cannot be made."""
        try:
            return member.build()
        except TailerdError as error:
            failed = error
        except Exception as error:  # noqa: BLE001 - one table's bug must not stop the others
            failed = as_bug(error)
        return _FailedRunner(name, member.engine, failed, self._telemetry)

    def _handle_end(self, slot: _Slot, member: Member, task: asyncio.Task[None]) -> None:
        # A resume may come between the end of a task and this callback.
        if member.ended is not None and slot.task is task:
            member.ended()
        is_failed = slot.runner is not None and slot.runner.error is not None
        if is_failed and slot.task is task and not self._is_stopping:
            self._start_idle(slot)
        self._changed.set()

    async def _end(self, slot: _Slot) -> None:
        """Stop the runner of a slot; cancel it if it has not ended after `patience_seconds`."""
        _end_idle(slot)
        if slot.runner is None or slot.task is None:
            return
        slot.runner.stop()
        _, late = await asyncio.wait({slot.task}, timeout=self.patience_seconds)
        if late:
            slot.task.cancel()
            await asyncio.wait(late)

    def _is_over(self) -> bool:
        if any(slot.task is not None and not slot.task.done() for slot in self._slots.values()):
            return False
        if self._is_stopping:
            return True
        is_held = not self._is_once and any(slot.is_paused for slot in self._slots.values())
        return not (self.is_lasting or is_held or self._commands)


def _end_idle(slot: _Slot) -> None:
    if slot.idle is not None:
        slot.idle.cancel()


class _Busy:
    """Keeps a manager from ending between the end of a runner and the start of the next."""

    def __init__(self, manager: PipelineManager) -> None:
        self._manager = manager

    def __enter__(self) -> None:
        self._manager._commands += 1

    def __exit__(self, *_: object) -> None:
        self._manager._commands -= 1
        self._manager._changed.set()
