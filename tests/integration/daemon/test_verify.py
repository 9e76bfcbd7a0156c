"""`tailerd verify` over what the daemon really wrote to files."""

from __future__ import annotations

import datetime
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.commands import Commands
from tests.tables import delta_schema
from tests.tables.builder import CDF, TableBuilder


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)


def configured(folder: Path, start: str, **fields: object) -> Path:
    sink = {"kind": "file", "path": f"{folder}/out"}
    table = {"path": f"{folder}/orders", "from": start, "sink": sink, **fields}
    config = {
        "engine": "arrow",
        "state": f"{folder}/state",
        "http": {"listen": None},
        "tables": {"orders": table},
    }
    path = folder / "tailerd.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def lively(folder: Path) -> TableBuilder:
    """A table whose rows come, go, change, and change their columns."""
    table = TableBuilder(folder / "orders", properties=CDF)
    [first] = table.append([{"id": i, "name": f"n{i}"} for i in range(50)]).adds
    table.delete_rows(first, [3, 4])
    [second] = table.append([{"id": 100, "name": None}, {"id": 100, "name": None}]).adds
    table.change_metadata(
        fields=[("id", "long"), ("name", "string"), ("tags", delta_schema.array("string"))]
    )
    table.append([{"id": 101, "name": "é\n", "tags": ["a", None]}])
    images = [
        {"id": 100, "name": None, "tags": None, "_change_type": "update_preimage"},
        {"id": 100, "name": "new", "tags": None, "_change_type": "update_postimage"},
    ]
    rows: list[dict[str, Any]] = [
        {"id": 100, "name": None, "tags": None},
        {"id": 100, "name": "new", "tags": None},
    ]
    table.commit(table.remove(second), *table.data_files(rows), table.cdc_file(images))
    return table


@pytest.mark.parametrize("start", ["snapshot", "0", "1", "3", "latest"])
def test_what_was_delivered_replays_to_the_table(
    start: str, tmp_path: Path, command: Commands
) -> None:
    table = lively(tmp_path)
    config = configured(tmp_path, start)
    assert command("run", "--config", config, "--once").status == 0
    table.append([{"id": 102, "name": "later", "tags": []}])
    ran = command("verify", "orders", "--config", config, "--json")
    assert (ran.status, ran.errors) == (0, "")
    [verdict] = ran.rows
    assert verdict["is_equal"]
    assert (verdict["version"], verdict["rows"]) == (5, 51)
    assert verdict["start"] == {"snapshot": None, "0": None, "1": 1, "3": 3, "latest": 6}[start]
    plain = command("verify", "orders", "--config", config)
    assert plain.output.startswith("equal: ")


@pytest.mark.attack
@pytest.mark.parametrize("start", ["snapshot", "0", "2", "latest"])
@pytest.mark.parametrize("to", ["snapshot", "latest", "1", "2", "4"])
@pytest.mark.parametrize("changes", ["auto", "net"])
def test_a_healthy_pipeline_is_equal_also_after_a_reset(
    start: str, to: str, changes: str, tmp_path: Path, command: Commands
) -> None:
    table = lively(tmp_path)
    config = configured(tmp_path, start, changes=changes)
    assert command("run", "--config", config, "--once").status == 0
    table.append([{"id": 102, "name": "later", "tags": []}])
    assert command("run", "--config", config, "--once").status == 0
    verified = command("verify", "orders", "--config", config)
    assert verified.output.startswith("equal: ")
    table.append([{"id": 103, "name": "last", "tags": []}])
    reset = command("offsets", "reset", "orders", "--to", to, "--yes", "--config", config)
    # The rows of a difference over several commits cannot be told apart.
    assert reset.status == 0 or changes == "net"
    assert command("run", "--config", config, "--once").status == 0
    verified = command("verify", "orders", "--config", config)
    assert verified.output.startswith("equal: "), verified.output


