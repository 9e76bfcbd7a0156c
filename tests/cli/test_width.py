"""Commands that report fit a line of 80 cells, and of any other number."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from tailerd.cli.change_table import ChangeTable, text_width
from tailerd.cli.quantities import duration_text, size_text
from tailerd.cli.record_table import Layout, fitted_widths
from tailerd.cli.status import build_row, view_lines
from tests.cli.commands import Commands, on_terminal
from tests.cli.test_daemon_client import STATUS, TABLE, listening
from tests.records.batches import change_batch
from tests.tables.builder import TableBuilder


@pytest.fixture
def wide_table(tmp_path: Path) -> Path:
    table = TableBuilder(tmp_path / "t")
    table.create()
    for number in range(3):
        table.append([{"id": number}])
    table.commit(table.data_file([{"id": 9}]), operation="CREATE OR REPLACE TABLE AS SELECT " * 4)
    return tmp_path / "t"


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
@pytest.mark.parametrize("command_line", [("history",), ("inspect", "--files")])
def test_no_line_is_wider_than_asked(
    wide_table: Path,
    command: Commands,
    monkeypatch: pytest.MonkeyPatch,
    columns: int,
    command_line: tuple[str, ...],
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    name, *options = command_line
    ran = command(name, wide_table, *options)
    assert ran.status == 0
    assert max(map(text_width, ran.output.splitlines())) <= columns


def test_history_keeps_version_time_and_operation_and_shows_more_where_there_is_room(
    wide_table: Path, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = {}
    for columns in (60, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        shown[columns] = command("history", wide_table).output.splitlines()[0].split()
    assert shown[200] == ["version", "time", "operation", "files", "size", "changes"]
    assert shown[60][:3] == shown[200][:3]
    assert "size" not in shown[60]


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_status_fits_and_never_leaves_out_state_and_error(
    command: Commands, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with listening(body=STATUS) as (url, _):
        ran = command("status", "--http", url)
    lines = ran.output.splitlines()
    assert max(map(len, lines)) <= columns
    assert "retrying" in lines[1]
    assert "storage:" in lines[1]


def test_status_of_one_pipeline_shows_the_whole_error_its_age_and_the_next_attempt(
    command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with listening(body=STATUS) as (url, _):
        ran = command("status", "orders", "--http", url)
    text = " ".join(ran.output.split())
    assert "The disk is full. Free space." in text
    assert "1970-01-01T00:00:04.000Z" in text
    assert "after 2 failed attempts" in text
    assert max(map(len, ran.output.splitlines())) <= 80


@pytest.mark.parametrize(("state", "ended"), [("running", 0), ("retrying", 0), ("failed", 1)])
@pytest.mark.parametrize("arguments", [[], ["orders"], ["--json"], ["orders", "--json"]])
def test_status_ends_with_1_if_a_pipeline_has_failed(
    command: Commands, state: str, ended: int, arguments: list[str]
) -> None:
    tables = [{**TABLE, "state": state}, {**TABLE, "table": "refunds", "state": "running"}]
    with listening(body={"tables": tables}) as (url, _):
        assert command("status", *arguments, "--http", url).status == ended
        assert command("status", "refunds", "--http", url).status == 0


@pytest.mark.parametrize("name", [[], ["orders"]])
def test_a_terminal_gets_states_in_colours(name: list[str]) -> None:
    with listening(body={"tables": [{**TABLE, "state": "failed"}]}) as (url, _):
        with on_terminal("status", *name, "--http", url) as terminal:
            assert "\x1b[31mfailed\x1b[0m" in terminal.end()
        with on_terminal("status", *name, "--http", url, NO_COLOR="1") as terminal:
            assert "\x1b" not in terminal.end()


def error(**fields: object) -> Mapping[str, object]:
    known = TABLE["last_error"]
    assert isinstance(known, dict)
    return {**known, **fields}


def test_an_error_that_has_passed_is_no_present_one() -> None:
    passed = {**TABLE, "state": "running", "last_error": error(is_current=False)}
    assert build_row(passed, 5.0)["error"] is None
    shown = "\n".join(view_lines(passed, 64.0, None))
    assert "last error  storage (1 min ago" in shown
    assert "It has passed." in shown
    assert "next retry" not in shown


def test_a_failed_pipeline_says_how_to_resume_it() -> None:
    failed = {**TABLE, "state": "failed", "next_retry_ms": None}
    assert "tailerd resume orders" in "\n".join(view_lines(failed, 5.0, 80))


def test_a_view_can_be_made_of_what_another_release_says() -> None:
    lines = list(view_lines({"table": "orders", "state": "starting"}, 0.0, 80))
    assert lines[0].endswith("orders")


def test_columns_give_way_in_their_order_before_texts_are_cut() -> None:
    layout = Layout(columns=("a", "b", "c", "d"), optional=("c", "b"), cut=("d",))
    natural = {"a": 10, "b": 10, "c": 10, "d": 40}
    assert fitted_widths(natural, layout, 100) == natural
    assert fitted_widths(natural, layout, 60) == {**natural, "d": 24}
    assert fitted_widths(natural, layout, 45) == {"a": 10, "b": 10, "d": 21}
    assert fitted_widths(natural, layout, 30) == {"a": 10, "d": 18}
    assert fitted_widths(natural, layout, 3) == {"a": 10, "d": 6}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0.0 s"),
        (0.04, "0.0 s"),
        (12.4, "12 s"),
        (59.7, "1 min"),
        (61.26, "1 min 1 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_durations_have_their_two_largest_units(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")]
)
def test_sizes_have_a_unit(size: int, text: str) -> None:
    assert size_text(size) == text


def test_json_of_status_is_not_touched_by_the_width(
    command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    with listening(body=STATUS) as (url, _):
        ran = command("status", "orders", "--json", "--http", url)
    assert json.loads(ran.output) == TABLE


@pytest.mark.parametrize(
    ("state", "status", "words"),
    [
        ("running", 0, "orders resumed: running."),
        ("failed", 1, "error[storage]: orders failed again: The disk is full."),
        ("retrying", 1, "error[storage]: orders is still retrying: The disk is full."),
    ],
)
def test_resume_waits_for_the_outcome(
    command: Commands, state: str, status: int, words: str
) -> None:
    with listening(body={"tables": [{**TABLE, "state": state}]}) as (url, _):
        ran = command("resume", "orders", "--http", url, "--wait", "0.3")
    assert ran.status == status
    assert words in ran.output + ran.errors


def test_a_followed_table_keeps_its_heading_whatever_changes_come() -> None:
    table = ChangeTable(width=80, is_coloured=False)
    columns = {"id": pa.array([1]), "name": pa.array(["a"])}
    lines = []
    for kind in ("insert", "update_preimage", "update_postimage", "delete"):
        lines += table.lines(change_batch(columns, [kind])).splitlines()
    assert [line.split()[0] for line in lines] == [
        *("change", "insert", "update_preimage", "update_postimage", "delete")
    ]
