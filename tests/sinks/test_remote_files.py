"""The file sink where another process writes its files: what readers may see, and what is left."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.saved_offset import SavedOffset
from tailerd.errors import BugError, SinkError, SinkFencedError
from tailerd.records.json import JsonEncoder
from tailerd.sinks.base import RemoteDelivery, RowWriter
from tailerd.sinks.file.config import FileSinkConfig
from tailerd.sinks.file.sink import FileSink
from tests.contracts.test_sink import batch, file_rows, inserts, offset
from tests.waiting import PATIENCE_SECONDS

FIRST, NEXT = 3, 5


def sink(folder: Path, **fields: object) -> FileSink:
    config = FileSinkConfig.model_validate({"kind": "file", "path": str(folder), **fields})
    return FileSink(config, encode=JsonEncoder().encode_lines)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def unpublished(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.tmp"))


def files_without_a_name(folder: Path) -> list[Path]:
    """Return those of changes only, not those about the folder's owner."""
    return sorted(folder.glob("*.tmp"))


def given_to(writer: RowWriter, *batches: ChangeBatch) -> object:
    """Write as another process does: with what pickling keeps, whose answer is pickled too."""
    there: RowWriter = pickle.loads(pickle.dumps(writer))
    return pickle.loads(pickle.dumps(there(iter(batches))))