@pytest.mark.attack
@pytest.mark.parametrize("policy", ["snapshot", "latest", "net"])
@pytest.mark.parametrize("is_recreated", [False, True])
def test_a_healthy_pipeline_is_equal_also_after_a_gap(
    policy: str, is_recreated: bool, tmp_path: Path, command: Commands
) -> None:
    table = lively(tmp_path)
    config = configured(tmp_path, "1", on_gap=policy)
    assert command("run", "--config", config, "--once").status == 0
    if is_recreated:
        shutil.rmtree(table.folder)
        table = TableBuilder(table.folder, table_id="9e5d0e1c-0000-4000-8000-000000000000")
        for number in range(4):
            table.append([{"id": number, "name": "new"}])
    else:
        table.append([{"id": 102, "name": "gone", "tags": []}])
        table.append([{"id": 103, "name": "kept", "tags": []}])
        table.checkpoint()
        table.commit_path(table.version - 1).unlink()
    if is_recreated and policy == "net":
        assert command("run", "--config", config, "--once").status == 3
        return
    assert command("run", "--config", config, "--once").status == 0
    table.append([{"id": 104, "name": "later"}])
    assert command("run", "--config", config, "--once").status == 0
    verified = command("verify", "orders", "--config", config)
    assert verified.output.startswith("equal: "), verified.output


@pytest.mark.parametrize(
    ("old", "value", "new"),
    [
        ("float", 0.1, "double"),
        ("integer", 7, "double"),
        ("decimal(5,2)", Decimal("1.10"), "decimal(8,4)"),
        ("date", datetime.date(2024, 2, 29), "timestamp_ntz"),
    ],
)
def test_rows_delivered_before_their_columns_grew_are_the_rows_of_the_table(
    old: str, value: Any, new: str, tmp_path: Path, command: Commands
) -> None:
    changed = {"delta.typeChanges": [{"fromType": old, "toType": new}]}

    def fields(kind: str, metadata: dict[str, Any], *more: dict[str, Any]) -> list[Any]:
        inner = delta_schema.field("x", kind, **metadata)
        return [
            delta_schema.field("x", kind, **metadata),
            ("s", delta_schema.struct(inner, *more)),
            ("l", delta_schema.array(delta_schema.struct(inner, *more))),
            delta_schema.field("m", delta_schema.map_of(kind, kind), **metadata),
        ]

    table = TableBuilder(
        tmp_path / "orders", fields=fields(old, {}), reader_features=["typeWidening"]
    )
    table.append([{"x": value, "s": {"x": value}, "l": [{"x": value}, None], "m": {value: value}}])
    table.append([{"x": None, "s": {"x": None}, "l": [], "m": {}}, {"x": value}])
    config = configured(tmp_path, "snapshot")
    assert command("run", "--config", config, "--once").status == 0
    table.change_metadata(fields=fields(new, changed, delta_schema.field("added", "string")))
    table.append([{"s": {"added": "a"}, "l": [{"added": "b"}]}])
    assert command("run", "--config", config, "--once").status == 0
    ran = command("verify", "orders", "--config", config)
    assert (ran.status, ran.errors) == (0, "")


@pytest.mark.parametrize(
    ("damage", "missing", "invented"), [("lost", 1, 0), ("doubled", 0, 1), ("changed", 1, 1)]
)
def test_one_row_that_is_not_as_it_was_is_found_and_shown(
    damage: str, missing: int, invented: int, tmp_path: Path, command: Commands
) -> None:
    lively(tmp_path)
    config = configured(tmp_path, "snapshot")
    assert command("run", "--config", config, "--once").status == 0
    [path] = (tmp_path / "out").glob("*.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    lines[7:8] = {
        "lost": [],
        "doubled": [lines[7]] * 2,
        "changed": [lines[7].replace('"id":', '"id":77')],
    }[damage]
    path.write_text("".join(lines))
    ran = command("verify", "orders", "--config", config, "--json")
    assert ran.status == 1
    [verdict] = ran.rows
    assert not verdict["is_equal"]
    assert (len(verdict["missing"]), len(verdict["invented"])) == (missing, invented)
    plain = command("verify", "orders", "--config", config)
    assert plain.output.startswith("different: ")


SKIP = {"commits": {"skip": {"operations": ["MERGE"]}}}


