"""Delta Spark as the oracle: random histories, its feed and its time travel against ours.

Every run takes new seeds; the id of a failing test names the one that repeats it. The feed is asked
for runs of versions with one schema, because the reference refuses what changes inside a range.

Where the reference refuses a run, because it reads it with the newest schema, ours reads it.

CREATE OR REPLACE TABLE gives the table another id. The reference's stream stops there, and its
batch feed gives the removed rows what columns the new schema shares with theirs, partition values
lost; ours goes on and gives them as they were, so that commit is compared with time travel.

RESTORE to a version with another schema likewise removes rows that ours gives as they were and the
reference as if they had always had the new schema: they are compared in the columns which did not
change, and with time travel in all.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tailerd.changefeed.change_batch import CHANGE_COLUMNS, CHANGE_TYPE, COMMIT_VERSION
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT
from tailerd.formats.base import OpenRequest
from tailerd.spark.change_range import batch_range, tasks_between
from tailerd.spark.options import ReadOptions
from tests.integration.spark.canonical import canonical
from tests.integration.spark.workload import Workload
from tests.maintenance.delta_spark import DeltaSpark, DeltaSparkError
from tests.tables.opened import open_delta

pytestmark = [pytest.mark.spark, pytest.mark.slow]

# New ones in each run; the processes of one run have to agree on them.
FIRST_SEED = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID")).randrange(1_000_000)
DEFAULT_SEEDS = f"{FIRST_SEED}:{FIRST_SEED + 2}"
STATEMENTS = 8
REFUSED_AT_MOST = 0.5
_NEWEST_DOES_NOT_FIT = (
    "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_DATA_SCHEMA",
    # The same, found out at a metaData action between.
    "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_SCHEMA_CHANGE",
)
Rows = Counter[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Versions [start, end] with one schema and id, all with or all without the feed.

    Attributes:
        unchanged: Columns that the schema before has too, just the same.
    """

    start: int
    end: int
    has_feed: bool
    unchanged: frozenset[str]
    is_replaced: bool = False


@pytest.mark.full
def test_the_reference_gives_the_same_rows(
    delta_spark: DeltaSpark, tmp_path: Path, seed: int
) -> None:
    table = tmp_path / "table"
    work = Workload(seed, str(table))
    reported = grown(delta_spark, work, table)
    story = "\n".join([f"seed {seed}: {json.dumps(work.features)}", *reported])
    sys.stderr.write(f"{story}\n")
    for run in runs_of(table):
        expected = snapshot_rows(delta_spark, table, run.end)
        require_same(
            without_changes(our_rows(table, snapshot="true", endingVersion=str(run.end))),
            expected,
            run,
            story,
        )
        start = run.start
        if run.is_replaced:
            _replaces(delta_spark, table, run, story)
            start += 1
        if start > run.end:
            continue
        between = {"startingVersion": str(start), "endingVersion": str(run.end)}
        if run.has_feed:
            feed = {"readChangeFeed": "true", **between}
            ours = our_rows(table, changes="cdf", **between)
            theirs = _feed(delta_spark, table, feed, ours)
            if theirs != ours:
                ours, theirs = _without_removals(delta_spark, table, run, ours, theirs, story)
            require_same(ours, theirs, run, story)
        require_same(*_both_engines(delta_spark, table, start, run.end), run, story)
        before = without_changes(our_rows(table, snapshot="true", endingVersion=str(run.start)))
        _replays(table, run, before, story)


def grown(delta: DeltaSpark, work: Workload, table: Path) -> list[str]:
    """Run the workload; return its statements, each with the version it led to."""
    text = work.create()
    columns = delta.ask("change", text=text, path=str(table))
    reported, refused = [f"{head_version(table)}: {text}"], 0
    columns = delta.ask("change", text=work.fill(columns), path=str(table))
    for number in range(STATEMENTS):
        now = [(name, kind) for name, kind in columns]
        # In every history, because it is rare among random statements.
        is_replacement = number == STATEMENTS // 2
        text = work.replace() if is_replacement else work.statement(now, head_version(table))
        try:
            columns = delta.ask("change", text=text, path=str(table))
            reported.append(f"{head_version(table)}: {text}")
        except DeltaSparkError as error:
            # The reference knows combinations that it does not do; what it committed counts.
            refused += 1
            reported.append(f"refused: {text}: {str(error)[:200]!r}")
    assert refused <= STATEMENTS * REFUSED_AT_MOST, "\n".join(reported)
    return reported


