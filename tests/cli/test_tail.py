from __future__ import annotations

import io
import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailerd.changefeed.limits import ReadLimit
from tailerd.changefeed.offset import Offset
from tailerd.formats.comparing_source import ComparingSource
from tests.cli.commands import ROOT, Commands, on_terminal, started
from tests.tables.builder import CDF, TableBuilder


def orders(folder: Path, versions: int = 4) -> TableBuilder:
    """A table with one insert a version, its number."""
    table = TableBuilder(folder)
    for number in range(versions):
        table.append([{"id": number, "name": f"n{number}"}])
    return table


def reported(folder: Path | str, command: Commands, *arguments: object) -> list[int]:
    ran = command("tail", folder, "--format", "jsonl", *arguments)
    assert (ran.status, ran.errors) == (0, "")
    return [row["id"] for row in ran.rows]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--once"], []),
        (["--once", "--from", "latest"], []),
        (["--once", "--from", "0"], [0, 1, 2, 3]),
        (["--once", "--from", "2"], [2, 3]),
        (["--from", "0", "--to", "2"], [0, 1, 2]),
        (["--from", "1", "--to", "1"], [1]),
        (["--from", "2", "--to", "1"], []),
        (["--once", "--from", "1", "--to", "2"], [1, 2]),
        (["--once", "--from", "2024-01-01T00:00:02"], [2, 3]),
        (["--from", "0", "--to", "2024-01-01T00:00:01.5"], [0, 1]),
        (["--from", "snapshot", "--to", "3"], [0, 1, 2, 3]),
        (["--from", " Snapshot ", "--once"], [0, 1, 2, 3]),
        (["--from", "snapshot", "--to", "2"], [0, 1, 2]),
    ],
    ids=repr,
)
def test_from_and_to_say_which_versions(
    tmp_path: Path, command: Commands, arguments: list[str], expected: list[int]
) -> None:
    orders(tmp_path)
    assert sorted(reported(tmp_path, command, *arguments)) == expected


@pytest.mark.parametrize(
    "arguments", [["--from", "0"], ["--from", "3"], ["--from", "0", "--once"]], ids=" ".join
)
def test_an_end_behind_the_head_is_planned_once(
    tmp_path: Path, command: Commands, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    orders(tmp_path, 12)
    plans: list[Offset] = []
    plan = ComparingSource.latest_offset

    async def counted(source: ComparingSource, start: Offset, limit: ReadLimit) -> Offset:
        plans.append(start)
        return await plan(source, start, limit)

    monkeypatch.setattr(ComparingSource, "latest_offset", counted)
    assert reported(tmp_path, command, *arguments, "--to", "9")[-1] == 9
    assert len(plans) == 1


def test_a_column_named_twice_is_wrong_usage(tmp_path: Path, command: Commands) -> None:
    orders(tmp_path)
    ran = command("tail", tmp_path, "--once", "--columns", "id,name, id")
    assert (ran.status, ran.output) == (2, "")
    assert "--columns 'id,name, id' names id twice. Name each column once." in ran.errors


@pytest.mark.parametrize("start", ["2999-01-01", "-1", "1.5", "2024-13-01", "", "0x1"])
def test_a_start_that_is_none_is_wrong_usage(tmp_path: Path, command: Commands, start: str) -> None:
    orders(tmp_path)
    ran = command("tail", tmp_path, "--once", "--from", start)
    assert (ran.status, ran.output) == (2, "")
    assert ran.errors.startswith("error[usage]: ")


def test_a_location_may_be_a_path_or_a_url(tmp_path: Path, command: Commands) -> None:
    orders(tmp_path / "a b")
    for location in (tmp_path / "a b", f"{tmp_path}/a b/", f"file://{tmp_path}/a%20b"):
        assert reported(location, command, "--from", 3, "--once") == [3]


def test_columns_come_in_the_order_asked_for(tmp_path: Path, command: Commands) -> None:
    orders(tmp_path, 1)
    ran = command(
        *("tail", tmp_path, "--from", 0, "--once", "--format", "jsonl", "--columns", "name, id")
    )
    assert [list(row)[:2] for row in ran.rows] == [["name", "id"]]
    ran = command("tail", tmp_path, "--from", 0, "--once", "--columns", "name,,id")
    assert ran.status == 2


def test_every_format_tells_the_same_rows(tmp_path: Path, command: Commands) -> None:
    table = TableBuilder(tmp_path, properties=CDF)
    [add] = table.append([{"id": 1, "name": "a"}]).adds
    table.commit(
        table.remove(add),
        table.data_file([{"id": 1, "name": "b"}]),
        table.cdc_file(
            [
                {"id": 1, "name": "a", "_change_type": "update_preimage"},
                {"id": 1, "name": "b", "_change_type": "update_postimage"},
            ]
        ),
    )
    requested = ("tail", tmp_path, "--from", 0, "--once")
    table_lines = command(*requested).output.splitlines()
    assert [line.split()[:2] for line in table_lines if not line.startswith("change")] == [
        ["insert", "0"],
        ["update_preimage", "1"],
        ["update_postimage", "1"],
    ]
    events = command(*requested, "--format", "debezium").rows
    assert [event["op"] for event in events] == ["c", "u"]
    assert (events[1]["before"]["name"], events[1]["after"]["name"]) == ("a", "b")
    assert [row["name"] for row in command(*requested, "--format", "jsonl").rows] == ["a", "a", "b"]


def test_the_arrow_format_is_a_stream_with_change_columns(tmp_path: Path) -> None:
    orders(tmp_path, 2)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tailerd", "tail", str(tmp_path), "--from", "0", "--once"),
            *("--format", "arrow"),
        ],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    read = pa.ipc.open_stream(io.BytesIO(done.stdout)).read_all()
    assert read.column("id").to_pylist() == [0, 1]
    assert read.column("_commit_version").to_pylist() == [0, 1]
    assert done.stderr == b""