def test_skipped_commits_cannot_be_compared_unless_they_changed_nothing(
    tmp_path: Path, command: Commands
) -> None:
    table = TableBuilder(tmp_path / "orders")
    table.append([{"id": 1, "name": "a"}])
    rewritten = table.data_file([{"id": 9, "name": "x"}], data_change=False)
    table.commit(rewritten, operation="MERGE")
    config = configured(tmp_path, "0", **SKIP)
    assert command("run", "--config", config, "--once").status == 0
    # The rewritten file is no change, so nothing is missing but its row.
    [verdict] = command("verify", "orders", "--config", config, "--json").rows
    assert (verdict["skipped_commits"], verdict["is_equal"]) == (0, False)
    table.append([{"id": 2, "name": "b"}], operation="MERGE")
    table.append([{"id": 3, "name": "c"}], operation="merge")
    assert command("run", "--config", config, "--once").status == 0
    # This one is not delivered yet, and does not count.
    table.append([{"id": 4, "name": "d"}], operation="MERGE")
    ran = command("verify", "orders", "--config", config)
    assert (ran.status, ran.errors) == (1, "")
    assert ran.output.startswith("not comparable: 2 commits skipped.")
    ran = command("verify", "orders", "--config", config, "--allow-skipped", "--json")
    assert ran.status == 0
    [verdict] = ran.rows
    assert (verdict["skipped_commits"], verdict["is_equal"]) == (2, None)


def test_commits_that_the_log_has_no_longer_may_have_been_skipped(
    tmp_path: Path, command: Commands
) -> None:
    table = TableBuilder(tmp_path / "orders")
    table.append([{"id": 1, "name": "a"}])
    config = configured(tmp_path, "0", **SKIP)
    table.append([{"id": 2, "name": "b"}])
    assert command("run", "--config", config, "--once").status == 0
    table.checkpoint()
    table.commit_path(0).unlink()
    [verdict] = command("verify", "orders", "--config", config, "--json").rows
    assert (verdict["skipped_commits"], verdict["is_equal"]) == (None, True)
    [path] = (tmp_path / "out").glob("*.jsonl")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    ran = command("verify", "orders", "--config", config)
    assert ran.status == 1
    assert ran.output.startswith("not comparable: the log no longer has all commits")
    assert command("verify", "orders", "--config", config, "--allow-skipped").status == 0


def test_a_governed_sink_equals_its_view(tmp_path: Path, command: Commands) -> None:
    fields = [("id", "long"), ("name", "string"), ("region", "string"), ("n", "long")]
    table = TableBuilder(tmp_path / "orders", fields=fields)
    rows: list[dict[str, Any]] = [
        {"id": i, "name": f"n{i}", "region": "EU" if i % 2 else "US", "n": i} for i in range(9)
    ]
    [first] = table.append(rows).adds
    changed = [{**row, "region": "EU" if row["id"] > 4 else "US"} for row in rows]
    table.commit(table.remove(first), table.data_file(changed))
    config = configured(
        tmp_path,
        "0",
        identity=["key"],
        columns=["name", "n"],
        rename={"id": "key"},
        where="region = 'EU'",
        mask={"name": "hash", "region": "hash"},
        mask_key="deep-thought-42",
        unchanged="drop",
    )
    assert command("run", "--config", config, "--once").status == 0
    ran = command("verify", "orders", "--config", config)
    assert (ran.status, ran.errors) == (0, ""), ran.output
    assert ran.output.startswith("equal: ")


def test_nothing_delivered_yet_and_sinks_that_keep_nothing_are_told(
    tmp_path: Path, command: Commands
) -> None:
    lively(tmp_path)
    config = configured(tmp_path, "snapshot")
    ran = command("verify", "orders", "--config", config)
    assert ran.status == 1
    assert "error[offset]: orders has not delivered anything yet" in ran.errors
    assert command("verify", "odrers", "--config", config).status == 2
    config.write_text(config.read_text().replace("kind: file", "kind: console"))
    config.write_text(
        "\n".join(line for line in config.read_text().splitlines() if "/out" not in line)
    )
    ran = command("verify", "orders", "--config", config)
    assert (ran.status, "cannot be read back" in ran.errors) == (2, True)
