"""What a table does not have is one error that names the option which asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailerd.errors import MissingVersionError, UsageError
from tailerd.spark.change_range import batch_range
from tailerd.spark.options import ReadOptions
from tailerd.spark.table_source import declared_columns, open_source
from tests.tables.builder import TableBuilder


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    table = TableBuilder(tmp_path / "orders")
    for number in range(3):
        table.append([{"id": number, "name": "x"}])
    return table


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"startingVersion": "9"}, MissingVersionError),
        ({"startingVersion": "9" * 18}, MissingVersionError),
        ({"startingTimestamp": "2999-01-01"}, UsageError),
        ({"endingTimestamp": "1999-01-01"}, MissingVersionError),
    ],
)
async def test_a_range_the_table_does_not_have(
    table: TableBuilder, given: dict[str, str], kind: type[Exception]
) -> None:
    options = ReadOptions.parse({"path": str(table.folder), **given})
    [(name, text)] = given.items()
    with pytest.raises(kind, match=f"The option {name}={text} cannot be applied"):
        await batch_range(await open_source(options), options)


async def test_a_version_that_was_cleaned_up(table: TableBuilder) -> None:
    table.checkpoint()
    table.commit_path(0).unlink()
    table.commit_path(1).unlink()
    options = ReadOptions.parse({"path": str(table.folder), "startingVersion": "1"})
    with pytest.raises(MissingVersionError, match=r"startingVersion=1 .*no longer in the log"):
        await batch_range(await open_source(options), options)


async def test_a_schema_the_table_does_not_have(table: TableBuilder) -> None:
    options = ReadOptions.parse({"path": str(table.folder), "schemaVersion": "9"})
    with pytest.raises(MissingVersionError, match="The option schemaVersion=9 cannot be applied"):
        await declared_columns(options)