@pytest.mark.parametrize("mode", ["auto", "cdf", "files"])
def test_changes_say_where_rows_come_from(tmp_path: Path, command: Commands, mode: str) -> None:
    table = TableBuilder(tmp_path, properties=CDF)
    table.create()
    row = {"id": 1, "name": "from the file"}
    fed = {"id": 1, "name": "from the feed", "_change_type": "insert"}
    table.commit(table.data_file([row]), table.cdc_file([fed]))
    ran = command(
        *("tail", tmp_path, "--from", 0, "--once", "--format", "jsonl", "--changes", mode)
    )
    expected = "from the file" if mode == "files" else "from the feed"
    assert [row["name"] for row in ran.rows] == [expected]


def test_a_commit_becomes_a_line_while_the_command_runs(tmp_path: Path) -> None:
    table = orders(tmp_path, 1)
    with started("tail", tmp_path, "--from", 0, "--format", "jsonl") as tail:
        assert json.loads(tail.line())["id"] == 0
        for number in range(7, 10):
            table.append([{"id": number, "name": "new"}])
            row: dict[str, Any] = json.loads(tail.line())
            assert (row["id"], row["_commit_version"]) == (number, number - 6)
        tail.process.send_signal(signal.SIGINT)
        assert tail.end() == (130, "\n"), "only what ends the line of ^C"


def test_the_end_may_be_a_version_that_is_yet_to_come(tmp_path: Path) -> None:
    table = orders(tmp_path, 1)
    with started("tail", tmp_path, "--from", 0, "--to", 2, "--format", "jsonl") as tail:
        tail.line()
        for number in (1, 2, 3):
            table.append([{"id": number, "name": "new"}])
        assert [json.loads(tail.line())["id"] for _ in range(2)] == [1, 2]
        assert tail.end() == (0, "")


def test_ctrl_c_while_nothing_happens_ends_at_once_with_130(tmp_path: Path) -> None:
    orders(tmp_path, 1)
    with started("tail", tmp_path, "--from", "snapshot", "--format", "jsonl") as tail:
        tail.line()
        tail.process.send_signal(signal.SIGINT)
        assert tail.end(timeout_seconds=5) == (130, "\n")


