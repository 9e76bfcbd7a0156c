"""Lines of a group's tables: what is wrong with one table's folder is that table's problem."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from tailerd.changefeed.offset import Offset, Version
from tailerd.errors import OffsetError, SinkError
from tailerd.spark.group import lines_sink
from tailerd.spark.group.group_offset import Entry, GroupOffset
from tailerd.spark.group.lines_sink import LinesFolder, LinesSink
from tailerd.spark.group.published import PUBLISHED_FILE
from tailerd.spark.group.quarantine import Hold, write_holds
from tailerd.spark.packed_records import packed
from tests.unit.spark.record_rows import piece_of


def rows(table: str, count: int) -> list[dict[str, Any]]:
    first: dict[str, Any] = {"table": table, "topic": "", "partition": None, "key": None}
    first |= {"value": b'{"id":1}', "headers": (), "_change_type": "insert"}
    return [
        {**first, "_commit_version": 1, "_commit_timestamp": 0, "_order": n} for n in range(count)
    ]


def lines_folder(path: Path) -> LinesFolder:
    return LinesFolder(path=str(path), generation=1, max_bytes_per_file=1 << 20)


class Sink:
    """A sink whose tasks run here; what Spark does is to call them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.group = folder / "group"
        self.given: list[str] = []
        self.reads = 0
        self.folders = {name: lines_folder(folder / name) for name in "ab"}
        self.sink = LinesSink(lambda: self.folders, self.group)

        def run(_: object, task: Any, __: str) -> SimpleNamespace:
            self.reads += 1
            batches: Iterator[pa.RecordBatch] = packed(piece_of(rows(t, 9)) for t in self.given)
            answers = [row for batch in task(batches) for row in batch.to_pylist()]
            return SimpleNamespace(collect=lambda: answers)

        monkeypatch.setattr(lines_sink, "map_batches", run)

    def write(self, names: str, batch_id: int = 0) -> None:
        self.given = list(names)
        list(self.sink.write(cast("DataFrame", None), batch_id))

    def log(self, batch_id: int, end: GroupOffset) -> None:
        """Log the end of a batch, as Spark does before it gives it."""
        offsets = self.group / "checkpoint/offsets"
        offsets.mkdir(parents=True, exist_ok=True)
        (offsets / str(batch_id)).write_text(f"v1\n{{}}\n{json.dumps(end.fields())}")

    def forget(self) -> None:
        """Die when the files have their names, before that is noted; the next process begins."""
        (self.group / PUBLISHED_FILE).unlink(missing_ok=True)
        self.sink.recover()

    def files(self, name: str) -> list[str]:
        names = (path.name for path in (self.folder / name).iterdir())
        return sorted(name for name in names if name != ".tailerd")


@pytest.fixture
def sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sink:
    return Sink(tmp_path, monkeypatch)


FILE = "group-000001-0000000000-00000.jsonl"


def test_what_a_killed_task_left_and_nobody_can_remove_keeps_no_other_table_waiting(
    sink: Sink,
) -> None:
    # A folder stands for what cannot be unlinked: who runs tests may be root.
    (sink.folder / "b/.tailerd-group-b-0.tmp").mkdir(parents=True)
    sink.write("a")
    assert sink.files("a") == [FILE]
    (sink.folder / "a/.tailerd-group-a-0.tmp").write_text("left")
    sink.forget()
    sink.write("a")
    assert sink.files("a") == [FILE]


def test_a_batch_whose_lines_all_have_their_places_is_neither_read_nor_taken_back(
    sink: Sink,
) -> None:
    sink.write("ab", 4)
    sink.write("ab", 5)
    delivered = {name: sink.files(name) for name in "ab"}
    # What Spark does when it has not heard of it; meanwhile the rows of `b` are gone.
    sink.sink.recover()
    sink.write("a", 5)
    assert sink.reads == 2
    assert {name: sink.files(name) for name in "ab"} == delivered
    sink.write("a", 6)
    assert sink.reads == 3
    assert len(sink.files("a")) == 3


def end_of_batch(version: int) -> GroupOffset:
    begin, end = (Offset(table_id="id", version=Version(each)) for each in (0, version))
    return GroupOffset().next(
        {"a": (begin, Entry(offset=end, generation=1, moved=1, changes="auto"))}
    )


