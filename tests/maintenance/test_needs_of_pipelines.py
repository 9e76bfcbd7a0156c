"""What the keeper takes pipelines to need: only what they told since they last began."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailerd.clock import SystemClock
from tailerd.config import Config
from tailerd.daemon.offsets import open_state, reset_offset
from tailerd.formats.maintenance import RetentionFloor
from tailerd.maintenance.needs import PipelinePositions
from tailerd.telemetry import Telemetry, events
from tests.tables.builder import TableBuilder

A, B = str(Path(__file__).parent), str(Path(__file__).parents[1])
"""Two folders that are there, and are not the same."""


class Keeper:
    """The positions of pipelines, as their events report them."""

    def __init__(self) -> None:
        self.positions = PipelinePositions()
        self.telemetry = Telemetry([self.positions.handle])

    def deliver(self, **folders: str) -> None:
        self.positions.set_pipelines(folders)

    def tell(self, version: int, name: str = "orders") -> None:
        self.telemetry.emit(
            events.OffsetSaved(
                table=name, engine="arrow", version=version, offset="", duration_seconds=0.0
            )
        )

    def start(self, name: str = "orders") -> None:
        self.telemetry.emit(
            events.PipelineStarted(table=name, source="/a", sink="file", engine="arrow")
        )

    def alter(self, name: str = "orders") -> None:
        self.telemetry.emit(events.TableAltered(table=name, engine="arrow", path="/b"))

    def needs(self, folder: str = A) -> RetentionFloor:
        return self.positions.floor(folder, "")


@pytest.fixture
def keeper() -> Keeper:
    keeper = Keeper()
    keeper.deliver(orders=A)
    keeper.tell(40)
    assert keeper.needs().from_version == 40
    return keeper


def test_a_pipeline_that_starts_again_is_unknown_until_it_tells(keeper: Keeper) -> None:
    keeper.start()
    assert keeper.needs().obstacle
    keeper.tell(3)
    assert keeper.needs() == RetentionFloor(from_version=3)


def test_a_table_that_is_altered_is_unknown_until_it_tells(keeper: Keeper) -> None:
    keeper.alter()
    assert keeper.needs().obstacle


def test_a_name_that_means_another_folder_takes_nothing_over(keeper: Keeper) -> None:
    keeper.deliver(orders=B)
    assert keeper.needs(B).obstacle
    assert keeper.needs(A) == RetentionFloor()


def test_a_name_that_means_another_folder_may_tell_before_the_keeper_is_told(
    keeper: Keeper,
) -> None:
    # The manager alters a table, and its pipeline begins, before the keeper gets the new folders.
    keeper.alter()
    keeper.start()
    keeper.tell(7)
    keeper.deliver(orders=B)
    assert keeper.needs(B) == RetentionFloor(from_version=7)


def test_a_configuration_that_changes_something_else_forgets_nothing(keeper: Keeper) -> None:
    keeper.deliver(orders=A, others=B)
    assert keeper.needs() == RetentionFloor(from_version=40)
    assert keeper.needs(B).obstacle


def test_a_gap_moves_what_is_needed_before_the_pipeline_goes_on(keeper: Keeper) -> None:
    keeper.telemetry.emit(
        events.GapMet(
            table="orders",
            engine="arrow",
            start_version=40,
            end_version=2,
            error_code="table_recreated",
            error="",
        )
    )
    assert keeper.needs() == RetentionFloor(from_version=2)


@pytest.mark.parametrize("engine", ["arrow", "spark"])
async def test_a_reset_of_a_paused_pipeline_is_known_at_once(
    tmp_path: Path, keeper: Keeper, engine: str
) -> None:
    table = TableBuilder(tmp_path / "orders")
    for number in range(6):
        table.append([{"id": number}])
    sink = {"kind": "file", "path": str(tmp_path / "out")}
    settings: dict[str, Any] = {
        "engine": engine,
        "state": str(tmp_path / "state"),
        "tables": {"orders": {"path": str(table.folder), "sink": sink}},
    }
    config = Config(**settings)
    state = open_state(config, clock=SystemClock())
    reported: list[events.Event] = []
    telemetry = Telemetry([keeper.positions.handle, reported.append])
    async with state.hold():
        reset = await reset_offset(config, "orders", "3", state=state, telemetry=telemetry)
    assert keeper.needs() == RetentionFloor(from_version=3)
    [chosen] = [event for event in reported if isinstance(event, events.OffsetChosen)]
    assert (chosen.version, chosen.engine, chosen.is_resumed) == (3, engine, False)
    assert chosen.offset == reset.offset.to_json()
