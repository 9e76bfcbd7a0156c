"""Maintenance of tables written by other engines: what was read before is read afterwards."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tailerd.errors import TableError, UnsupportedFeatureError
from tailerd.formats.delta.log.live_files import read_live_files
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.log.log_writer import LogWriter
from tailerd.formats.delta.protocol.live_file import LiveFile
from tailerd.formats.delta.protocol.snapshot import Snapshot
from tailerd.formats.delta.protocol.table_properties import DELETED_FILE_RETENTION, duration_seconds
from tailerd.storage.local import LocalStore
from tests.doubles.sim_clock import SimClock
from tests.maintenance.written import assert_same, checkpoint_actions, expected, state_of
from tests.tables import naive_log

pytestmark = pytest.mark.golden


def copied_log(table: Path, folder: Path) -> Path:
    """Copy a table's log, as far as it is in one folder."""
    shutil.copytree(table / "_delta_log", folder / "_delta_log")
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def make_reader(table: Path) -> LogReader:
    return LogReader(LocalStore(), str(table), on_mismatch=lambda _: None, torn_wait_seconds=0)


async def readable_logs(
    given: Path, manifest: list[dict[str, Any]], folder: Path
) -> AsyncIterator[tuple[dict[str, Any], Path]]:
    """Yield each entry whose log can be read, with a copy of that log."""
    for number, entry in enumerate(manifest):
        location = given / "tables" / entry["table"]
        if not (location / "_delta_log").is_dir():
            continue
        table = copied_log(location, folder / str(number))
        try:
            await make_reader(table).open_listed()
        except TableError:
            continue  # what cannot be read is not maintained
        yield entry, table


async def described(reader: LogReader, snapshot: Snapshot) -> list[LiveFile]:
    files = [
        file async for some in read_live_files(reader, snapshot, with_stats=True) for file in some
    ]
    return sorted(files, key=lambda file: file.key)


def newest_time_ms(log: Path) -> int:
    """Return a time at which some of the table's removes have not expired."""
    times = [0]
    for path in log.glob("*.json"):
        for line in path.read_text().splitlines():
            body = (json.loads(line) if line.strip() else {}).get("remove") or {}
            times.append(body.get("deletionTimestamp") or 0)
    return max(times) + 1


def has_every_commit(log: Path, version: int) -> bool:
    return all((log / f"{number:020}.json").exists() for number in range(version + 1))


def respell(state: naive_log.NaiveState) -> None:
    """Make alike what another writer's checkpoint says in other words than the commit."""
    assert state.metadata is not None
    state.metadata["schemaString"] = json.loads(state.metadata["schemaString"])
    for body in state.adds.values():
        if body.get("stats", "").startswith("{"):
            body["stats"] = json.loads(body["stats"])
        if body.get("tags") == {}:
            del body["tags"]


async def check(table: Path) -> None:
    """Write a checkpoint of the newest version and read the table from it alone."""
    log = table / "_delta_log"
    reader = make_reader(table)
    snapshot, _ = await reader.open_listed()
    version = snapshot.version
    if version in (await reader.list_log()).checkpoints:
        # Another one takes its location, where the rest of the log tells the version too.
        for path in [*log.glob(f"{version:020}.checkpoint*"), log / "_last_checkpoint"]:
            path.unlink(missing_ok=True)
        try:
            snapshot, _ = await reader.open_listed(version)
        except TableError:
            return
    before = await described(reader, snapshot)
    transactions, domains = dict(snapshot.transactions), dict(snapshot.domain_metadata)
    clock = SimClock(newest_time_ms(log))
    result = await LogWriter(reader, clock=clock).write_checkpoint(snapshot)
    assert result.outcome == "written"
    if has_every_commit(log, version):
        retention = duration_seconds(snapshot.state.metadata.configuration, DELETED_FILE_RETENTION)
        assert retention is not None
        wanted = expected(
            naive_log.replay(log, version),
            now_ms=clock.now_ms(),
            retention_ms=round(retention * 1000),
        )
        found = state_of(checkpoint_actions(log, version), version)
        if (
            snapshot.state.metadata.configuration.get("delta.checkpoint.writeStatsAsJson")
            == "false"
        ):
            for body in wanted.adds.values():
                body.pop("stats", None)
        for state in (wanted, found):
            respell(state)
        assert_same(found, wanted)
    for path in log.glob("*.json"):
        if path.stem.isdigit() and int(path.stem) <= version:
            path.unlink()
    for path in log.glob("*.checkpoint*"):
        if path.name not in result.files:
            path.unlink()
    again = make_reader(table)
    alone, _ = await again.open_listed()
    assert alone.version == version
    assert alone.state.protocol == snapshot.state.protocol
    assert alone.state.metadata == snapshot.state.metadata
    assert (dict(alone.transactions), dict(alone.domain_metadata)) == (transactions, domains)
    assert await described(again, alone) == before


@pytest.mark.full
@pytest.mark.parametrize("copied_rows", [1, 10**6], ids=["copied", "decoded"])
async def test_every_table_is_read_from_our_checkpoint_alone(
    given_tables: Path,
    given_manifest: list[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    copied_rows: int,
) -> None:
    monkeypatch.setattr("tailerd.formats.delta.log.checkpoint_source.COPIED_ROWS", copied_rows)
    checked, refused, wrong = 0, [], []
    async for entry, table in readable_logs(given_tables, given_manifest, tmp_path):
        try:
            await check(table)
            checked += 1
        except UnsupportedFeatureError as error:
            refused.append((entry["table"], str(error)))
        except (AssertionError, TableError) as error:
            wrong.append((entry["table"], str(error)[:2000]))
    assert not wrong, wrong
    assert checked > 120
    print(f"\n{checked} tables, refused: {refused}")


async def check_compaction(table: Path) -> bool:
    """Read a table from a compaction and the commits around it; tell whether there was one."""
    log = table / "_delta_log"
    for path in [*log.glob("*.checkpoint*"), log / "_last_checkpoint"]:
        # Some say what their commits say in other words.
        path.unlink(missing_ok=True)
    reader = make_reader(table)
    commits = sorted((await reader.list_log()).commits)
    if len(commits) < 4 or not has_every_commit(log, commits[-1]):
        return False
    snapshot, _ = await reader.open_listed()
    wanted = commits[1:-1]
    before = await described(reader, snapshot)
    result = await LogWriter(reader).write_compaction(snapshot.state, wanted[0], wanted[-1])
    if result.outcome != "written":
        return False
    for version in wanted:
        (log / f"{version:020}.json").unlink()
    again = make_reader(table)
    alone, _ = await again.open_listed()
    assert alone.version == snapshot.version
    assert alone.compactions
    assert alone.state.protocol == snapshot.state.protocol
    assert alone.state.metadata == snapshot.state.metadata
    assert dict(alone.transactions) == dict(snapshot.transactions)
    assert dict(alone.domain_metadata) == dict(snapshot.domain_metadata)
    assert await described(again, alone) == before
    return True


async def test_every_table_is_read_from_our_compaction_and_the_rest(
    given_tables: Path, given_manifest: list[dict[str, Any]], tmp_path: Path
) -> None:
    checked, wrong = 0, []
    async for entry, table in readable_logs(given_tables, given_manifest, tmp_path):
        try:
            checked += await check_compaction(table)
        except UnsupportedFeatureError:
            continue
        except (AssertionError, TableError) as error:
            wrong.append((entry["table"], str(error)[:2000]))
    assert not wrong, wrong
    print(f"\n{checked} tables")
    assert checked > 30
