from __future__ import annotations

import datetime as dt
import decimal
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

import click
import pyarrow as pa
import pytest

from tailerd.changefeed.change_task import ChangeType
from tailerd.cli import output
from tailerd.cli.change_table import ChangeTable, text_width
from tailerd.cli.output import print_object, print_records, writer_for
from tailerd.errors import SchemaChangedError, UsageError
from tailerd.records.json import JsonEncoder
from tests.records.batches import change_batch
from tests.waiting import PATIENCE_SECONDS

ANSI = re.compile(r"\x1b\[[0-9;]*m")


@contextmanager
def terminal() -> Iterator[tuple[BinaryIO, Callable[[], str]]]:
    """A real pseudo-terminal: the stream to print to, and all that it has shown in the end."""
    master, slave = os.openpty()
    with open(slave, "wb") as stream, open(master, "rb", buffering=0) as screen:

        def shown() -> str:
            stream.close()
            text = b""
            # Linux ends a terminal that nobody writes to any longer with EIO.
            with suppress(OSError):
                while piece := screen.read(65_536):
                    text += piece
            return text.decode().replace("\r\n", "\n")

        yield stream, shown


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")


def orders() -> dict[str, pa.Array]:
    return {"id": pa.array([1, 20]), "who": pa.array(["日本", None])}


# ---------------------------------------------------------------- change rows


def test_jsonl_is_what_the_encoder_says() -> None:
    stream = io.BytesIO()
    writer = writer_for("jsonl", stream, is_terminal=False, columns=["who"])

    writer.write(change_batch(orders()))
    writer.close()

    assert stream.getvalue() == JsonEncoder(columns=["who"]).encode_lines(change_batch(orders()))


@pytest.mark.parametrize("format_name", ["table", "debezium"])
def test_chosen_columns_come_in_their_order_and_missing_ones_are_null(format_name: str) -> None:
    stream = io.BytesIO()
    writer = writer_for(format_name, stream, is_terminal=False, columns=["who", "later", "id"])

    writer.write(change_batch(orders()))

    text = stream.getvalue().decode()
    if format_name == "table":
        assert text.splitlines()[0].split()[-3:] == ["who", "later", "id"]
        assert text.splitlines()[2].split()[-3:] == ["null", "null", "20"]
    else:
        after = json.loads(text.splitlines()[0])["after"]
        assert list(after.items()) == [("who", "日本"), ("later", None), ("id", 1)]


@pytest.mark.parametrize("format_name", ["table", "jsonl", "debezium", "arrow"])
def test_no_columns_still_print_every_row(format_name: str) -> None:
    stream = io.BytesIO()
    writer = writer_for(format_name, stream, is_terminal=False, columns=[])

    writer.write(change_batch(orders()))
    writer.close()

    if format_name == "arrow":
        assert pa.ipc.open_stream(stream.getvalue()).read_all().num_rows == 2
    else:
        assert stream.getvalue().count(b"insert") == 2 or stream.getvalue().count(b'"op":"c"') == 2


def test_debezium_names_the_table() -> None:
    stream = io.BytesIO()
    writer = writer_for("debezium", stream, is_terminal=False, table_name="orders")

    writer.write(change_batch(orders(), ChangeType.DELETE))

    record = json.loads(stream.getvalue().splitlines()[1])
    assert record["source"]["table"] == "orders"
    assert (record["op"], record["before"]) == ("d", {"id": 20, "who": None})


def test_arrow_is_one_stream_that_ends() -> None:
    stream = io.BytesIO()
    writer = writer_for("arrow", stream, is_terminal=False)

    writer.write(change_batch(orders()))
    writer.write(change_batch(orders(), ChangeType.DELETE))
    writer.close()

    table = pa.ipc.open_stream(stream.getvalue()).read_all()
    assert table.column("_change_type").to_pylist() == ["insert"] * 2 + ["delete"] * 2


def test_arrow_stops_where_the_columns_change() -> None:
    writer = writer_for("arrow", io.BytesIO(), is_terminal=False)
    writer.write(change_batch(orders()))

    with pytest.raises(SchemaChangedError, match="removed who"):
        writer.write(change_batch({"id": pa.array([1])}))


@pytest.mark.parametrize("is_terminal", [True, False])
def test_an_unknown_format_is_wrong_usage(is_terminal: bool) -> None:
    with pytest.raises(UsageError, match=r"'xml'.*jsonl"):
        writer_for("xml", io.BytesIO(), is_terminal=is_terminal)


def test_arrow_is_not_printed_to_a_terminal() -> None:
    with pytest.raises(UsageError, match="Redirect"):
        writer_for("arrow", io.BytesIO(), is_terminal=True)