class Elsewhere:
    """Deliveries whose rows another process reads.

    Attributes:
        folder: Where they go.
        seen: Names that readers saw, and files without one, when all was written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: tuple[list[str], int] = ([], 0)

    def delivery(self, *batches: ChangeBatch, version: int = FIRST) -> RemoteDelivery:
        async def run(writer: RowWriter) -> object:
            answer = given_to(writer, *batches)
            self.seen = names(self.folder), len(unpublished(self.folder))
            return answer

        end = offset(version + 1)
        return RemoteDelivery(
            table="orders",
            start=offset(version),
            end=end,
            saved=SavedOffset(offset=end, changes=ChangeMode.AUTO),
            run=run,
        )


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
async def test_readers_see_nothing_before_the_daemon_has_the_answer(
    tmp_path: Path, kind: str
) -> None:
    target, elsewhere = sink(tmp_path, format=kind), Elsewhere(tmp_path)
    await target.resume(offset(FIRST))
    await target.write_remotely(elsewhere.delivery(batch(3, [1]), batch(3, [2])))
    assert elsewhere.seen == ([], 1)
    assert names(tmp_path) == [f"{FIRST:020}-1-{0:020}-00000.{kind}"]
    assert unpublished(tmp_path) == []
    assert file_rows(tmp_path) == inserts(3, 1, 2)


async def test_files_are_numbered_in_the_order_of_the_rows(tmp_path: Path) -> None:
    target = sink(tmp_path, max_bytes_per_file="2KiB")
    await target.resume(offset(FIRST))
    batches = [batch(3, range(n * 20, n * 20 + 20)) for n in range(10)]
    await target.write_remotely(Elsewhere(tmp_path).delivery(*batches))
    assert len(names(tmp_path)) > 2
    assert file_rows(tmp_path) == inserts(3, *range(200))


async def test_no_rows_make_no_file(tmp_path: Path) -> None:
    target = sink(tmp_path)
    await target.resume(offset(FIRST))
    await target.write_remotely(Elsewhere(tmp_path).delivery(batch(3, [])))
    assert names(tmp_path) == []
    assert unpublished(tmp_path) == []


async def test_reading_that_fails_leaves_nothing(tmp_path: Path) -> None:
    target = sink(tmp_path, max_bytes_per_file="1KiB")
    await target.resume(offset(FIRST))

    def rows() -> Iterator[ChangeBatch]:
        yield batch(3, range(50))
        yield batch(3, range(50, 100))
        assert unpublished(tmp_path)
        raise ValueError("the source broke")

    async def run(writer: RowWriter) -> object:
        return writer(rows())

    failing = replace(Elsewhere(tmp_path).delivery(), run=run)
    with pytest.raises(ValueError, match="the source broke"):
        await target.write_remotely(failing)
    assert names(tmp_path) == []
    assert unpublished(tmp_path) == []


async def test_a_process_that_died_behind_its_writing_is_cleaned_up_after(tmp_path: Path) -> None:
    target, elsewhere = sink(tmp_path), Elsewhere(tmp_path)
    await target.resume(offset(FIRST))

    async def run(writer: RowWriter) -> object:
        given_to(writer, batch(3, [1]))
        raise SinkError("Nobody answers.")

    lost = elsewhere.delivery()
    with pytest.raises(SinkError, match="Nobody answers"):
        await target.write_remotely(replace(lost, run=run))
    assert len(unpublished(tmp_path)) == 1
    await target.resume(offset(FIRST))
    assert unpublished(tmp_path) == []
    await target.write_remotely(elsewhere.delivery(batch(3, [1, 2])))
    assert file_rows(tmp_path) == inserts(3, 1, 2)


async def test_a_process_that_nobody_waits_for_any_more_does_not_touch_the_repetition(
    tmp_path: Path,
) -> None:
    target, elsewhere = sink(tmp_path), Elsewhere(tmp_path)
    await target.resume(offset(FIRST))
    batches = [batch(3, range(n * 10, n * 10 + 10)) for n in range(15)]
    left: list[RowWriter] = []
    has_begun, may_end = threading.Event(), threading.Event()

    async def lost(writer: RowWriter) -> object:
        left.append(pickle.loads(pickle.dumps(writer)))
        raise SinkError("Nobody answers.")

    def slow_rows() -> Iterator[ChangeBatch]:
        yield from batches[:2]
        has_begun.set()
        may_end.wait(PATIENCE_SECONDS)
        raise ValueError("the engine is gone")

    def write_on() -> None:
        with suppress(ValueError):
            left[0](slow_rows())

    with pytest.raises(SinkError, match="Nobody answers"):
        await target.write_remotely(replace(elsewhere.delivery(), run=lost))
    await target.resume(offset(FIRST))
    again = elsewhere.delivery(*batches)

    async def run(writer: RowWriter) -> object:
        answer = await again.run(writer)
        # Only now does the first one get as far as the file that is finished here.
        slow.start()
        assert has_begun.wait(PATIENCE_SECONDS)
        return answer

    slow = threading.Thread(target=write_on)
    await target.write_remotely(replace(again, run=run))
    published = file_rows(tmp_path)
    may_end.set()
    slow.join(PATIENCE_SECONDS)
    assert published == inserts(3, *range(150))
    assert file_rows(tmp_path) == inserts(3, *range(150))
    assert unpublished(tmp_path) == []


async def test_who_lost_the_folder_meanwhile_publishes_nothing(tmp_path: Path) -> None:
    target, other = sink(tmp_path), sink(tmp_path)
    await target.resume(offset(FIRST))
    elsewhere = Elsewhere(tmp_path)
    whole = elsewhere.delivery(batch(3, [1]))

    async def run(writer: RowWriter) -> object:
        answer = await whole.run(writer)
        await other.resume(offset(FIRST))
        return answer

    with pytest.raises(SinkFencedError):
        await target.write_remotely(replace(whole, run=run))
    assert elsewhere.seen == ([], 1)
    assert names(tmp_path) == []
    assert files_without_a_name(tmp_path) == []
    await other.write_remotely(elsewhere.delivery(batch(3, [1]), batch(3, [2])))
    assert file_rows(tmp_path) == inserts(3, 1, 2)


async def test_a_sink_goes_on_behind_what_another_process_wrote(tmp_path: Path) -> None:
    target, elsewhere = sink(tmp_path), Elsewhere(tmp_path)
    await target.resume(offset(FIRST))
    await target.write_remotely(elsewhere.delivery(batch(3, [1])))
    await target.write_remotely(elsewhere.delivery(batch(5, [2]), version=NEXT))
    # Never covered by a saved offset: it comes again.
    successor = sink(tmp_path)
    await successor.resume(offset(NEXT))
    assert file_rows(tmp_path) == inserts(3, 1)
    await successor.write_remotely(elsewhere.delivery(batch(5, [2, 3]), version=NEXT))
    assert file_rows(tmp_path) == [*inserts(3, 1), *inserts(5, 2, 3)]


async def test_a_folder_that_another_process_does_not_see_is_named(tmp_path: Path) -> None:
    target = sink(tmp_path / "out")
    await target.resume(offset(FIRST))
    whole = Elsewhere(tmp_path / "out").delivery(batch(3, [1]))

    async def run(writer: RowWriter) -> object:
        hidden = (tmp_path / "out").rename(tmp_path / "hidden")
        try:
            return given_to(writer, batch(3, [1]))
        finally:
            hidden.rename(tmp_path / "out")

    with pytest.raises(SinkError, match=r"out cannot be written: .*executors.* see the same"):
        await target.write_remotely(replace(whole, run=run))


async def test_an_answer_that_names_no_files_is_a_bug(tmp_path: Path) -> None:
    target = sink(tmp_path)
    await target.resume(offset(FIRST))
    whole = Elsewhere(tmp_path).delivery()

    async def run(writer: RowWriter) -> object:
        return None

    with pytest.raises(BugError, match="not a list"):
        await target.write_remotely(replace(whole, run=run))
