"""Pipelines that come, go and change while the others run on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tailerd.changefeed.offset import Offset, Version
from tailerd.errors import MissingExtraError, TableError, TailerdError, UsageError
from tailerd.pipeline.pipeline_manager import Member, PipelineManager, PipelineRunner
from tailerd.pipeline.reset import Reset
from tailerd.state.pauses import Pauses
from tailerd.telemetry import Telemetry, events
from tests.doubles.owned_state import owned_state
from tests.waiting import PATIENCE_SECONDS, comes


class FakeRunner:
    """Runs until it is stopped, or as long as it is told."""

    def __init__(self, *, is_stubborn: bool = False, error: TailerdError | None = None) -> None:
        self.error: TailerdError | None = None
        self.is_running = False
        self.was_cancelled = False
        self._is_stubborn = is_stubborn
        self._fails_with = error
        self._stop = asyncio.Event()

    def stop(self) -> None:
        if not self._is_stubborn:
            self._stop.set()

    async def run(self) -> None:
        self.is_running = True
        try:
            if self._fails_with is None:
                await self._stop.wait()
            self.error = self._fails_with
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        finally:
            self.is_running = False


@dataclass
class Tables:
    """Members with every runner they built."""

    runners: dict[str, list[FakeRunner]] = field(default_factory=dict)
    resets: list[str] = field(default_factory=list)
    reported: list[events.Event] = field(default_factory=list)

    def member(
        self, name: str, settings: object = 1, *, can_reset: bool = True, **options: object
    ) -> Member:
        def build() -> FakeRunner:
            runner = FakeRunner(**options)  # type: ignore[arg-type]
            self.runners.setdefault(name, []).append(runner)
            return runner

        async def reset(to: str) -> Reset:
            assert not self.runners[name][-1].is_running
            self.resets.append(to)
            if to == "nowhere":
                raise UsageError("no such place")
            return Reset(offset=Offset(table_id="t", version=Version(7)))

        return Member(
            settings=settings,
            engine="arrow",
            path=f"/lake/{name}",
            build=build,
            reset=reset if can_reset else None,
        )

    def manager(self, *, patience_seconds: float = 5, **options: object) -> PipelineManager:
        telemetry = Telemetry([self.reported.append])
        return PipelineManager(telemetry, patience_seconds=patience_seconds, **options)  # type: ignore[arg-type]

    def running(self, name: str) -> bool:
        return self.runners[name][-1].is_running

    def started(self, name: str) -> int:
        return len(self.runners.get(name, []))


@asynccontextmanager
async def running(manager: PipelineManager, members: dict[str, Member]) -> AsyncIterator[None]:
    task = asyncio.create_task(manager.run(members))
    await asyncio.sleep(0.01)
    try:
        yield
    finally:
        manager.stop()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await task


async def test_tables_are_added_removed_and_altered_without_touching_the_others() -> None:
    tables = Tables()
    manager = tables.manager()
    first = {name: tables.member(name) for name in ("same", "altered", "gone")}
    async with running(manager, first):
        await manager.set_members(
            {
                "same": tables.member("same"),
                "altered": tables.member("altered", settings=2),
                "new": tables.member("new"),
            },
            reason="as configured",
        )
        await comes(lambda: tables.started("altered") == 2 and tables.started("new") == 1)
        assert manager.names == ("same", "altered", "new")
        assert (tables.started("same"), tables.running("same")) == (1, True)
        assert not tables.running("gone")
        assert not tables.runners["altered"][0].is_running
        assert tables.running("altered")
    (removed,) = [e for e in tables.reported if isinstance(e, events.TableRemoved)]
    assert (removed.table, removed.reason) == ("gone", "as configured")
    assert [e.table for e in tables.reported if isinstance(e, events.TableAltered)] == ["altered"]


async def test_a_removed_pipeline_that_does_not_end_is_cancelled_after_its_time() -> None:
    tables = Tables()
    manager = tables.manager(patience_seconds=0.02)
    async with running(
        manager, {"slow": tables.member("slow", is_stubborn=True), "other": tables.member("other")}
    ):
        await manager.set_members({"other": tables.member("other")})
        assert tables.runners["slow"][0].was_cancelled
        assert tables.running("other")


async def test_a_paused_pipeline_rests_until_it_is_resumed() -> None:
    tables = Tables()
    manager = tables.manager()
    async with running(manager, {"a": tables.member("a"), "b": tables.member("b")}):
        await manager.pause("a")
        await manager.pause("a")
        assert (tables.running("a"), tables.running("b"), manager.is_paused("a")) == (
            False,
            True,
            True,
        )
        await manager.resume("a")
        await comes(lambda: tables.started("a") == 2 and tables.running("a"))
        assert not manager.is_paused("a")
    assert len([e for e in tables.reported if isinstance(e, events.PipelinePaused)]) == 1


async def load_pauses(folder: Path) -> Pauses:
    pauses = owned_state(folder).pauses
    await pauses.load()
    return pauses


async def test_a_pause_outlives_the_daemon(tmp_path: Path) -> None:
    for expected in (1, 1):
        tables = Tables()
        manager = tables.manager(pauses=await load_pauses(tmp_path))
        async with running(manager, {"a": tables.member("a"), "b": tables.member("b")}):
            await manager.pause("a", "ann")
            assert tables.started("b") == expected
    tables = Tables()
    manager = tables.manager(pauses=await load_pauses(tmp_path))
    async with running(manager, {"a": tables.member("a")}):
        assert tables.started("a") == 0
        paused = [e for e in tables.reported if isinstance(e, events.PipelinePaused)]
        assert [e.by for e in paused] == ["ann"]
        await manager.resume("a")
        await comes(lambda: tables.started("a") == 1)


async def test_resume_tries_a_failed_pipeline_again() -> None:
    tables = Tables()
    manager = tables.manager()
    members = {
        "bad": tables.member("bad", error=TableError("broken")),
        "good": tables.member("good"),
    }
    async with running(manager, members):
        await comes(lambda: len(manager.errors) == 1)
        await manager.resume("bad")
        await comes(lambda: tables.started("bad") == 2)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (MissingExtraError("psycopg is missing"), "missing_extra"),
        (ValueError("a fault of ours"), "bug"),
    ],
)
async def test_a_pipeline_that_cannot_be_made_fails_and_the_others_run(
    failure: Exception, code: str
) -> None:
    tables = Tables()
    manager = tables.manager()
    repaired = tables.member("bad").build
    build = [failure]

    def make() -> PipelineRunner:
        if build:
            raise build[0]
        return repaired()

    members = {
        "bad": replace(tables.member("bad"), build=make),
        "good": tables.member("good"),
    }
    async with running(manager, members):
        await comes(lambda: len(manager.errors) == 1)
        assert manager.errors[0].code == code
        assert tables.running("good")
        [failed] = [each for each in tables.reported if isinstance(each, events.PipelineFailed)]
        assert (failed.table, failed.error_code) == ("bad", code)
        build.clear()
        await manager.resume("bad")
        await comes(lambda: tables.running("bad"))


async def test_a_resume_as_a_pipeline_ends_leaves_the_next_its_bell() -> None:
    tables = Tables()
    wakeups: list[FakeRunner] = []
    plain = tables.member("a")

    def build() -> PipelineRunner:
        runner = plain.build()
        # As a pipeline does that is made for a table: the one before it rings no more.
        wakeups[:] = [tables.runners["a"][-1]]
        return runner

    manager = tables.manager(is_lasting=True)
    async with running(manager, {"a": replace(plain, build=build, ended=wakeups.clear)}):
        tables.runners["a"][0].stop()
        # The task has ended when this one begins, and nobody has been told yet.
        await asyncio.create_task(manager.resume("a"))
        await comes(lambda: tables.started("a") == 2 and tables.running("a"))
        assert wakeups == [tables.runners["a"][1]]
    assert wakeups == []


async def test_a_reset_happens_while_the_pipeline_rests_and_it_goes_on() -> None:
    tables = Tables()
    manager = tables.manager()
    async with running(manager, {"a": tables.member("a"), "b": tables.member("b")}):
        assert (await manager.reset("a", "snapshot")).offset.version == 7
        await comes(lambda: tables.started("a") == 2 and tables.running("a"))
        with pytest.raises(UsageError):
            await manager.reset("a", "nowhere")
        await comes(lambda: tables.started("a") == 3 and tables.running("a"))
        await manager.pause("a")
        await manager.reset("a", "latest")
        assert not tables.running("a")
        assert tables.started("b") == 1
    assert tables.resets == ["snapshot", "nowhere", "latest"]


async def test_a_pipeline_is_watched_while_it_is_paused_or_failed_and_at_no_other_time() -> None:
    tables = Tables()
    watched: list[str] = []

    async def idle() -> None:
        watched.append("begins")
        try:
            await asyncio.Event().wait()
        finally:
            watched.append("ends")

    manager = tables.manager(is_lasting=True)
    failing = replace(tables.member("b", error=TableError("broken")), idle=idle)
    async with running(manager, {"a": replace(tables.member("a"), idle=idle)}):
        assert watched == []
        await manager.pause("a")
        await comes(lambda: watched == ["begins"])
        await manager.reset("a", "latest")
        await comes(lambda: watched == ["begins", "ends", "begins"])
        await manager.resume("a")
        await comes(lambda: watched[3:] == ["ends"] and tables.running("a"))
        await manager.set_members({"b": failing})
        await comes(lambda: watched[4:] == ["begins"])
        await manager.resume("b")
        await comes(lambda: watched[5:] == ["ends", "begins"])
    assert watched[7:] == ["ends"]


@pytest.mark.parametrize("command", ["pause", "resume", "reset"])
async def test_a_table_that_goes_while_a_command_waits_for_it_stays_gone(
    tmp_path: Path, command: str
) -> None:
    tables = Tables()
    pauses = await load_pauses(tmp_path)
    manager = tables.manager(patience_seconds=0.05, pauses=pauses)
    members = {"a": tables.member("a", is_stubborn=True), "b": tables.member("b")}
    async with running(manager, members):
        removal = asyncio.create_task(manager.set_members({"b": members["b"]}))
        await asyncio.sleep(0.01)
        with pytest.raises(UsageError, match="'a' was removed meanwhile"):
            await (
                manager.reset("a", "latest")
                if command == "reset"
                else getattr(manager, command)("a")
            )
        await removal
        assert (manager.names, tables.started("a"), tables.resets) == (("b",), 1, [])
        assert not pauses.is_paused("a")
        await manager.set_members({"a": tables.member("a"), "b": members["b"]})
        await comes(lambda: tables.started("a") == 2 and tables.running("a"))


async def test_what_cannot_be_done_says_why() -> None:
    tables = Tables()
    manager = tables.manager()
    async with running(manager, {"orders": tables.member("orders", can_reset=False)}):
        with pytest.raises(UsageError, match="Did you mean `orders`"):
            await manager.pause("ordrs")
        assert not manager.can_reset("orders")
        with pytest.raises(UsageError, match="kept by its engine"):
            await manager.reset("orders", "latest")


async def test_a_fleet_ends_when_all_have_ended_unless_one_is_held() -> None:
    tables = Tables()
    manager = tables.manager()
    members = {name: tables.member(name) for name in ("a", "b")}
    task = asyncio.create_task(manager.run(members))
    await comes(lambda: tables.started("b") == 1 and tables.running("b"))
    await manager.pause("a")
    tables.runners["b"][0].stop()
    await asyncio.sleep(0.02)
    assert not task.done()
    await manager.resume("a")
    await comes(lambda: tables.running("a"))
    tables.runners["a"][1].stop()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await task


async def test_a_lasting_fleet_waits_for_members_to_come() -> None:
    tables = Tables()
    manager = tables.manager(is_lasting=True)
    async with running(manager, {}):
        await manager.set_members({"late": tables.member("late")})
        await comes(lambda: tables.running("late"))


async def test_nothing_is_started_once_the_fleet_stops() -> None:
    tables = Tables()
    manager = tables.manager()
    async with running(manager, {"a": tables.member("a")}):
        manager.stop()
        await manager.set_members({"a": tables.member("a", settings=2), "b": tables.member("b")})
        await manager.resume("a") if "a" in manager.names else None
    assert tables.started("b") == 0
    assert tables.started("a") == 1
