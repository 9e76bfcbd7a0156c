"""The option `branch` has an effect in every way in which a table is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tailerd
from tailerd.config import TableConfig, load_config
from tailerd.daemon.tables import open_log, open_statistics
from tailerd.spark.datasource import TailerdDataSource
from tailerd.spark.supervisor import read_options
from tailerd.state.ledger import LedgerLocation
from tailerd.storage.stores import Stores
from tailerd.telemetry import Telemetry
from tests.formats.delta.test_messages import command
from tests.tables.iceberg_writer import IcebergWriter

Read = Callable[[str], list[int]]


@pytest.fixture
def location(tmp_path: Path) -> str:
    """Return a table of three rows, and of one in its branch `audit`."""
    writer = IcebergWriter(tmp_path / "table")
    writer.append([{"id": 1, "name": "a"}])
    first = writer.table.current_snapshot().snapshot_id
    writer.table.manage_snapshots().create_branch(first, "audit").commit()
    writer.append([{"id": 2, "name": "b"}, {"id": 3, "name": "c"}])
    return str(writer.location)


def section(location: str) -> TableConfig:
    fields = {"path": location, "from": "snapshot", "sink": {"kind": "console"}}
    return TableConfig.model_validate({**fields, "format_options": {"branch": "audit"}})


def told(*words: str) -> list[dict[str, object]]:
    done = command(*words)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def tail(location: str) -> list[int]:
    words = ("--format-option", "branch=audit", "--from", "snapshot", "--once", "--format", "jsonl")
    return [int(str(found["id"])) for found in told("tail", location, *words)]


def tail_of_a_name(location: str) -> list[int]:
    config = Path(location).parent / "tailerd.yaml"
    options = "format_options: {branch: audit}, sink: {kind: console}"
    config.write_text(f"tables: {{orders: {{path: {location}, {options}}}}}\n")
    load_config(config)
    words = ("--config", str(config), "--from", "snapshot", "--once", "--format", "jsonl")
    return [int(str(found["id"])) for found in told("tail", "orders", *words)]


def python(location: str) -> list[int]:
    options = {"branch": "audit"}
    ids = tailerd.changes(location, since=1, format_options=options).to_arrow()["id"].to_pylist()
    assert tailerd.table(location, format_options=options).version == 1
    return [int(each) for each in ids]


def spark(location: str) -> list[int]:
    given = TailerdDataSource(read_options(section(location)))
    reader = given.reader(given.schema())
    batches: list[Any] = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [number for batch in batches for number in batch.column("id").to_pylist()]


@pytest.mark.parametrize("read", [tail, tail_of_a_name, python, spark])
def test_every_reader_reads_the_branch(location: str, read: Read) -> None:
    assert read(location) == [1]


@pytest.mark.parametrize("name", ["inspect", "history", "growth"])
def test_every_command_shows_the_branch(location: str, name: str) -> None:
    [*_, newest] = told(name, location, "--format-option", "branch=audit", "--json")
    assert newest["version"] == 1


def test_an_option_that_the_format_lacks_is_named(location: str) -> None:
    done = command("inspect", location, "--format-option", "brunch=audit")
    assert done.returncode == 2
    assert "has no option 'brunch'" in done.stderr
    assert "branch" in done.stderr


async def test_the_daemon_measures_and_shows_the_branch(location: str) -> None:
    table, telemetry = section(location), Telemetry()
    options = table.format_settings()
    statistics = await open_statistics(
        location, stores=Stores(), telemetry=telemetry, options=options
    )
    assert statistics is not None
    await statistics.open(0.0, first=None, next_up=None)
    assert statistics.version == 1
    ledger = LedgerLocation(str(Path(location).parent / "ledger"))
    log = await open_log(table, stores=Stores(), telemetry=telemetry, ledger=ledger)
    assert [each.version async for each in log.inspection.history(10)] == [1]
