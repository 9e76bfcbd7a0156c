"""`tailerd top` and `tailerd tail -i` on Textual's own test screen."""

from __future__ import annotations

import asyncio
import os
import pty
import select
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pyarrow as pa
import pytest
from textual.app import App
from textual.widgets import DataTable, Static

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeSourceKind, ChangeType
from tailerd.changefeed.offset import Offset, Version
from tailerd.cli.screens.rows_table import CHANGED_STYLE, RowsTable
from tailerd.cli.screens.shown_rows import MAX_ROWS, show_batch, show_daemon_rows
from tailerd.cli.screens.tail_screen import TailScreen
from tailerd.cli.screens.top_screen import TopScreen
from tailerd.errors import DaemonUnreachableError, StorageError, TailerdError
from tailerd.pipeline.table_reading import ReadBatch
from tests.cli.commands import Commands
from tests.cli.test_daemon_client import TABLE
from tests.waiting import PATIENCE_SECONDS

SIZE = (80, 24)


def batch(rows: list[dict[str, object]], change: object, version: int = 3) -> ChangeBatch:
    return ChangeBatch(
        rows=pa.RecordBatch.from_pylist(rows),
        change_type=change if isinstance(change, ChangeType) else pa.array(change, pa.string()),
        version=Version(version),
        timestamp_us=1_700_000_000_000_000,
        change_source=ChangeSourceKind.CDC,
    )


UPDATE = batch(
    [{"id": 7, "name": "old", "city": "Rome"}, {"id": 7, "name": "new", "city": "Rome"}],
    ["update_preimage", "update_postimage"],
)


