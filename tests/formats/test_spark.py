"""Tables of other formats through Spark: batches, and streams that go on.

One process reads them all, as a Spark takes long to start.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.formats import spark_program
from tests.formats.conftest import ROOT
from tests.formats.test_everywhere import FROM_BEGINNING, three_versions
from tests.spark_session import require_java

pytestmark = [pytest.mark.spark, pytest.mark.full]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, memory_is_installed: None) -> dict[str, Any]:
    """What the program found of each format."""
    require_java()
    folder = tmp_path_factory.mktemp("formats")
    table = three_versions(folder / "table")
    done = subprocess.run(
        [sys.executable, "-m", spark_program.__name__, table, folder],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_a_format_that_nobody_but_the_registry_knows_is_read(found: dict[str, Any]) -> None:
    memory = found["memory"]
    every = sorted(list(key) for key in FROM_BEGINNING)
    assert memory["batch"] == memory["stream"] == every
    assert memory["filtered"] == [["insert", 7, 20]]
    assert memory["snapshot"] == [["insert", number, 20] for number in (0, 1, 2, 3, 4, 7, 8)]


def test_datasets_are_read(found: dict[str, Any]) -> None:
    dataset = found["kartothek"]
    assert dataset["snapshot"] == [["insert", 1, 0], ["insert", 2, 0]]
    assert dataset["filtered"] == [["insert", 2, 0]]
    # The program ends before it is told of: two commits between two looks are one state.
    assert dataset["stream"] == [
        ["delete", 1, 1],
        ["insert", 1, 0],
        ["insert", 2, 0],
        ["insert", 3, 1],
        ["insert", 4, 1],
    ]
    assert dataset["batch"] == []
    assert "there is no ledger" in dataset["refused"]


def test_lance_tables_are_read(found: dict[str, Any]) -> None:
    table = found["lance"]
    inserted: list[list[object]] = [["insert", number, 1, f"n{number}"] for number in (1, 2, 3)]
    later: list[list[object]] = [
        ["delete", 1, 3, "n1"],
        ["update_postimage", 2, 2, "x"],
        ["update_preimage", 2, 2, "n2"],
    ]
    assert table["first"] == inserted
    assert table["second"] == sorted(inserted + later)
    assert table["snapshot"] == [["insert", 3, 3, "n3"]]
    assert table["batch"] == later
