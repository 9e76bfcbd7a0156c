"""Datasets written by the library itself, state by state, with their answers.

`score_formats.py` does the same through the command; here rows are compared as Python has them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tailerd.changefeed.change_batch import ChangeBatch
from tests.formats.kartothek.observing import Follower
from tests.tables.dataset_writer import DatasetWriter

pytestmark = pytest.mark.golden

PREFIX = "generated__kartothek__"


def answers(given_tables: Path) -> list[dict[str, Any]]:
    found = sorted((given_tables / "expected_formats").glob(f"{PREFIX}*.json"))
    assert found, "the given tables have no datasets"
    return [json.loads(path.read_text()) for path in found]


def put_state(store: Path, state: Path) -> set[Path]:
    """Copy a state as its writer does; return what is garbage then."""
    files = {path.relative_to(state) for path in state.rglob("*") if path.is_file()}
    for name in sorted(files, key=lambda each: (".by-dataset-metadata." in each.name, each)):
        target = store / name
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.draft")
        shutil.copyfile(state / name, draft)
        os.replace(draft, target)
    there = {path.relative_to(store) for path in store.rglob("*") if path.is_file()}
    return there - files


def net(changes: Iterable[tuple[str, dict[str, Any]]]) -> Counter[str]:
    """Rows as text without nulls; +1 for each that came, -1 for each that went."""
    found: Counter[str] = Counter()
    for kind, row in changes:
        plain = {name: str(value) for name, value in row.items() if value is not None}
        found[json.dumps(plain, sort_keys=True)] += 1 if kind == "insert" else -1
    return Counter({row: count for row, count in found.items() if count})


def list_rows(batches: Iterable[ChangeBatch]) -> list[tuple[str, dict[str, Any]]]:
    return [
        pair
        for batch in batches
        for pair in zip(batch.change_types().to_pylist(), batch.rows.to_pylist(), strict=True)
    ]


async def test_every_state_of_the_librarys_datasets_gives_the_known_changes(
    given_tables: Path, tmp_path: Path
) -> None:
    for number, answer in enumerate(answers(given_tables)):
        root = given_tables / "tables" / answer["table"]
        for dataset in answer["datasets"]:
            store = tmp_path / f"{number}-{dataset['address'].replace('/', '-')}"
            follower: Follower | None = None
            for step in dataset["states"]:
                garbage = put_state(store, root / step["state"])
                if follower is None:
                    location = store / dataset["address"]
                    follower = await Follower.open(
                        location, ledger=tmp_path / f"ledger{store.name}"
                    )
                found = net(list_rows(await follower.rest()))
                assert found == net(map(tuple, step["rows"])), (answer["table"], step["state"])
                for name in garbage:
                    (store / name).unlink()


def test_the_tests_own_writer_writes_what_the_library_writes(
    given_tables: Path, tmp_path: Path
) -> None:
    writer = DatasetWriter(tmp_path, partition_on=["name"])
    writer.commit([{"id": 1, "name": "a=b c"}])
    mine = json.loads(writer.metadata_path.read_text())
    for path in given_tables.glob("tables/generated/kartothek/**/*.by-dataset-metadata.json"):
        theirs = json.loads(path.read_text())
        assert {*theirs} == {*mine}
        assert theirs["dataset_metadata_version"] == mine["dataset_metadata_version"]
        for label, partition in theirs["partitions"].items():
            assert partition == {"files": {"table": f"ds/table/{label}.parquet"}}
    for label, partition in mine["partitions"].items():
        assert partition == {"files": {"table": f"ds/table/{label}.parquet"}}
    assert [label.partition("/")[0] for label in mine["partitions"]] == ["name=a%3Db%20c"]
