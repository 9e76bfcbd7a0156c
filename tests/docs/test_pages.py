"""The tutorial and the recipes: every command runs, every configuration is accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pytest
import yaml

from tailerd.cli import run
from tailerd.config import Config
from tailerd.docs.topics import topic_text
from tailerd.formats.detect import find_demo
from tailerd.formats.parts import make_demo_table
from tests.conftest import ROOT
from tests.docs.shell import blocks, run_in_order, without_comments


def is_for_kafka(block: str) -> bool:
    return "tests.kafka" in block


@pytest.mark.full
@pytest.mark.slow
def test_the_tutorial_runs_as_printed(tmp_path: Path) -> None:
    parts = [part for part in blocks(topic_text("tutorial"), "bash") if not is_for_kafka(part)]
    # A command over several lines stays one.
    commands = [part if "python -c" in part else None for part in parts]
    lines = [
        line
        for part, whole in zip(parts, commands, strict=True)
        for line in ([whole.strip()] if whole else without_comments(part))
    ]
    shown = "".join(run_in_order(lines, tmp_path))
    assert "equal: " in shown
    assert "update_postimage" in shown


def test_the_block_for_kafka_is_that_of_readme() -> None:
    # tests/integration/kafka/test_readme.py runs it.
    for_kafka = [
        without_comments(block)
        for text in (topic_text("tutorial"), (ROOT / "README.md").read_text())
        for block in blocks(text, "bash")
        if is_for_kafka(block)
    ]
    assert len(for_kafka) == 2
    assert for_kafka[0] == for_kafka[1]


def recipes() -> list[dict[str, Any]]:
    found = [yaml.safe_load(block) for block in blocks(topic_text("recipes"), "yaml")]
    return [each for each in found if "tables" in each]


@pytest.mark.parametrize("content", recipes(), ids=lambda content: str(content)[:60])
def test_a_recipe_is_a_valid_configuration(content: dict[str, Any]) -> None:
    text = yaml.safe_dump(content).replace("${file:/run/secrets/hook}", "a-secret")
    Config.model_validate(yaml.safe_load(text.replace("${file:/run/secrets/mask}", "a-secret")))


def test_the_newest_rows_come_from_the_changes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    [content] = [each for each in recipes() if "parquet" in str(each)]
    make_demo_table(find_demo(), Path("lake/orders"))
    config = {**content, "engine": "arrow", "state": "state", "http": {"listen": None}}
    config["tables"]["orders"]["from"] = "0"
    Path("tailerd.yaml").write_text(yaml.safe_dump(config))
    assert run(["run", "--once"]) == 0
    [query] = blocks(topic_text("recipes"), "sql")
    found = duckdb.sql(f"SELECT order_id, status FROM ({query})")
    assert found is not None
    rows = found.fetchall()
    table = deltalake.DeltaTable("lake/orders").to_pyarrow_table()
    expected = [(row["order_id"], row["status"]) for row in table.to_pylist()]
    assert sorted(rows) == sorted(expected)
