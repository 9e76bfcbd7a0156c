"""How long a delivery takes while the checkpoint of another, large table is written."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml

from tests.benchmarks.big_tables import add_of, big_checkpoint, clone, wide_table
from tests.benchmarks.conftest import Report
from tests.benchmarks.many_tables import Lake, at_rest, following, quantile
from tests.benchmarks.measuring import Row, milliseconds

pytestmark = [pytest.mark.benchmark, pytest.mark.slow]

FILES = 300_000
CHECKPOINTS = 4
PAUSE_SECONDS = 0.02


def maintained(lake: Lake, table: Path) -> None:
    config = yaml.safe_load(lake.config.read_text())
    policy = {"checkpoint": {"every_commits": 1, "min_interval": "0s"}}
    config["tables"] = {"big": {"path": str(table), "maintenance": policy}}
    lake.config.write_text(yaml.safe_dump(config))


def delivery_seconds(lake: Lake) -> float:
    time.sleep(PAUSE_SECONDS)
    return lake.seconds_to_delivery(0, lake.commit(0))


def test_deliveries_while_a_checkpoint_is_written(tmp_path: Path, report: Report) -> None:
    lake = Lake(tmp_path, 1)
    big = wide_table(clone(big_checkpoint(FILES), tmp_path / "big"))
    big.version = max(int(path.stem) for path in big.log.glob("*.json"))
    maintained(lake, big.folder)
    during: list[float] = []
    with following(lake) as process:
        at_rest(process, 2)
        before = [delivery_seconds(lake) for _ in range(150)]
        for number in range(CHECKPOINTS):
            big.commit(add_of(3 * FILES + number))
            written = big.log / f"{big.version:020}.checkpoint.parquet"
            while not written.exists():
                during.append(delivery_seconds(lake))
    rows = []
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        alone, beside = quantile(before, share), quantile(during, share)
        ratio = beside / alone
        # What the processors share besides interpreters: caches, memory, and two of them.
        goal = "<= 1.5x" if name == "p50" else ""
        work = f"delivery during a checkpoint of 300,000 files ({len(during)}): {name}"
        is_met = not goal or ratio <= 1.5
        rows.append(Row(work, milliseconds(beside), milliseconds(alone), ratio, goal, is_met))
    report(rows)