def test_a_reader_that_has_seen_enough_is_no_failure(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    table.append({"id": number, "name": "x" * 200} for number in range(20_000))
    tail = shlex.join([sys.executable, "-m", "tailerd", "tail", str(tmp_path), "--from", "0"])
    done = subprocess.run(
        ["bash", "-c", f"{tail} --once --format jsonl | head -n 2; echo ${{PIPESTATUS[0]}}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    *lines, status = done.stdout.splitlines()
    assert [json.loads(line)["id"] for line in lines] == [0, 1]
    assert (status, done.stderr) == ("0", "")


def test_a_table_that_breaks_while_it_is_followed_ends_the_command_with_3(tmp_path: Path) -> None:
    table = orders(tmp_path, 1)
    with started("tail", tmp_path, "--from", 0, "--format", "jsonl") as tail:
        tail.line()
        table.commit(table.protocol(minReaderVersion=9))
        status, errors = tail.end()
    assert status == 3
    assert errors.startswith("error[unsupported_feature]: ")
    assert "Traceback" not in errors


@pytest.mark.parametrize("form", ["jsonl", "table", "debezium"])
def test_following_ends_when_the_reader_of_the_pipe_has_gone(tmp_path: Path, form: str) -> None:
    table = TableBuilder(tmp_path / "t")
    table.append([{"id": number} for number in range(5)])
    tail = [sys.executable, "-m", "tailerd", "tail", str(table.folder), "--from", "0"]
    command = f"{shlex.join([*tail, '--format', form])} | head -n 2; echo ${{PIPESTATUS[0]}}"
    ran = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=30
    )
    assert ran.stdout.splitlines()[2:] == ["0"]
    assert ran.stderr == ""


# ---------------------------------------------------------------- as tail does


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-n", "2", "--once"], [2, 3]),
        (["--lines", "2", "--to", "2"], [1, 2]),
        (["-n", "99", "--once"], [0, 1, 2, 3]),
        (["-n", "0", "--once"], []),
        (["-n", "2", "--to", "99", "--once"], [2, 3]),
        (["--since", "2024-01-01T00:00:02", "--once"], [2, 3]),
        (["--since", "2024-01-01T00:00:02", "--to", "2"], [2]),
    ],
    ids=repr,
)
def test_the_options_of_tail_say_where_it_begins(
    tmp_path: Path, command: Commands, arguments: list[str], expected: list[int]
) -> None:
    orders(tmp_path)
    assert reported(tmp_path, command, *arguments) == expected


