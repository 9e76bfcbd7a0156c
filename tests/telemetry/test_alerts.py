"""Alerts of the page are those of `config/alerts.yaml`, and hold for as long."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tailerd.telemetry import events
from tailerd.telemetry.alerts import EVALUATE_SECONDS, RULES, AlertBoard
from tailerd.telemetry.status import StatusBoard
from tests.doubles.sim_clock import SimClock
from tests.telemetry.test_telemetry import FAILED, STARTED, backlog

ALERTS = Path(__file__).resolve().parents[2] / "config/alerts.yaml"
TROUBLE = {"part": "notifications", "error": {"code": "queue_missing", "message": "Gone."}}


def minutes(text: str | None) -> int:
    number, unit = re.fullmatch(r"(\d+)(m|h)", text or "0m").groups()  # type: ignore[union-attr]
    return int(number) * (60 if unit == "h" else 1)


def test_rules_have_the_names_severities_and_times_of_the_file() -> None:
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    assert [(rule.name, rule.severity, rule.minutes) for rule in RULES] == [
        (rule["alert"], rule["labels"]["severity"], minutes(rule.get("for"))) for rule in rules
    ]


class Watched:
    """A table, and the alerts about it."""

    def __init__(self) -> None:
        self.clock = SimClock()
        self.status = StatusBoard([("orders", "arrow")], self.clock)
        self.board = AlertBoard(self.clock)
        self.problems: list[dict[str, Any]] = []
        self.tell(STARTED, backlog(0, None))

    def tell(self, *reported: events.Event) -> None:
        for event in reported:
            self.status.handle(event)
            self.board.handle(event)

    async def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / EVALUATE_SECONDS)):
            await self.clock.advance(EVALUATE_SECONDS)
            self.check()

    def check(self) -> None:
        table = self.status.table_json("orders")
        assert table is not None
        self.board.evaluate([table], self.problems)

    @property
    def names(self) -> list[tuple[str, bool]]:
        return [(alert.name, alert.is_pending) for alert in self.board.alerts()]


async def test_a_table_that_is_well_has_no_alert() -> None:
    watched = Watched()
    await watched.wait(3600)
    assert watched.names == []


async def test_a_rule_fires_after_its_time_and_ends_with_its_cause() -> None:
    watched = Watched()
    watched.tell(FAILED)
    await watched.wait(30)
    assert watched.names == [("TailerdPipelineFailed", True)]
    await watched.wait(60)
    assert watched.names == [("TailerdPipelineFailed", False)]
    [alert] = watched.board.alerts()
    assert (alert.table, alert.severity, alert.for_seconds) == ("orders", "critical", 75.0)
    watched.tell(STARTED, backlog(0, None))
    await watched.wait(15)
    assert watched.names == []


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (
            events.GapMet(
                table="orders",
                engine="arrow",
                start_version=1,
                end_version=2,
                error_code="missing_version",
                error="Gone.",
            ),
            "TailerdGap",
        ),
        (
            events.CommitSkipped(
                table="orders", engine="arrow", version=1, error_code="x", path="/p", error="Bad."
            ),
            "TailerdCommitsSkipped",
        ),
        (
            events.DeadLettersStored(
                table="orders", sink="kafka", error_code="too_large", topic="dead", records=1
            ),
            "TailerdDeadLetters",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_happened_is_told_for_an_hour(event: events.Event, name: str) -> None:
    watched = Watched()
    watched.tell(event)
    await watched.wait(15)
    assert watched.names == [(name, False)]
    await watched.wait(3600)
    assert watched.names == []


async def test_a_lag_that_grows_is_told_from_one_that_shrinks() -> None:
    watched = Watched()
    began_ms = watched.clock.now_ms()
    for versions in range(100, 250):
        watched.tell(backlog(versions, began_ms - 700_000))
        await watched.wait(15)
    assert ("TailerdLagGrowing", False) in watched.names
    for versions in range(250, 100, -1):
        watched.tell(backlog(versions, began_ms - 700_000))
        await watched.wait(15)
    assert "TailerdLagGrowing" not in [name for name, _ in watched.names]
    assert ("TailerdNoProgress", False) in watched.names


async def test_problems_beside_the_tables_are_alerts_too() -> None:
    watched = Watched()
    watched.problems = [TROUBLE]
    await watched.wait(16 * 60)
    assert watched.names == [("TailerdNotificationsFailing", False)]
    ended = events.GrowthUnavailable(
        table="orders", error_code="maintenance_process", error="Killed."
    )
    watched.tell(*[ended] * 4)
    await watched.wait(15)
    assert ("TailerdMaintenanceJobsKilled", False) in watched.names