def test_another_batch_of_a_number_that_is_delivered_is_refused_instead_of_skipped(
    sink: Sink,
) -> None:
    sink.log(5, end_of_batch(3))
    sink.write("a", 5)
    # The checkpoint of before is put back, and the table has more rows by now.
    for batch_id, version in ((5, 4), (4, 3)):
        sink.log(batch_id, end_of_batch(version))
        sink.sink.recover()
        with pytest.raises(OffsetError, match=r"batches up to 5 .* copy.* Start over: `rm -r /"):
            sink.write("a", batch_id)
    sink.log(5, end_of_batch(3))
    sink.write("a", 5)
    # The same rows, and one table was not in it then.
    begin = Offset(table_id="b", version=Version(0))
    write_holds(sink.group, {"b": Hold(number=1, generation=1, begin=begin)})
    sink.sink.recover()
    with pytest.raises(OffsetError, match="another batch 5"):
        sink.write("a", 5)
    assert sink.reads == 1


def test_one_that_was_about_to_get_its_places_is_written_again(sink: Sink) -> None:
    sink.write("ab")
    sink.forget()
    sink.write("a")
    assert (sink.reads, sink.files("a"), sink.files("b")) == (2, [FILE], [])


def test_a_checkpoint_made_anew_has_no_batch_delivered(sink: Sink) -> None:
    sink.write("a", 5)
    (sink.group / "checkpoint").mkdir()
    (sink.group / "checkpoint/metadata").write_text('{"id": "another"}')
    sink.sink.recover()
    sink.write("a")
    assert sink.reads == 2
    assert FILE in sink.files("a")


@pytest.mark.parametrize("names", ["ac", "ca"])
@pytest.mark.parametrize("is_link", [False, True])
def test_a_table_that_is_renamed_while_its_batch_is_unfinished_keeps_its_lines(
    sink: Sink, names: str, is_link: bool
) -> None:
    sink.write("a")
    sink.forget()
    # `a` leaves, `c` comes in its place, with its folder.
    if is_link:
        (sink.folder / "c").symlink_to(sink.folder / "a")
    of_c = sink.folder / ("c" if is_link else "a")
    by_name = {"a": sink.folders["a"], "c": lines_folder(of_c)}
    sink.folders = {name: by_name[name] for name in names}
    sink.write("a")
    assert sink.files("a") == [FILE]
    sink.forget()
    sink.write(names)
    assert sink.files("a") == [FILE, FILE.replace("00000.", "00001.")]


def test_what_tasks_of_others_write_into_a_folder_is_left_to_them(sink: Sink) -> None:
    (sink.folder / "a").mkdir()
    for name in ("a-0", "a-b-0"):
        (sink.folder / f"a/.tailerd-group-{name}.tmp").write_text("")
    sink.write("a")
    assert sink.files("a") == [".tailerd-group-a-b-0.tmp", FILE]


def test_lines_of_the_batch_that_cannot_be_taken_back_are_an_error_of_their_table(
    sink: Sink,
) -> None:
    sink.write("ab")
    (sink.folder / "b" / FILE).unlink()
    (sink.folder / "b" / FILE).mkdir()
    sink.forget()
    with pytest.raises(SinkError) as raised:
        sink.write("a")
    assert raised.value.table == "b"


def test_the_end_of_a_batch_outlives_a_power_cut_as_its_lines_do(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.log(0, GroupOffset())
    synced, sync = [], os.fsync

    def seen(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", seen)
    sink.write("a")
    offsets = sink.group / "checkpoint/offsets"
    assert synced[:2] == [offsets / "0", offsets]
    assert any(path.parent == sink.folder / "a" for path in synced[2:])


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_a_disk_that_is_full_when_a_file_is_closed_is_told_with_its_table(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, names: str
) -> None:
    sync = os.fsync

    def full_for_b(descriptor: int) -> None:
        if "/b/" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full_for_b)
    with pytest.raises(SinkError, match="No space left on device") as raised:
        sink.write(names)
    assert raised.value.table == "b"
    assert sink.files("a") == sink.files("b") == []


def test_a_file_that_cannot_be_closed_any_more_does_not_hide_why_the_task_failed(
    tmp_path: Path,
) -> None:
    folder = LinesFolder(path=str(tmp_path), generation=1, max_bytes_per_file=1 << 20)
    files = lines_sink._TableFiles("a", folder)
    files.write(piece_of(rows("a", 9)))
    assert files._file is not None
    os.close(files._file.fileno())
    files.remove()
    assert list(tmp_path.iterdir()) == []