def test_a_table_on_a_pipe_is_aligned_plain_text() -> None:
    stream = io.BytesIO()
    writer = writer_for("table", stream, is_terminal=False)

    writer.write(change_batch(orders(), ["insert", "update_preimage"]))
    writer.write(change_batch({"id": pa.array([3]), "who": pa.array(["x"])}, ChangeType.DELETE))

    assert stream.getvalue().decode() == (
        "change           version  time (UTC)           id  who\n"
        "insert                 7  2024-02-29 12:34:56   1  日本\n"
        "update_preimage        7  2024-02-29 12:34:56  20  null\n"
        "delete                 7  2024-02-29 12:34:56   3  x\n"
    )


@pytest.mark.parametrize("width", [None, 80])
def test_a_table_gets_a_new_heading_when_columns_change_and_not_when_one_grows(
    width: int | None,
) -> None:
    table = ChangeTable(width=width, is_coloured=False)

    def headings(columns: dict[str, pa.Array]) -> int:
        return table.lines(change_batch(columns)).count("change")

    assert headings({"a": pa.array(["x"])}) == 1
    assert headings({"a": pa.array(["y"])}) == 0
    assert headings({"a": pa.array(["much longer" * 9])}) == 0
    assert headings({"a": pa.array(["short"])}) == 0
    assert headings({"b": pa.array(["short"])}) == 1
    assert table.lines(change_batch({"c": pa.array([], pa.string())})) == ""


@pytest.mark.parametrize("width", [20, 30, 45, 60, 80, 120, 200])
def test_numbers_and_times_are_whole_however_narrow_the_terminal(width: int) -> None:
    number, time = 1234567890123456, dt.datetime(2024, 2, 29, 12, 34, 56)
    columns = {
        "id": pa.array([number]),
        "at": pa.array([time]),
        "note": pa.array(["x" * 300]),
        "price": pa.array([decimal.Decimal("12345678901234.56")]),
    }
    lines = ChangeTable(width=width, is_coloured=False).lines(change_batch(columns))
    assert str(number) in lines
    rows = lines.partition("\n")[2]
    assert set(re.findall("(.)…", rows)) <= {"x"}


def test_the_time_is_left_out_before_texts_are_cut() -> None:
    columns = {name: pa.array(["x" * 12]) for name in ("a", "b", "c")}
    shown = {
        width: ChangeTable(width=width, is_coloured=False).lines(change_batch(columns))
        for width in (200, 80, 50)
    }
    assert "time (UTC)" in shown[200]
    assert "time (UTC)" not in shown[80]
    assert "x" * 12 in shown[80]
    assert "x" * 12 not in shown[50]
    assert "…" in shown[50]
    assert "+" not in shown[50]


def test_a_narrow_terminal_shows_one_field_on_a_line() -> None:
    columns = {
        "order_id": pa.array([1]),
        "note": pa.array(["two\nlines" * 9]),
        "amount": pa.array([12345678.25]),
        "region": pa.array([None], pa.string()),
    }
    table = ChangeTable(width=40, is_coloured=False)
    lines = table.lines(change_batch(columns)).splitlines()
    assert lines[0] == "insert  version 7  2024-02-29 12:34:56"
    assert lines[1] == "  order_id  1"
    assert lines[2].startswith(r"  note      two\nlinestwo")
    assert lines[2].endswith("…")
    assert lines[3:] == ["  amount    12345678.25", "  region    null"]
    assert max(map(len, lines)) <= 40


def test_newlines_and_tabs_of_values_are_escaped_as_programs_write_them() -> None:
    shown = ChangeTable(width=80, is_coloured=False).lines(
        change_batch({"note": pa.array(["a\nb\tc\rd"])})
    )
    assert r"a\nb\tc\rd" in shown


def test_a_terminal_gets_colours_and_lines_that_fit() -> None:
    columns = {
        "id": pa.array([1, 2, 3]),
        "note": pa.array(["x" * 300, "日本" * 100, "short"]),
        **{f"c{index}": pa.array(["value"] * 3) for index in range(9)},
    }
    with terminal() as (stream, shown):
        writer = writer_for("table", stream, is_terminal=True)
        writer.write(change_batch(columns, ["insert", "delete", "update_postimage"]))
        text = shown()

    heading, inserted, deleted, updated = text.splitlines()
    assert ANSI.sub("", heading).split()[-1].startswith("+")
    assert inserted.startswith("\x1b[32minsert\x1b[0m")
    assert deleted.startswith("\x1b[31mdelete\x1b[0m")
    assert updated.startswith("\x1b[33mupdate_postimage\x1b[0m")
    assert "…" in inserted
    assert "…" in deleted
    for line in text.splitlines():
        assert text_width(ANSI.sub("", line)) <= 80


