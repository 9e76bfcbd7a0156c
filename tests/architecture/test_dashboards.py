"""The dashboard and the alert rules ask for metrics there are, and say what can be loaded."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tailerd.telemetry import events
from tailerd.telemetry.metrics import Metrics
from tailerd.telemetry.pipeline_metrics import STATES
from tests.doubles.sim_clock import SimClock
from tests.telemetry.test_table_gauges import MEASURED, saved
from tests.telemetry.test_telemetry import DELIVERED, FAILED, STARTED, backlog

CONFIG = Path(__file__).resolve().parents[2] / "config"
NAME = re.compile(r"\b(?:tailerd|process|python)_[a-z_]+")
SELECTOR = re.compile(r"\b((?:tailerd|process)_[a-z_]+)\{([^}]*)\}")


def real_samples() -> dict[str, set[str]]:
    """Return the labels of every sample a daemon gives, by its name."""
    metrics = Metrics(SimClock())
    metrics.watch_memory(1, lambda: 0)
    for event in (
        STARTED,
        backlog(1, 1),
        MEASURED,
        saved(1),
        DELIVERED,
        FAILED,
        events.CommitsDelivered(table="orders", engine="arrow", commits={"cdc": 1}),
        events.SnapshotAdvanced(
            table="orders", start_version=1, end_version=1, duration_seconds=0.1
        ),
        events.StorageRequested(operation="get"),
        events.GapMet(
            table="orders",
            engine="arrow",
            start_version=1,
            end_version=2,
            error_code="missing_version",
            error="x",
        ),
        events.CommitSkipped(
            table="orders",
            engine="arrow",
            version=1,
            error_code="missing_data_file",
            path="x",
            error="x",
        ),
        events.DeadLettersStored(
            table="orders",
            sink="kafka",
            error_code="record_too_large",
            topic="x",
            records=1,
        ),
        events.NotificationsFailed(path="q", error_code="queue_missing", attempt=1, error="x"),
        *maintenance_events(),
    ):
        metrics.handle(event)
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def maintenance_events() -> Iterator[events.Event]:
    for job in ("checkpoint", "log_compaction", "checksum", "cleanup"):
        yield events.LogMaintained(
            table="orders",
            job=job,
            version=1,
            result="written",
            files=1,
            bytes=1,
            duration_seconds=0.1,
            reason="x",
            summary="x",
        )
    yield events.MaintenanceRefused(table="orders", error_code="unsupported_feature", error="x")
    yield events.MaintenanceYielded(table="orders", reason="x")


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CONFIG / "grafana-dashboard.json").read_text())
    return found


def rules() -> list[dict[str, Any]]:
    content = yaml.safe_load((CONFIG / "alerts.yaml").read_text())
    return [rule for group in content["groups"] for rule in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    """Yield (where, expression) of both files."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]
    for rule in rules():
        yield rule["alert"], rule["expr"]


@pytest.mark.parametrize(("where", "expression"), list(expressions()), ids=lambda text: text[:40])
def test_every_metric_that_is_asked_for_exists_with_its_labels(where: str, expression: str) -> None:
    samples = real_samples()
    names = NAME.findall(expression)
    assert names, f"{where} asks for no metric of ours"
    for name in names:
        assert name in samples, f"{where} asks for {name}, which there is not"
    for name, selector in SELECTOR.findall(expression):
        labels = {part.partition("=")[0].strip() for part in selector.split(",") if part}
        assert labels <= samples[name]
    for grouping in re.findall(r"\bby \(([^)]*)\)", expression):
        labels = {label.strip() for label in grouping.split(",")}
        assert labels <= set().union(*(samples[name] for name in names))


def test_alerts_cover_what_an_operator_must_hear_of() -> None:
    requested = {name for rule in rules() for name in NAME.findall(rule["expr"])}
    assert {
        "tailerd_pipeline_state",
        "tailerd_lag_versions",
        "tailerd_retention_headroom_seconds",
        "tailerd_last_progress_timestamp_seconds",
        "tailerd_log_commits_since_checkpoint",
        "tailerd_maintenance_refused",
    } <= requested
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}


def test_states_are_numbered_as_the_metric_numbers_them() -> None:
    text = (CONFIG / "alerts.yaml").read_text()
    stated = re.findall(r"(\d) ([a-z]+)", text.splitlines()[1])
    assert {name: int(code) for code, name in stated} == STATES
    [state] = [panel for panel in dashboard()["panels"] if panel["title"] == "State"]
    [mapping] = state["fieldConfig"]["defaults"]["mappings"]
    shown = {option["text"]: int(code) for code, option in mapping["options"].items()}
    assert shown == STATES


def test_panels_have_their_own_position_and_number() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        location = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(location["x"], location["x"] + location["w"])
            for y in range(location["y"], location["y"] + location["h"])
        }
        assert location["x"] + location["w"] <= 24
        assert not cells & taken
        taken |= cells


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_itself_takes_the_alert_rules() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", str(CONFIG / "alerts.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
