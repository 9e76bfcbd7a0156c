"""`format("tailerd")` against Delta Spark's own source, in one session with local[2], warm.

Rows go to noop. Planning is what Spark's progress reports say of `latestOffset`, `getBatch` and
`queryPlanning`; both sides are asked for the same micro-batches. Of one commit the last of them is
nearly all Catalyst's, the same for both, and shown apart.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.benchmarks.big_tables import (
    big_checkpoint,
    change_feed,
    clone,
    linked_files,
    wide_feed,
    wide_table,
)
from tests.benchmarks.conftest import Report
from tests.benchmarks.measuring import Row, mebibytes, milliseconds, per_second, run_process
from tests.spark_session import require_java

pytestmark = [pytest.mark.benchmark, pytest.mark.slow, pytest.mark.spark]

MILLION = 1_000_000
COMMITS_WAITING = 20


def measured(program: str, *arguments: str | Path) -> dict[str, float]:
    """Run one of `spark_programs`."""
    require_java()
    text = f"import sys\nfrom tests.benchmarks.spark_programs import {program}\n"
    run = run_process(f"{text}result = {program}(*sys.argv[1:])", *arguments)
    result: dict[str, float] = run.result
    return result


def faster(work: str, run: dict[str, float], goal: float) -> list[Row]:
    """Rows per second of both, and CPU, which a busy machine disturbs less."""
    rows, ratio = int(run["rows"]), run["peer"] / run["ours"]
    cpu = run["peer_cpu"] / run["ours_cpu"]
    ours, peer = (per_second(rows, run[side]) for side in ("ours", "peer"))
    our_cpu, peer_cpu = (f"{run[side]:.2f} s" for side in ("ours_cpu", "peer_cpu"))
    return [
        Row(work, ours, peer, ratio, f">= {goal}x", ratio >= goal),
        Row("  the same: CPU (ratio: peer to ours)", our_cpu, peer_cpu, cpu, "", True),
    ]


def at_most(work: str, ours: float, peer: float, limit: float, show: Callable[[float], str]) -> Row:
    ratio = ours / peer
    return Row(work, show(ours), show(peer), ratio, f"<= {limit}x", ratio <= limit)


@pytest.mark.parametrize("columns", ["", "id,amount"], ids=["all-columns", "two-of-seven"])
def test_a_batch_of_five_million_change_rows(columns: str, report: Report) -> None:
    run = measured("batch", wide_feed(51, 100_000), columns)
    which = "2 of 7 columns" if columns else "7 columns"
    report(faster(f"Spark batch, {run['rows'] / 1e6:.1f}M change rows, {which}", run, 1.0))


def test_streaming_catch_up_of_a_thousand_commits(report: Report) -> None:
    run = measured("catch_up", change_feed(1000, 5000), "100")
    report(faster(f"Spark stream of 1,000 commits in {run['batches']:.0f} batches", run, 1.0))


def test_planning_the_first_micro_batch_of_a_million_files(report: Report) -> None:
    run = measured("plan_snapshot", linked_files(MILLION), "1000")
    work = "Spark plans 1,000 files of the snapshot, 1M"
    report(
        [
            at_most(f"{work}: time", run["ours"], run["peer"], 0.2, milliseconds),
            at_most(f"{work}: driver", run["ours_bytes"], run["peer_bytes"], 0.3, mebibytes),
            Row(
                "  the same, with the code of Python's libraries",
                mebibytes(run["ours_with_code"]),
                "",
                None,
                "",
                True,
            ),
            Row(
                "  the same: from load() to the rows",
                milliseconds(run["ours_first"]),
                milliseconds(run["peer_first"]),
                run["ours_first"] / run["peer_first"],
                "",
                True,
            ),
        ]
    )


def test_planning_a_micro_batch_of_one_commit_on_a_million_files(
    tmp_path: Path, report: Report
) -> None:
    table = wide_table(clone(big_checkpoint(MILLION), tmp_path / "table"))
    table.version = max(int(path.stem) for path in table.log.glob("*.json"))
    first = table.version + 1
    for number in range(COMMITS_WAITING):
        row = {"id": number, "customer": "c", "date": "2026-01-01"}
        table.commit(*table.data_files([row]))
    run = measured("plan_commits", table.folder, str(first), str(COMMITS_WAITING))
    work = "Spark plans one commit, 1M files"
    ours, peer = run["ours_all"], run["peer_all"]
    both = Row(
        "  the same, with Spark's own planning of the query",
        milliseconds(ours),
        milliseconds(peer),
        ours / peer,
        "",
        True,
    )
    report([at_most(work, run["ours"], run["peer"], 0.2, milliseconds), both])


def test_a_commit_into_the_sink(report: Report) -> None:
    run = measured("latency")
    row = at_most("commit to Spark's JSON sink, p50", run["ours"], run["peer"], 1.0, milliseconds)
    row.goal, row.is_met = "<= 1.0x, <= 400 ms", row.is_met and run["ours"] <= 0.4
    report([row])