async def until(is_true: Callable[[], bool]) -> None:
    """Let the screen work until something holds."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not is_true():
        assert time.monotonic() < end, "this never came to hold"
        await asyncio.sleep(0.02)


def reported(app: App[object] | App[TailerdError] | App[None], name: str) -> str:
    return str(app.query_one(name, Static).content)


def test_an_update_names_the_columns_it_changed() -> None:
    old, new = show_batch(UPDATE)
    assert (old.changed, new.changed) == (frozenset(), frozenset({"name"}))
    assert new.cells == {"id": "7", "name": "new", "city": "Rome"}
    assert (new.version, new.time) == ("3", "2023-11-14 22:13:20")


def test_rows_without_their_old_row_change_nothing() -> None:
    one = batch([{"id": 7}], ["update_postimage"])
    two = batch([{"id": 7}, {"id": 8}], ChangeType.INSERT)
    assert [row.changed for row in show_batch(one) + show_batch(two)] == [frozenset()] * 3


def test_of_a_large_batch_the_last_rows_are_kept() -> None:
    rows = show_batch(batch([{"id": n} for n in range(MAX_ROWS + 5)], ChangeType.INSERT))
    assert (len(rows), rows[0].cells, rows[-1].cells) == (500, {"id": "5"}, {"id": "504"})


def test_what_a_terminal_would_obey_is_shown_as_an_escape() -> None:
    [row] = show_batch(batch([{"name": "\x1b[31mred", "gone": None}], ChangeType.INSERT))
    assert row.cells == {"name": "\\u001b[31mred", "gone": "null"}


def test_rows_of_a_daemon_come_oldest_first_and_nonsense_is_left_out() -> None:
    newest = [
        {"id": 2, "_change_type": "update_postimage", "_commit_version": 5},
        {"id": 1, "_change_type": "update_preimage", "_commit_version": 5},
        "?",
    ]
    assert [row.changed for row in show_daemon_rows(newest)] == [frozenset(), {"id"}]
    assert show_daemon_rows(None) == []


class Batches:
    """Batches for a `TailScreen`, given one after the other."""

    def __init__(self, *batches: ChangeBatch, error: TailerdError | None = None) -> None:
        self._batches = batches
        self._error = error

    async def __aiter__(self) -> AsyncIterator[ReadBatch]:
        at = Offset(table_id="t", version=Version(3))
        for each in self._batches:
            yield ReadBatch(rows=each, start=at, end=None, planned=None)
        if self._error is not None:
            raise self._error


def tail_screen(*batches: ChangeBatch, error: TailerdError | None = None) -> TailScreen:
    return TailScreen("/lake/orders", aiter(Batches(*batches, error=error)))


async def test_tail_shows_rows_with_the_changed_cells_in_colour() -> None:
    app = tail_screen(UPDATE, batch([{"id": 8, "name": "x", "city": "y"}], ChangeType.INSERT))
    async with app.run_test(size=SIZE):
        table = app.query_one(RowsTable)
        await until(lambda: table.row_count == 3)
        styles = [str(cell.style) for cell in table.get_row_at(1)]
        assert styles[2:] == ["", CHANGED_STYLE, "", ""]
        assert [str(cell) for cell in table.get_row_at(2)][2:5] == ["8", "x", "y"]
        assert table.cursor_row == 2
        await until(lambda: "nothing more" in reported(app, "#status"))
        assert reported(app, "#status").startswith("3 rows, version 3")


async def test_tail_follows_the_newest_row_unless_another_is_chosen_and_pauses() -> None:
    given: asyncio.Queue[ChangeBatch] = asyncio.Queue()

    async def batches() -> AsyncIterator[ReadBatch]:
        at = Offset(table_id="t", version=Version(3))
        while True:
            yield ReadBatch(rows=await given.get(), start=at, end=None, planned=None)

    app = TailScreen("/lake/orders", batches())
    async with app.run_test(size=SIZE) as pilot:
        table = app.query_one(RowsTable)
        for number in range(3):
            given.put_nowait(batch([{"id": number}], ChangeType.INSERT))
        await until(lambda: table.row_count == 3)
        await pilot.press("up")
        given.put_nowait(batch([{"id": 3, "added": 1}], ChangeType.DELETE))
        await until(lambda: table.row_count == 4)
        assert table.cursor_row < 3
        await pilot.press("f", "space")
        assert table.cursor_row == 3
        assert reported(app, "#status").endswith("paused")
        given.put_nowait(batch([{"id": 4}], ChangeType.INSERT))
        await asyncio.sleep(0.5)
        assert table.row_count == 4
        await pilot.press("space")
        await until(lambda: table.row_count == 5)


async def test_tail_keeps_a_bounded_number_of_rows() -> None:
    many = [
        batch([{"id": n} for n in range(450)], ChangeType.INSERT, version) for version in (1, 2)
    ]
    app = tail_screen(*many, *many)
    async with app.run_test(size=SIZE):
        await until(lambda: reported(app, "#status").startswith("1,800 rows"))
        table = app.query_one(RowsTable)
        await until(lambda: 0 < table.row_count <= 2 * MAX_ROWS)
        assert str(table.get_row_at(table.row_count - 1)[2]) == "449"


async def test_tail_leaves_its_screen_with_the_error_that_reading_met() -> None:
    error = StorageError("The disk is gone.")
    app = tail_screen(UPDATE, error=error)
    async with app.run_test(size=SIZE):
        await until(lambda: not app.is_running or app.return_value is not None)
    assert app.return_value is error


class FakeDaemon:
    """Answers as a daemon does."""

    url = "http://127.0.0.1:9464"

    def __init__(self) -> None:
        self.tables: list[dict[str, object]] = [
            {**TABLE, "state": "running", "last_error": None},
            {**TABLE, "table": "refunds"},
        ]
        self.rows: dict[str, object] | None = {"newest": [], "masked": []}
        self.is_there = True
        self.changes: list[tuple[str, str]] = []

    def pause(self, name: str) -> dict[str, object]:
        self.changes.append(("pause", name))
        return {}

    def resume(self, name: str) -> dict[str, object]:
        self.changes.append(("resume", name))
        raise DaemonUnreachableError("No daemon answers.")

    def status(self) -> dict[str, object]:
        if not self.is_there:
            raise DaemonUnreachableError("No daemon answers.")
        return {"ready": True, "tables": self.tables}

    def table(self, name: str) -> dict[str, object]:
        commit = {"version": 4, "operation": "MERGE", "rows_added": 12, "timestamp_ms": 0}
        return {"table": name, "rows": self.rows, "history": {"commits": [commit]}}


async def test_top_shows_pipelines_their_error_and_their_newest_rows() -> None:
    daemon = FakeDaemon()
    app = TopScreen(daemon, 0.05)
    async with app.run_test(size=SIZE) as pilot:
        pipelines = app.query_one("#pipelines", DataTable)
        await until(lambda: pipelines.row_count == 2)
        assert [str(cell) for cell in pipelines.get_row("orders")][:2] == ["orders", "running"]
        kinds = ("update_postimage", "update_preimage")
        daemon.rows = {
            "newest": [
                {"id": n, "_change_type": kind, "_commit_version": 5}
                for n, kind in enumerate(kinds)
            ]
        }
        rows = app.query_one(RowsTable)
        await until(lambda: rows.row_count == 2)
        assert str(rows.get_row_at(1)[2].style) == CHANGED_STYLE
        await pilot.press("down")
        await until(lambda: "The disk is full." in reported(app, "#detail"))


async def test_top_pauses_and_resumes_a_pipeline_when_asked_twice_and_opens_its_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    daemon = FakeDaemon()
    app = TopScreen(daemon, 0.05)
    opened: list[str] = []
    monkeypatch.setattr(app, "open_url", opened.append)
    async with app.run_test(size=SIZE) as pilot:
        pipelines = app.query_one("#pipelines", DataTable)
        await until(lambda: pipelines.row_count == 2)
        await pilot.press("p")
        assert daemon.changes == []
        await pilot.press("p")
        await until(lambda: daemon.changes == [("pause", "orders")])
        daemon.tables[0]["state"] = "paused"
        await until(lambda: str(pipelines.get_cell("orders", "state")) == "paused")
        await pilot.press("p", "down", "up", "p")
        assert len(daemon.changes) == 1
        await pilot.press("p")
        await until(lambda: ("resume", "orders") in daemon.changes)
        await pilot.press("o")
    assert opened == ["http://127.0.0.1:9464/#/tables/orders"]


async def test_top_goes_on_while_the_daemon_restarts_and_follows_its_tables() -> None:
    daemon = FakeDaemon()
    app = TopScreen(daemon, 0.05)
    async with app.run_test(size=SIZE) as pilot:
        pipelines = app.query_one("#pipelines", DataTable)
        await until(lambda: pipelines.row_count == 2)
        daemon.is_there = False
        await until(lambda: "No daemon answers." in reported(app, "#detail"))
        daemon.tables = [{**TABLE, "state": "paused"}, {**TABLE, "table": "stock"}]
        daemon.rows, daemon.is_there = None, True
        await until(lambda: {key.value for key in pipelines.rows} == {"orders", "stock"})
        await until(lambda: str(pipelines.get_cell("orders", "state")) == "paused")
        await until(lambda: "web.rows" in reported(app, "#heading"))
        cells = [str(cell) for cell in app.query_one(RowsTable).get_row_at(0)]
        assert cells == ["MERGE", "4", "12", "-", "-", "-", "1970-01-01 00:00:00"]
        await pilot.press("space")
        assert app.sub_title == "paused"


@pytest.mark.parametrize(
    ("arguments", "instead"),
    [
        (("top",), "status --watch"),
        (("tail", "/nowhere", "-i"), "Leave out -i"),
        (("tail", "/nowhere", "-i", "--format", "jsonl"), "exclude each other"),
    ],
)
def test_without_a_terminal_a_screen_is_refused_with_what_works(
    command: Commands, arguments: tuple[str, ...], instead: str
) -> None:
    ran = command(*arguments)
    assert ran.status == 2
    assert instead in ran.errors


def test_a_table_on_a_real_terminal(lake: Path) -> None:
    """`tail -i` in a pseudo-terminal of 80 columns: it draws, q ends it with status 0."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
        location = str(lake / "orders")
        os.execv(
            sys.executable,
            [sys.executable, "-m", "tailerd", "tail", location, "-i", "--from", "snapshot"],
        )
    seen, end = b"", time.monotonic() + PATIENCE_SECONDS
    while b"2 rows" not in seen and time.monotonic() < end:
        if select.select([terminal], [], [], 0.1)[0]:
            seen += os.read(terminal, 65536)
    os.write(terminal, b"q")
    _, status = os.waitpid(pid, 0)
    assert b"insert" in seen
    assert os.waitstatus_to_exitcode(status) == 0