def head_version(table: Path) -> int:
    log = (table / "_delta_log").glob("*.json")
    return max(int(file.stem) for file in log if file.stem.isdigit())


def runs_of(table: Path) -> list[Run]:
    """Cut the history where the schema or the feed changes."""
    runs: list[Run] = []
    last, now, unchanged = None, ("", False, ""), frozenset[str]()
    for version in range(head_version(table) + 1):
        for line in (table / "_delta_log" / f"{version:020}.json").read_text().splitlines():
            if (metadata := json.loads(line).get("metaData")) is not None:
                feed = metadata["configuration"].get("delta.enableChangeDataFeed") == "true"
                unchanged = _shared(now[0], metadata["schemaString"])
                now = (metadata["schemaString"], feed, metadata["id"])
        if now == last:
            runs[-1] = replace(runs[-1], end=version)
        else:
            is_replaced = last is not None and now[2] != last[2]
            runs.append(
                Run(
                    start=version,
                    end=version,
                    has_feed=now[1],
                    unchanged=unchanged,
                    is_replaced=is_replaced,
                )
            )
        last = now
    return runs


def _shared(before: str, after: str) -> frozenset[str]:
    """Return the columns two schemas have in common."""
    one, other = (
        # With what is said about them: the same name may be another column since.
        {(field["name"], json.dumps(field)) for field in json.loads(text)["fields"]}
        for text in (before or '{"fields": []}', after)
    )
    return frozenset(name for name, _ in one & other)


def require_same(ours: Rows, expected: Rows, run: Run, story: str) -> None:
    assert ours == expected, (
        f"{run}\nonly ours: {sorted((ours - expected).elements())[:5]}\n"
        f"only theirs: {sorted((expected - ours).elements())[:5]}\n{story}"
    )


def _both_engines(delta: DeltaSpark, table: Path, start: int, end: int) -> tuple[Rows, Rows]:
    """Return the rows of our Spark source and of our Arrow engine."""
    between = {"startingVersion": str(start), "endingVersion": str(end)}
    try:
        return spark_rows(delta, table, "tailerd", between), our_rows(table, **between)
    except DeltaSparkError as error:
        # A commit that restores another schema removes rows of the old one, and a DataFrame has
        # one schema: the rest of the run is compared.
        if f"SchemaChangedError: Version {start} has another schema" not in str(error):
            raise
        return _both_engines(delta, table, start + 1, end) if start < end else (Rows(), Rows())


def _feed(delta: DeltaSpark, table: Path, options: dict[str, str], ours: Rows) -> Rows:
    try:
        return spark_rows(delta, table, "delta", options)
    except DeltaSparkError as error:
        # Without column mapping it reads old versions with the newest schema, if that fits.
        if not any(each in str(error) for each in _NEWEST_DOES_NOT_FIT):
            raise
        return ours


def _without_removals(
    delta: DeltaSpark, table: Path, run: Run, ours: Rows, theirs: Rows, story: str
) -> tuple[Rows, Rows]:
    """Take out of both feeds what the first commit removed, after comparing just that."""
    removed, gone = (_deletes_of(rows, run.start) for rows in (ours, theirs))
    shared = run.unchanged.union(CHANGE_COLUMNS)
    require_same(_narrowed(removed, shared), _narrowed(gone, shared), run, story)
    before = snapshot_rows(delta, table, run.start - 1)
    assert not without_changes(removed) - before, (
        f"{run}\nnever there: {without_changes(removed) - before}\n{story}"
    )
    return ours - removed, theirs - gone


def _deletes_of(rows: Rows, version: int) -> Rows:
    found: Rows = Counter()
    for text, count in rows.items():
        row = json.loads(text)
        if row[CHANGE_TYPE] == "delete" and row[COMMIT_VERSION] == version:
            found[text] = count
    return found


