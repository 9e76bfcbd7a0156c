"""The real daemon and a real PostgreSQL: what a user runs, and `kill -9` while a table changes."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tailerd.formats.detect import find_demo
from tailerd.formats.parts import make_demo_table
from tests.cli.commands import Commands
from tests.conftest import ROOT
from tests.integration.daemon.running import daemon, write_config
from tests.integration.kafka.following import Table, Writer
from tests.postgres.server import Database
from tests.waiting import eventually

DEFAULT_KILLS = 5


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capfd)


def pipeline(table: Path, sink: dict[str, object], **fields: object) -> dict[str, object]:
    return {"path": str(table), "from": "snapshot", "sink": sink, **fields}


def test_the_example_runs_and_ends_in_the_tables_rows(
    postgres: Database, tmp_path: Path, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config: dict[str, Any] = yaml.safe_load((ROOT / "config/postgres.yaml").read_text())
    config["tables"]["orders"]["sink"]["dsn"] = postgres.dsn
    Path("tailerd.yaml").write_text(yaml.safe_dump(config))
    for words in (("doctor",), ("validate",), ("run", "--once"), ("run", "--once")):
        ran = command(*words)
        assert ran.status == 0, ran.errors
    rows = command.tail(tmp_path / "lake/orders", "--from", "snapshot").rows
    found = postgres.run("SELECT order_id, status FROM orders ORDER BY order_id")
    assert found == sorted((row["order_id"], row["status"]) for row in rows)
    assert command("offsets").status == 0
    assert command("verify", "orders").status == 0
    postgres.run(
        "UPDATE orders SET status = 'stolen' WHERE order_id = (SELECT max(order_id) FROM orders)"
    )
    ran = command("verify", "orders", "--json")
    assert (ran.status, ran.rows[0]["is_equal"], len(ran.rows[0]["missing"])) == (1, False, 1)
    assert "stolen" in ran.rows[0]["invented"][0]
    # An operator starts over.
    ran = command("offsets", "reset", "orders", "--to", "snapshot", "--yes")
    assert ran.status == 0, ran.errors
    assert command("run", "--once").status == 0
    assert postgres.run("SELECT order_id, status FROM orders ORDER BY order_id") == found


def test_every_version_of_the_demo_ends_in_the_tables_rows(
    postgres: Database, tmp_path: Path, command: Commands
) -> None:
    # Updates, deletes and inserts with a change data feed, from the first version on.
    make_demo_table(find_demo(), tmp_path / "orders")
    section = postgres.section(key=["order_id"])
    log = postgres.section(mode="append", table="public.orders_log")
    config = write_config(
        tmp_path,
        orders=pipeline(tmp_path / "orders", section, **{"from": 0}),
        log=pipeline(tmp_path / "orders", log, **{"from": 0}),
    )
    ran = command("run", "--config", config, "--once")
    assert ran.status == 0, ran.errors
    ran = command("verify", "orders", "--config", config)
    assert ran.status == 0, ran.output
    ran = command("verify", "log", "--config", config)
    assert ran.status == 0, ran.output
    rows = command.tail(tmp_path / "orders", "--from", "snapshot").rows
    found = postgres.run("SELECT order_id, status FROM orders ORDER BY order_id")
    assert found == sorted((row["order_id"], row["status"]) for row in rows)
    seen = command.tail(tmp_path / "orders", "--from", "0").rows
    logged = postgres.run("SELECT order_id, _change_type, _commit_version FROM orders_log")
    keys = ("order_id", "_change_type", "_commit_version")
    assert sorted(logged) == sorted(tuple(row[key] for key in keys) for row in seen)
    assert postgres.run("SELECT count(DISTINCT _event_id) FROM orders_log") == [(len(seen),)]


def test_doctor_names_missing_rights_and_schemas(
    postgres: Database, tmp_path: Path, command: Commands
) -> None:
    make_demo_table(find_demo(), tmp_path / "orders")
    postgres.run(
        "DROP ROLE IF EXISTS limited; CREATE ROLE limited LOGIN;"
        " REVOKE CREATE ON SCHEMA public FROM PUBLIC"
    )
    limited = postgres.server.dsn(postgres.name, "limited")
    for fields, words in (
        ({"dsn": limited}, "CREATE on the schema public"),
        ({"table": "nowhere.orders"}, "The schema nowhere does not exist"),
    ):
        section = postgres.section(key=["order_id"]) | fields
        config = write_config(tmp_path, orders=pipeline(tmp_path / "orders", section))
        ran = command("doctor", config)
        assert ran.status == 1
        assert words in " ".join((ran.output + ran.errors).split())


@pytest.mark.slow
@pytest.mark.full
def test_kill_9_under_load_leaves_the_mirror_and_the_log_right(
    postgres: Database, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    requested = pytestconfig.getoption("--kills")
    chance = random.Random(5)
    table = Table(tmp_path / "t")
    config = write_config(
        tmp_path,
        orders=pipeline(tmp_path / "t", postgres.section(), max_files_per_batch=3),
        log=pipeline(tmp_path / "t", postgres.section(mode="append", table="log")),
    )

    def saved() -> list[int]:
        if not postgres.exists("tailerd_offsets"):
            return []
        statement = "SELECT (\"offset\"->'offset'->>'version')::int FROM tailerd_offsets"
        return sorted(row[0] for row in postgres.run(statement) if row[0] is not None)

    before: list[int] = []
    for _ in range(DEFAULT_KILLS if requested is None else requested):
        with Writer(table, pause_seconds=0.02), daemon(config) as process:
            # It dies while it catches up, or while it follows.
            eventually(lambda before=before: saved() != before)  # type: ignore[misc]
            time.sleep(chance.random() * 0.5)
            process.send_signal(signal.SIGKILL)
            process.wait()
        before = saved()
    with daemon(config):
        # After many kills it has much to catch up with: as long as it goes on, it may.
        while (before := saved()) != [table.version + 1] * 2:
            eventually(lambda before=before: saved() != before)  # type: ignore[misc]
    alive = {row for row, kind, _ in table.changes if kind == "insert"}
    alive -= {row for row, kind, _ in table.changes if kind == "delete"}
    found = postgres.run("SELECT id, name FROM orders")
    assert len(found) == len(alive)
    assert set(found) == {(row, table.format_text(row)) for row in alive}
    logged = postgres.run("SELECT id, _change_type, _commit_version FROM log")
    assert len(set(logged)) == len(logged)