@pytest.mark.parametrize("since", ["2h", "-2h", "30m", "yesterday", " 1.5d"])
def test_since_takes_a_time_ago(tmp_path: Path, command: Commands, since: str) -> None:
    orders(tmp_path)
    assert reported(tmp_path, command, "--since", since, "--once") == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-n", "5", "--from", "2"], "--from and -n exclude each other. Leave one of them out."),
        (["-n", "5", "--since", "2h"], "--since and -n exclude each other."),
        (["--since", "2h", "--from", "2"], "--from and --since exclude each other."),
        (["-f", "--once"], "-f and --once exclude each other."),
        (["--since", "12"], "--since '12' is not a time. Write 2h,"),
        (["--since", "latest"], "--from also takes a version."),
        (["-n", "5", "--changes", "net"], "Use --from with a version instead of -n."),
        (["-n", "-1"], "-n"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_options_that_exclude_each_other_are_refused(
    tmp_path: Path, command: Commands, arguments: list[str], words: str
) -> None:
    orders(tmp_path)
    ran = command("tail", tmp_path, *arguments)
    assert (ran.status, ran.output) == (2, "")
    assert words in ran.errors


@pytest.mark.parametrize("following", [[], ["-f"]])
def test_the_last_rows_come_before_those_that_follow(tmp_path: Path, following: list[str]) -> None:
    table = orders(tmp_path)
    with started("tail", tmp_path, "-n", 2, "--format", "jsonl", *following) as tail:
        assert [json.loads(tail.line())["id"] for _ in range(2)] == [2, 3]
        table.append([{"id": 4, "name": "new"}])
        assert json.loads(tail.line())["id"] == 4
        tail.process.send_signal(signal.SIGINT)
        assert tail.end() == (130, "\n"), "a pipe gets no line that says that it waits"


def test_a_terminal_begins_with_the_last_commits_that_fit_and_says_that_it_waits(
    tmp_path: Path,
) -> None:
    table = TableBuilder(tmp_path)
    for number in range(5):
        table.append([{"id": 10 * number + n, "name": f"n{number}"} for n in range(4)])
    with on_terminal("tail", tmp_path, lines=14) as terminal:
        shown = terminal.wait_for("waiting after version 4\n")
        assert shown.count("insert") == 8, "two whole commits in ten lines"
        table.append([{"id": 99, "name": "new"}])
        terminal.wait_for("99  new")
        assert terminal.text.count("waiting") == 1
    with on_terminal("tail", tmp_path, "--once", lines=6) as terminal:
        shown = terminal.end()
        assert [line.split()[-1] for line in shown.splitlines()[1:]] == ["new"]


def test_a_terminal_reads_ten_commits_at_most(tmp_path: Path) -> None:
    orders(tmp_path, 30)
    with on_terminal("tail", tmp_path, lines=50) as terminal:
        assert terminal.wait_for("waiting after version 29").count("insert") == 10


def test_a_commit_larger_than_the_terminal_is_shown_from_behind(tmp_path: Path) -> None:
    TableBuilder(tmp_path).append([{"id": n, "name": "x"} for n in range(100)])
    with on_terminal("tail", tmp_path, "-f", lines=14) as terminal:
        shown = terminal.wait_for("waiting after version 0")
    assert shown.count("insert") == 10
    assert "99  x" in shown


def test_a_damaged_commit_does_not_prevent_a_terminal_from_following(tmp_path: Path) -> None:
    table = orders(tmp_path, 2)
    for path in tmp_path.glob("*.parquet"):
        path.unlink()
    with on_terminal("tail", tmp_path) as terminal:
        terminal.wait_for("waiting after version 1")
        table.append([{"id": 7, "name": "new"}])
        terminal.wait_for("7  new")


def test_an_update_without_a_key_prints_one_hint(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    [add] = table.append([{"id": 1, "name": "a"}]).adds
    [add] = table.commit(table.remove(add), table.data_file([{"id": 1, "name": "b"}])).adds
    table.commit(table.remove(add), table.data_file([{"id": 1, "name": "c"}]))
    with on_terminal("tail", tmp_path, "--from", 0, "--once", columns=200) as terminal:
        shown = terminal.end()
    assert shown.count("hint: ") == 1
    assert shown.splitlines()[-1].startswith("hint: version 1 "), "below the rows"
    assert "If id identifies a row, --key id shows them as updates." in shown
    with on_terminal("tail", tmp_path, "--from", 0, "--once", "--key", "id") as terminal:
        assert "hint" not in terminal.end()


def widened(folder: Path) -> TableBuilder:
    """A table with a row, then another column, then a row with it."""
    table = TableBuilder(folder)
    table.append([{"id": 1, "name": "n1"}])
    table.change_metadata(fields=[*table.fields, ("email", "string")])
    table.append([{"id": 2, "name": "n2", "email": "e2"}])
    return table


def test_events_say_where_columns_change(tmp_path: Path, command: Commands) -> None:
    widened(tmp_path)
    ran = command("tail", tmp_path, "--from", 0, "--once", "--format", "jsonl", "--events")
    assert (ran.status, ran.errors) == (0, "")
    assert [row.get("_event", row.get("id")) for row in ran.rows] == ["schema", 1, "schema", 2]
    first, change = ran.rows[0], ran.rows[2]
    assert first["changes"] == []
    assert change["_commit_version"] == 2
    added = {"change": "added", "column": "email", "type": "string", "nullable": True}
    assert change["changes"] == [{**added, "position": 2}]
    assert [column["name"] for column in change["columns"]] == ["id", "name", "email"]


def test_without_events_each_line_is_a_row(tmp_path: Path, command: Commands) -> None:
    widened(tmp_path)
    ran = command("tail", tmp_path, "--from", 0, "--once", "--format", "jsonl")
    assert [row["id"] for row in ran.rows] == [1, 2]


def test_the_table_has_a_line_where_columns_change(tmp_path: Path, command: Commands) -> None:
    widened(tmp_path)
    ran = command("tail", tmp_path, "--from", 0, "--once", "--events")
    assert "-- version 2: added email (string)" in ran.output.splitlines()


def test_events_are_of_the_view(tmp_path: Path, command: Commands) -> None:
    widened(tmp_path)
    view = ["--from", 0, "--once", "--format", "jsonl", "--events"]
    ran = command("tail", tmp_path, *view, "--columns", "id,name")
    assert [row.get("_event") for row in ran.rows] == ["schema", None, None]
    ran = command("tail", tmp_path, *view, "--mask", "email=redact", "--rename", "email=mail")
    assert "e2" not in ran.output
    assert ran.rows[2]["changes"][0]["column"] == "mail"


def test_events_in_debeziums_form(tmp_path: Path, command: Commands) -> None:
    widened(tmp_path)
    ran = command("tail", tmp_path, "--from", 0, "--once", "--format", "debezium", "--events")
    first, _, change, _ = ran.rows
    assert [row["tableChanges"][0]["type"] for row in (first, change)] == ["CREATE", "ALTER"]
    assert change["ddl"] is None
    [*_, email] = change["tableChanges"][0]["table"]["columns"]
    assert (email["name"], email["jdbcType"], email["position"]) == ("email", 12, 3)
    assert change["changes"][0]["column"] == "email"


def test_an_arrow_stream_has_no_events(tmp_path: Path, command: Commands) -> None:
    widened(tmp_path)
    ran = command("tail", tmp_path, "--once", "--format", "arrow", "--events")
    assert ran.status == 2
    assert "--events and --format arrow exclude each other" in ran.errors