def _narrowed(rows: Rows, columns: frozenset[str]) -> Rows:
    found: Rows = Counter()
    for text, count in rows.items():
        kept = {name: value for name, value in json.loads(text).items() if name in columns}
        found[json.dumps(kept, sort_keys=True)] += count
    return found


def _replaces(delta: DeltaSpark, table: Path, run: Run, story: str) -> None:
    """A commit that replaces the table deletes all its rows and inserts the new ones."""
    version = run.start
    # Raw: where the columns are the same, rows that are too would be no change.
    between = {"startingVersion": str(version), "endingVersion": str(version)}
    ours = our_rows(table, changes="files", **between)
    for kind, shown in (("delete", version - 1), ("insert", version)):
        rows = {text: n for text, n in ours.items() if json.loads(text)[CHANGE_TYPE] == kind}
        require_same(
            without_changes(Counter(rows)),
            snapshot_rows(delta, table, shown),
            run,
            f"{kind}s of {story}",
        )


def _replays(table: Path, run: Run, rows: Rows, story: str) -> None:
    """Changes from files lead from the first snapshot of a run to every later one.

    Without the feed those of `auto` do so with as few rows as can be.
    """
    for version in range(run.start + 1, run.end + 1):
        between = {"startingVersion": str(version), "endingVersion": str(version)}
        before = +rows
        for text, count in our_rows(table, changes="files", **between).items():
            row = json.loads(text)
            sign = 1 if row[CHANGE_TYPE] == "insert" else -1
            rows[_without_change(row)] += sign * count
        after = without_changes(our_rows(table, snapshot="true", endingVersion=str(version)))
        require_same(+rows, after, replace(run, start=version, end=version), story)
        assert not -rows, story
        if not run.has_feed:
            exact = our_rows(table, **between)
            is_the_difference(exact, before, after, run, f"version {version} of {story}")


def is_the_difference(changes: Rows, before: Rows, after: Rows, run: Run, story: str) -> None:
    """Check that changes are the least that lead from one snapshot to another."""
    # Where rows have ids that a commit kept, a deleted and an inserted one are an update.
    for kinds, expected in (
        (("delete", "update_preimage"), before - after),
        (("insert", "update_postimage"), after - before),
    ):
        found = {text: n for text, n in changes.items() if json.loads(text)[CHANGE_TYPE] in kinds}
        require_same(without_changes(Counter(found)), expected, run, f"{kinds}, {story}")


def without_changes(rows: Rows) -> Rows:
    found: Rows = Counter()
    for text, count in rows.items():
        found[_without_change(json.loads(text))] += count
    return found


def _without_change(row: dict[str, Any]) -> str:
    bare = {name: value for name, value in row.items() if name not in CHANGE_COLUMNS}
    return json.dumps(bare, sort_keys=True)


def snapshot_rows(delta: DeltaSpark, table: Path, version: int) -> Rows:
    [rows] = rows_of_snapshots(delta, table, [version])
    return rows


def rows_of_snapshots(delta: DeltaSpark, table: Path, versions: Sequence[int]) -> list[Rows]:
    """Return the rows of each version; all have one schema."""
    answer = delta.ask("snapshots", path=str(table), versions=list(versions))
    return [without_changes(Counter(rows)) for rows in answer]


def spark_rows(delta: DeltaSpark, table: Path, kind: str, options: dict[str, str]) -> Rows:
    return Counter(delta.ask("rows", path=str(table), format=kind, options=options))


def our_rows(table: Path, **options: str) -> Rows:
    return asyncio.run(_arrow_rows(ReadOptions.parse({"path": str(table), **options})))


async def _arrow_rows(options: ReadOptions) -> Rows:
    source = await open_delta(options.path, OpenRequest(changes=options.changes))
    start, end = await batch_range(source, options)
    rows: Rows = Counter()
    for task in await tasks_between(source, start, end):
        for batch in source.read(task, DEFAULT_BATCH_LIMIT):
            rows.update(canonical(row) for row in batch.to_arrow().to_pylist())
    return rows