def test_no_color_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = io.BytesIO()

    writer_for("table", stream, is_terminal=True).write(change_batch(orders()))

    assert b"\x1b" not in stream.getvalue()


def test_values_cannot_command_the_terminal() -> None:
    stream = io.BytesIO()
    hostile = pa.array(["\x1b[2J\x9b31m\u202e", '"quoted"\n\\'])

    writer_for("table", stream, is_terminal=True).write(change_batch({"\x07v": hostile}))

    text = ANSI.sub("", stream.getvalue().decode())
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert len(text.splitlines()) == 3


def test_change_types_cannot_either() -> None:
    batch = change_batch({"id": pa.array([1])}, ["\x1b]0;owned\x07\x1b[2Jinsert"])
    for is_coloured in (False, True):
        shown = ChangeTable(is_coloured=is_coloured, width=None).lines(batch)
        assert r"\u001b]0;owned\u0007\u001b[2Jinsert" in shown
        assert "\x1b]" not in shown
        assert "\x1b[2J" not in shown


# ---------------------------------------------------------------- a reader that goes away


def test_a_reader_that_goes_away_ends_the_command_with_status_0() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as stream:
        lines = writer_for("jsonl", stream, is_terminal=False)

        with pytest.raises(click.exceptions.Exit) as ended:
            lines.write(change_batch(orders()))

    assert ended.value.exit_code == 0


def test_head_gets_its_line_and_nobody_complains() -> None:
    program = """
import click
from tailerd.cli.output import print_records
@click.command()
def main():
    print_records(({"n": n} for n in range(10**7)), ["n"], as_json=True)
main()
"""
    done = subprocess.run(
        ["bash", "-c", '"$0" -c "$1" | head -1; exit ${PIPESTATUS[0]}', sys.executable, program],
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, b'{"n":0}\n', b"")


# ---------------------------------------------------------------- objects and records


def test_json_prints_one_object_a_line() -> None:
    stream = io.BytesIO()

    print_object({"a": "日本", "b": None, "c": {"d": [1]}}, as_json=True, stream=stream)
    print_records([{"x": 1, "y": 2}, {"x": "\udcff"}], ["x"], as_json=True, stream=stream)

    assert stream.getvalue().decode().splitlines() == [
        '{"a":"日本","b":null,"c":{"d":[1]}}',
        '{"x":1,"y":2}',
        '{"x":"\\udcff"}',
    ]


def test_a_pipe_gets_aligned_text() -> None:
    stream = io.BytesIO()

    print_object({"name": "orders", "num_files": 3, "note": None}, as_json=False, stream=stream)
    print_records(
        [{"v": 1, "who": "日本"}, {"v": 20, "who": ["a"]}, {"who": "x\ny"}],
        ["v", "who"],
        as_json=False,
        stream=stream,
    )

    assert stream.getvalue().decode() == (
        'name       orders\nnum_files  3\nnote       -\n v  who\n 1  日本\n20  ["a"]\n -  x\\ny\n'
    )


def test_no_records_are_no_json_and_an_empty_table() -> None:
    as_json, as_table = io.BytesIO(), io.BytesIO()

    print_records([], ["a"], as_json=True, stream=as_json)
    print_records([], ["a"], as_json=False, stream=as_table)

    assert as_json.getvalue() == b""
    assert as_table.getvalue() == b"a\n"


def test_many_records_are_not_held_in_memory() -> None:
    printed = io.BytesIO()
    seen_at_once: list[int] = []

    def rows() -> Iterator[dict[str, object]]:
        for number in range(5_000):
            seen_at_once.append(number - printed.getvalue().count(b"\n"))
            yield {"n": number}

    print_records(rows(), ["n"], as_json=False, stream=printed)

    assert printed.getvalue().count(b"\n") == 5_001
    assert max(seen_at_once) <= 2 * output.MAX_ROWS_IN_TABLE


def test_a_terminal_gets_a_table_without_markup_surprises() -> None:
    with terminal() as (stream, shown):
        print_object({"path": "[red]/data[/red]", "n": 1}, as_json=False, stream=stream)
        print_records([{"v": 1, "op": "\x1b[2JWRITE"}], ["v", "op"], as_json=False, stream=stream)
        text = shown()

    plain = [line.rstrip() for line in ANSI.sub("", text).splitlines()]
    assert plain == ["path  [red]/data[/red]", "n     1", "v  op", "1  \\u001b[2JWRITE"]
    assert ANSI.search(text)
