"""What users get of the given tables is what they got before, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden import digests

pytestmark = pytest.mark.golden

RECORDED: dict[str, dict[str, str]] = json.loads(digests.DIGESTS.read_text())


def recorded(*, is_of_files: bool) -> dict[str, dict[str, str]]:
    return {
        table: {
            output: digest
            for output, digest in outputs.items()
            if (output == "files") is is_of_files
        }
        for table, outputs in RECORDED.items()
    }


@pytest.mark.full
async def test_lines_and_messages_of_every_table_are_what_they_were(given_tables: Path) -> None:
    assert await digests.all_digests(given_tables) == recorded(is_of_files=False)


@pytest.mark.full
@pytest.mark.parametrize(
    "engine",
    ["arrow", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow])],
)
def test_delivered_files_of_every_table_are_what_they_were_on_each_engine(
    engine: str, given_tables: Path, tmp_path: Path
) -> None:
    # Spark's names and bytes are the Arrow engine's.
    expected = {
        table: outputs["files"]
        for table, outputs in recorded(is_of_files=True).items()
        if "files" in outputs
    }
    assert len(expected) > 100
    assert digests.delivered(given_tables, engine, tmp_path) == expected
