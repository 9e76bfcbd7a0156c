"""A pipeline tells changes of columns once, before their first row, whatever happens between."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.offset import Offset
from tailerd.errors import ConfigError, SinkError
from tailerd.formats.base import OpenRequest
from tailerd.pipeline.policies import OnCorruptCommit, OnGap
from tailerd.sinks.base import Delivery
from tailerd.telemetry.events import SchemaChanged
from tailerd.transforms.options import make_view
from tests.pipeline.collecting_sink import CollectingSink
from tests.pipeline.runs import Run
from tests.tables import delta_schema
from tests.tables.builder import TableBuilder
from tests.tables.opened import open_delta

Told = tuple[int, str]
"""Version and summary of a change, or 0 and the id of a row."""


class TellingSink(CollectingSink):
    """Keeps changes and row ids in their order, by the start of their delivery."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[Offset, list[Told]] = {}
        self.failures = 0
        self.stops_after = 1000

    async def resume(self, offset: Offset) -> None:
        await super().resume(offset)
        self.told = {s: told for s, told in self.told.items() if s.is_before(offset)}

    async def write(self, delivery: Delivery) -> int:
        if len(self.told) >= self.stops_after:
            raise ConfigError("stopped")
        found: list[Told] = []
        count = 0

        def take() -> None:
            while delivery.schema_changes:
                change = delivery.schema_changes.popleft()
                found.append((change.version, change.summary))

        async for batch in delivery.batches:
            take()
            names = batch.rows.schema.names
            found += [(0, str(row[names[0]])) for row in batch.rows.to_pylist()]
            count += batch.num_rows
        take()
        if self.failures:
            self.failures -= 1
            raise SinkError("full")
        self.told[delivery.start] = found
        return count

    @property
    def all(self) -> list[Told]:
        return [
            each for start in sorted(self.told, key=lambda s: s.order) for each in self.told[start]
        ]


async def run(folder: Path, sink: TellingSink, **options: object) -> Run:
    """Return a run of everything that is there; the next one continues."""
    view = options.pop("view", None)
    changes = ChangeMode(str(options.pop("changes", "auto")))
    source = await open_delta(str(folder), OpenRequest(changes=changes, view=view))  # type: ignore[arg-type]
    return Run(sink=sink, source=source, changes=changes, **options)  # type: ignore[arg-type]


FIRST = "id (int64), name (string)"


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    """Rows 1, 2 and 3: `email` is added by a commit of its own before 2, `name` goes before 3."""
    table = TableBuilder(tmp_path / "t", mapping="name")
    table.append([{"id": 1, "name": "a"}])
    table.change_metadata(fields=[*table.fields, ("email", "string")])
    table.append([{"id": 2, "name": "b", "email": "x"}])
    table.change_metadata(fields=[f for f in table.fields if f["name"] != "name"])
    table.append([{"id": 3, "email": "y"}])
    return table


async def test_changes_come_before_their_first_row(table: TableBuilder) -> None:
    sink = TellingSink()
    runs = await run(table.folder, sink)
    await runs.once()
    assert sink.all == [
        (0, FIRST),
        (0, "1"),
        (2, "added email (string)"),
        (0, "2"),
        (4, "dropped name (string)"),
        (0, "3"),
    ]
    found = [e for e in runs.events if isinstance(e, SchemaChanged)]
    assert [(e.version, e.summary) for e in found] == [sink.all[2], sink.all[4]]


async def test_a_commit_without_rows_tells_its_change_once_also_after_restarts(
    tmp_path: Path,
) -> None:
    table, sink = TableBuilder(tmp_path), TellingSink()
    table.append([{"id": 1, "name": "a"}])
    runs = await run(tmp_path, sink)
    await runs.once()
    for change in ("added email (string)", "added more (long)"):
        name, kind = change.removeprefix("added ").rstrip(")").split(" (")
        table.change_metadata(fields=[*table.fields, (name, kind)])
        runs = await run(tmp_path, sink, offsets=runs.offsets)
        await runs.once()
        table.append([{"id": 2, "name": "b"}])
        runs = await run(tmp_path, sink, offsets=runs.offsets)
        await runs.once()
    assert sink.all == [
        (0, FIRST),
        (0, "1"),
        (1, "added email (string)"),
        (0, "2"),
        (3, "added more (int64)"),
        (0, "2"),
    ]


async def test_a_delivery_that_is_repeated_tells_them_again(table: TableBuilder) -> None:
    sink = TellingSink()
    sink.failures = 2
    runs = await run(table.folder, sink)
    await runs.once()
    assert [told for told in sink.all if told[0]] == [
        (2, "added email (string)"),
        (4, "dropped name (string)"),
    ]
    assert len([e for e in runs.events if isinstance(e, SchemaChanged)]) == 2


async def test_a_restart_inside_a_commit_tells_nothing_again(tmp_path: Path) -> None:
    table, sink = TableBuilder(tmp_path), TellingSink()
    [old] = table.append([{"id": 1, "name": "a"}]).adds
    removed = table.remove(old)
    table.fields = [{**field} for field in table.fields if field["name"] == "id"]
    added = [table.data_file([{"id": number}]) for number in (2, 3, 4)]
    table.commit(table.metadata(), removed, *added)
    runs = await run(tmp_path, sink, changes="files", max_files=1)
    while len(sink.told) < 5:
        # One delivery for each start.
        sink.stops_after = len(sink.told) + 1
        await runs.once()
    assert [told for told in sink.all if told[0] or told[1] == FIRST] == [
        (0, FIRST),
        (1, "dropped name (string)"),
    ]
    assert sink.all.index((1, "dropped name (string)")) == sink.all.index((0, "2")) - 1


async def test_changes_are_those_of_the_view(table: TableBuilder) -> None:
    sink = TellingSink()
    view = make_view(columns=["id", "email"], rename={"email": "mail"}, mask={"email": "redact"})
    runs = await run(table.folder, sink, view=view)
    await runs.once()
    assert [each for each in sink.all if "(" in each[1]] == [
        (0, "id (int64)"),
        (2, "added mail (string)"),
    ]


async def test_after_a_gap_all_columns_are_told(table: TableBuilder) -> None:
    sink = TellingSink()
    runs = await run(table.folder, sink)
    await runs.once()
    table.append([{"id": 4, "email": "z"}])
    table.append([{"id": 5, "email": "z"}])
    table.checkpoint()
    for version in range(6):
        table.commit_path(version).unlink()
    runs = await run(table.folder, sink, offsets=runs.offsets, on_gap=OnGap.SNAPSHOT)
    await runs.once()
    assert (6, "id (int64), email (string)") in sink.all


async def test_after_a_commit_that_is_left_out_all_columns_are_told(tmp_path: Path) -> None:
    table, sink = TableBuilder(tmp_path), TellingSink()
    table.append([{"id": 1, "name": "a"}])
    table.fields = [*table.fields, delta_schema.field("email", "string")]
    lost = table.data_file([{"id": 2, "email": "x"}])
    table.commit(table.metadata(), lost)
    (tmp_path / lost["add"]["path"]).unlink()
    table.append([{"id": 3, "email": "y"}])
    runs = await run(tmp_path, sink, on_corrupt_commit=OnCorruptCommit.SKIP_AND_RECORD)
    await runs.once()
    every = "id (int64), name (string), email (string)"
    assert sink.all == [(0, FIRST), (0, "1"), (2, every), (0, "3")]
