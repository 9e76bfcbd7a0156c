"""Lance tables through `tailerd run`, `verify`, `validate`, `offsets` and the other commands."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.formats.delivering import changes, delivered, run_once
from tests.formats.lance.test_gaps import rows, written
from tests.integration.daemon.running import (
    file_table,
    run_to_end,
    write_config,
)
from tests.tables.lance_writer import LanceWriter


@pytest.mark.full
def test_a_table_made_again_is_another_history(tmp_path: Path) -> None:
    written(tmp_path / "t", 3)
    table = file_table(tmp_path / "t", tmp_path / "out")
    config = write_config(tmp_path, orders=table)
    run_once(config)
    shutil.rmtree(tmp_path / "t")
    written(tmp_path / "t", 5)
    assert "table_recreated" in run_once(config, 3)
    config = write_config(tmp_path, orders={**table, "on_gap": "snapshot"})
    run_once(config)
    assert len(list((tmp_path / "out").glob("replaced-*"))) == 1
    assert changes(delivered(tmp_path / "out")) == Counter(
        [
            *[("insert", 0, 3), ("insert", 1, 3), ("insert", 2, 3), ("insert", 3, 3)],
            *[("insert", number, 5) for number in range(6)],
        ]
    )


@pytest.mark.full
def test_commands_show_a_table(tmp_path: Path) -> None:
    writer = LanceWriter(tmp_path / "t", stable_ids=True)
    writer.append(rows(1, 2, 3))
    writer.delete("id = 2")
    writer.dataset.add_columns({"x": "id + 1"})
    writer.dataset.optimize.compact_files()
    shown = json.loads(run_to_end("inspect", tmp_path / "t", "--json").stdout)
    assert (shown["format"], shown["version"], shown["num_rows"]) == ("lance", 4 + 1, 2)
    assert shown["reader_flags"] == ["stable row ids"]
    assert list(shown["schema"]) == ["id", "name", "x"]
    files = run_to_end("inspect", tmp_path / "t", "--files", "--version", "2", "--json").stdout
    [file] = map(json.loads, files.splitlines())
    assert file["deleted_rows"] == 1
    history = run_to_end("history", tmp_path / "t", "--json").stdout
    found = [json.loads(line) for line in history.splitlines()]
    assert [each["changes"] for each in found] == ["files", "vectors", "rows", "none", "none"]
    assert [each["operation"] for each in found] == [
        *("overwrite", "delete", "merge", "reserve fragments", "rewrite"),
    ]
