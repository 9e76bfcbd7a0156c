"""Delta Spark judges exact changes: random histories without the feed, each commit on its own.

The deletes of a commit must be what its time travel to the version before has and that to the
version itself has not, and the inserts the other way round, as multisets (`EXCEPT ALL` both ways).
Net changes of a run of versions likewise.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from tailerd.changefeed.change_batch import COMMIT_VERSION
from tests.integration.spark.test_oracle import (
    FIRST_SEED,
    Rows,
    grown,
    is_the_difference,
    our_rows,
    rows_of_snapshots,
    runs_of,
    spark_rows,
)
from tests.integration.spark.workload import Workload
from tests.maintenance.delta_spark import DeltaSpark

pytestmark = [pytest.mark.spark, pytest.mark.slow]
# Every run another one: the law itself is checked without Spark, on many more histories.
DEFAULT_SEEDS = f"{FIRST_SEED}:{FIRST_SEED + 1}"


class WithoutFeed(Workload):
    """Tables in which exact changes have to be found by comparing rows."""

    def _features(self) -> dict[str, str]:
        # Every second one has ids of rows, by which they are compared.
        is_tracked = {"delta.enableRowTracking": self._random.choice(["true", "false"])}
        return {**super()._features(), **is_tracked, "delta.enableChangeDataFeed": "false"}


@pytest.mark.full
def test_changes_without_a_feed_are_the_difference_of_time_travels(
    delta_spark: DeltaSpark, tmp_path: Path, seed: int
) -> None:
    table = tmp_path / "table"
    work = WithoutFeed(seed, str(table))
    reported = grown(delta_spark, work, table)
    story = "\n".join([f"seed {seed}: {json.dumps(work.features)}", *reported])
    sys.stderr.write(f"{story}\n")
    for run in runs_of(table):
        if run.start == run.end:
            continue
        # One query, as each costs a second.
        versions = range(run.start, run.end + 1)
        snapshots = rows_of_snapshots(delta_spark, table, versions)
        options = {"startingVersion": str(run.start + 1), "endingVersion": str(run.end)}
        on_spark = by_version(spark_rows(delta_spark, table, "tailerd", options))
        for version, before, after in zip(versions[1:], snapshots, snapshots[1:], strict=False):
            alone = {"startingVersion": str(version), "endingVersion": str(version)}
            for engine in (our_rows(table, **alone), on_spark.pop(version, Counter())):
                is_the_difference(engine, before, after, run, f"version {version} of {story}")
        assert not on_spark
        net = our_rows(table, changes="net", **options)
        is_the_difference(net, snapshots[0], snapshots[-1], run, f"net of {story}")


def by_version(rows: Rows) -> dict[int, Rows]:
    found: dict[int, Rows] = {}
    for text, count in rows.items():
        found.setdefault(json.loads(text)[COMMIT_VERSION], Counter())[text] = count
    return found
