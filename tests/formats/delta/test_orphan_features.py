"""Features that change how files are read, listed wrongly by the protocol or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tailerd.errors import UnsupportedFeatureError
from tests.formats.delta.test_messages import command
from tests.tables.builder import TableBuilder
from tests.tables.feed import changes

pytestmark = pytest.mark.attack

BAD_PROTOCOLS: dict[str, dict[str, Any]] = {
    "for writers only": {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors", "columnMapping"],
    },
    "for writers, old readers": {
        "minReaderVersion": 1,
        "minWriterVersion": 7,
        "writerFeatures": ["columnMapping"],
    },
    "property alone": {"minReaderVersion": 1, "minWriterVersion": 2},
    "old readers, writers of the feature": {"minReaderVersion": 1, "minWriterVersion": 5},
}
UNLISTED: dict[str, dict[str, Any]] = {
    "readers and writers": {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors"],
    },
    "writers": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["appendOnly"]},
}


def mapped_table(folder: Path, protocol: dict[str, Any], mode: str = "name") -> TableBuilder:
    """Return a partitioned table with two rows, whose protocol is replaced by `protocol`."""
    table = TableBuilder(
        folder,
        fields=[("id", "long"), ("p", "string")],
        partition_by=["p"],
        mapping=mode,  # type: ignore[arg-type]
        properties={
            "delta.checkpoint.writeStatsAsStruct": "true",
            "delta.checkpoint.writeStatsAsJson": "false",
            "delta.checkpointInterval": "1",
        },
    )
    table.create()
    table.commit({"protocol": protocol})
    table.append([{"id": 7, "p": "x"}])
    return table


@pytest.mark.parametrize("mode", ["name", "id"])
@pytest.mark.parametrize("name", BAD_PROTOCOLS)
async def test_columns_are_found_by_the_property_where_the_list_is_wrong(
    tmp_path: Path, name: str, mode: str
) -> None:
    table = mapped_table(tmp_path, BAD_PROTOCOLS[name], mode)
    for start in ("2", "snapshot"):
        [row] = await changes(table.folder, start)
        assert (row["id"], row["p"]) == (7, "x")


@pytest.mark.parametrize("name", BAD_PROTOCOLS)
def test_a_checkpoint_has_physical_names_where_the_list_is_wrong(tmp_path: Path, name: str) -> None:
    table = mapped_table(tmp_path, BAD_PROTOCOLS[name])
    done = command("maintain", table.folder, "--apply")
    assert done.returncode == 0, done.stderr
    [checkpoint] = table.log.glob("*.checkpoint*.parquet")
    [add] = [row["add"] for row in pq.read_table(checkpoint).to_pylist() if row["add"]]
    assert add["partitionValues_parsed"] == {"col-0002": "x"}
    assert add["stats_parsed"]["minValues"] == {"col-0001": 7}


@pytest.mark.parametrize("name", UNLISTED)
async def test_column_mapping_that_is_listed_nowhere_is_refused(tmp_path: Path, name: str) -> None:
    table = mapped_table(tmp_path, UNLISTED[name])
    for start in ("2", "snapshot"):
        with pytest.raises(UnsupportedFeatureError, match="does not list the feature"):
            await changes(table.folder, start)
    done = command("maintain", table.folder, "--apply")
    assert done.returncode == 3
    assert "does not list the feature columnMapping" in done.stderr
    assert not list(table.log.glob("*.checkpoint*"))


@pytest.mark.parametrize("feature", ["catalogManaged", "catalogOwned-preview", "adaptiveMetadata"])
async def test_a_feature_of_readers_that_only_writers_list_is_refused(
    tmp_path: Path, feature: str
) -> None:
    table = TableBuilder(tmp_path)
    table.append([{"id": 1, "name": "a"}])
    table.commit(
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [feature]}}
    )
    with pytest.raises(UnsupportedFeatureError, match=feature):
        await changes(table.folder, "snapshot")
