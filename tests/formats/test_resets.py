"""A reset that leaves versions out: it asks, counts, and records the gap, for every format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailerd.cli import run
from tests.formats.conftest import Table
from tests.formats.delivering import changes, delivered
from tests.integration.daemon.running import file_table, write_config

Captured = pytest.CaptureFixture[str]
ROWS = {"delta": "4 rows", "iceberg": "4 rows", "lance": "4 rows", "memory": "at most 4 rows"}


def test_a_reset_that_skips_versions_needs_consent_and_leaves_a_gap(
    table: Table, tmp_path: Path, capsys: Captured
) -> None:
    out = tmp_path / "out"
    options: dict[str, object] = {"format": table.format}
    config = str(write_config(tmp_path, orders=file_table(table.location, out, **options)))
    once = ["run", "--config", config, "--once", "--log-format", "json"]
    table.append([1, 2])
    assert run(once) == 0
    first = table.append([3])
    last = table.append([4, 5, 6])
    reset = ["offsets", "reset", "orders", "--to", "latest", "--config", config]
    capsys.readouterr()
    assert run(reset) == 2
    refused = capsys.readouterr().err
    rows = ROWS.get(table.format, "an unknown number of rows")
    skipped = f"versions {first} to {last} (2 versions, {rows})"
    if table.format == "tiledb":
        # Its versions are times: an offset points between two of them.
        skipped = f"to {last} (2 versions, {rows})"
    if table.format == "kartothek":
        # Between two polls, commits are one.
        skipped = f"version {first} ({rows})"
    assert f"{skipped} of orders" in refused
    assert f"offsets reset orders --to latest --yes --config {config}" in refused
    assert not list(out.glob("*.gap.json"))

    assert run([*reset, "--yes"]) == 0
    assert f"{skipped}; the gap is recorded." in capsys.readouterr().out
    (record,) = out.glob("*.gap.json")
    assert json.loads(record.read_text())["reason"] == "reset"
    # The next daemon reports the gap, once.
    assert run(once) == 0
    assert skipped in capsys.readouterr().err
    table.append([7])
    assert run(once) == 0
    assert skipped not in capsys.readouterr().err
    assert {number for _, number, _ in changes(delivered(out))} == {1, 2, 7}
    if table.format != "kartothek":
        # Its ledger drops the state before the new offset.
        assert run(["verify", "orders", "--config", config]) == 0


@pytest.mark.parametrize("to", ["snapshot", "first"])
def test_a_reset_that_delivers_again_asks_nothing(
    table: Table, tmp_path: Path, capsys: Captured, to: str
) -> None:
    out = tmp_path / "out"
    config = str(write_config(tmp_path, orders=file_table(table.location, out)))
    first = table.append([1, 2])
    assert run(["run", "--config", config, "--once"]) == 0
    point = str(first) if to == "first" else to
    if (to, table.format) == ("first", "kartothek"):
        pytest.skip("its first version is older than its ledger")
    assert run(["offsets", "reset", "orders", "--to", point, "--config", config]) == 0
    assert "kipped" not in capsys.readouterr().out
    assert not list(out.glob("*.gap.json"))


def test_a_table_that_was_created_again_goes_on_after_a_reset(
    table: Table, tmp_path: Path, capsys: Captured
) -> None:
    """The remedy of `table_recreated` works as it is printed."""
    out = tmp_path / "out"
    config = str(write_config(tmp_path, orders=file_table(table.location, out)))
    once = ["run", "--config", config, "--once"]
    table.append([8, 9])
    assert run(once) == 0
    table.replace()
    assert run(once) == 3
    assert run(["offsets", "reset", "orders", "--to", "snapshot", "--config", config]) == 0
    capsys.readouterr()
    assert run(once) == 0
    assert {number for _, number, _ in changes(delivered(out))} == {1, 8, 9}
    assert len(list(out.glob("replaced-*"))) == 1
