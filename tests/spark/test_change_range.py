"""What a table does not have is one error that names the option which asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailerd.changefeed.limits import ReadLimit
from tailerd.errors import MissingVersionError, TransformsMismatchError, UsageError
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


async def test_a_column_that_was_dropped_later_is_in_an_earlier_schema(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "orders", mapping="name")
    table.append([{"id": 1, "name": "x"}])
    table.change_metadata(fields=[each for each in table.fields if each["name"] != "name"])
    given = {"path": str(table.folder), "where": "name = 'x'"}
    with pytest.raises(UsageError, match="There is no column 'name'"):
        await open_source(ReadOptions.parse(given))
    options = ReadOptions.parse({**given, "schemaVersion": "0"})
    schema, _ = await declared_columns(options)
    assert schema.names == ["id", "name"]
    with pytest.raises(UsageError, match="There is no column 'name'"):
        await open_source(options)
    source = await open_source(options, is_followed=True)
    begin = await source.initial_offset("0")
    end = await source.latest_offset(begin, ReadLimit())
    assert end.version == 1
    with pytest.raises(TransformsMismatchError):
        await source.latest_offset(end, ReadLimit())


async def test_a_schema_the_table_does_not_have(table: TableBuilder) -> None:
    options = ReadOptions.parse({"path": str(table.folder), "schemaVersion": "9"})
    with pytest.raises(MissingVersionError, match="The option schemaVersion=9 cannot be applied"):
        await declared_columns(options)
