"""An offset set back into a file: the rows behind it go, crash or not; what is foreign is named."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailerd.changefeed.change_batch import VARIANT_FIELD
from tailerd.changefeed.gap import Gap
from tailerd.changefeed.offset import Offset, Phase, Version
from tailerd.errors import ConfigError, OffsetError, SinkError
from tailerd.sinks.file import cut as file_cut
from tests.contracts.test_sink import batch, delivery, file_rows, inserts, offset
from tests.sinks.test_file_sink import everything, names, sink

KINDS = pytest.mark.parametrize("kind", ["jsonl", "parquet"])


class CrashError(BaseException):
    """The process dies here."""


async def deliver_many_versions(folder: Path, kind: str, *, size: str = "1KiB") -> None:
    """Versions 0..9 of 30 rows in one delivery, in several files; then version 10."""
    target = sink(folder, format=kind, max_bytes_per_file=size)
    await target.resume(offset(0))
    batches = [batch(version, ids(version)) for version in range(10)]
    await target.write(replace(delivery(0, *batches), end=offset(10)))
    await target.write(delivery(10, batch(10, ids(10))))


def ids(version: int) -> range:
    return range(version * 30, version * 30 + 30)


def rows_before(version: int) -> list[tuple[int, str, int]]:
    return [row for earlier in range(version) for row in inserts(earlier, *ids(earlier))]


def stamps(folder: Path) -> dict[str, int]:
    return {name: (folder / name).stat().st_mtime_ns for name in names(folder)}


def only_file(folder: Path) -> Path:
    [name] = names(folder)
    return folder / name


class Mortal:
    """Lets the process die before its n-th change of a name in the folder."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.left = 0
        for name in ("unlink", "replace"):
            patch.setattr(Path, name, self._counted(getattr(Path, name)))

    def _counted(self, change: Callable[..., object]) -> Callable[..., object]:
        def changed(*arguments: object, **options: object) -> object:
            if not self.left:
                raise CrashError
            self.left -= 1
            return change(*arguments, **options)

        return changed


@KINDS
@pytest.mark.parametrize("size", ["1KiB", "1MiB"])
@pytest.mark.parametrize("back_to", [1, 4, 9, 10])
async def test_cutting_goes_on_wherever_it_is_interrupted(
    tmp_path: Path, kind: str, size: str, back_to: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mortal = Mortal(monkeypatch)
    mortal.left = 1000
    await deliver_many_versions(tmp_path, kind, size=size)
    await sink(tmp_path).accept(offset(back_to))
    deaths = 0
    for lifetime in range(1, 100):
        mortal.left = deaths % 12 if lifetime < 50 else 1000
        try:
            await sink(tmp_path, format=kind).resume(offset(back_to))
        except CrashError:
            deaths += 1
            covered = [row for row in file_rows(tmp_path) if row[2] < back_to]
            assert covered == rows_before(back_to), "what is covered is there at any moment"
    assert deaths
    assert file_rows(tmp_path) == rows_before(back_to)
    assert all(not name.endswith(".tmp") for name in everything(tmp_path))


@KINDS
async def test_a_restart_that_cuts_nothing_touches_no_file(tmp_path: Path, kind: str) -> None:
    await deliver_many_versions(tmp_path, kind, size="1MiB")
    before = stamps(tmp_path)
    for at in (offset(11), offset(11, 3), offset(99)):
        await sink(tmp_path, format=kind).resume(at)
        assert stamps(tmp_path) == before


@KINDS
async def test_an_offset_inside_a_commit_keeps_the_rows_delivered_of_it(
    tmp_path: Path, kind: str
) -> None:
    target = sink(tmp_path, format=kind)
    await target.resume(offset(0))
    first = replace(delivery(0, batch(0, [1]), batch(1, [2, 3])), end=offset(1, 2))
    await target.write(first)
    await target.write(replace(delivery(1, batch(1, [4])), start=first.end))
    await target.resume(first.end)
    assert [row[0] for row in file_rows(tmp_path)] == [1, 2, 3]
    # The commit is left out: what came of it goes as well.
    await target.resume(offset(1))
    assert [row[0] for row in file_rows(tmp_path)] == [1]


@KINDS
async def test_an_offset_before_a_later_snapshot_takes_its_versions_changes_back(
    tmp_path: Path, kind: str
) -> None:
    target = sink(tmp_path, format=kind)
    await target.resume(offset(0))
    await target.write(replace(delivery(0, *(batch(v, [v]) for v in range(4))), end=offset(4)))
    snapshot = Offset(table_id="table-1", version=Version(3), phase=Phase.SNAPSHOT)
    await target.resume(snapshot)
    assert [row[0] for row in file_rows(tmp_path)] == [0, 1, 2]
    await target.write(replace(delivery(3, batch(3, [0, 1, 2, 3])), start=snapshot, end=offset(4)))
    for _ in range(2):
        await target.resume(offset(4))
    assert [row[0] for row in file_rows(tmp_path)] == [0, 1, 2, 0, 1, 2, 3]


@KINDS
@pytest.mark.attack
async def test_a_reset_into_a_difference_over_several_commits_is_refused(
    tmp_path: Path, kind: str
) -> None:
    target = sink(tmp_path, format=kind)
    await target.resume(offset(2))
    # One step over the commits 2 to 5: all rows have its last version.
    await target.write(replace(delivery(2, batch(5, [1, 2])), end=offset(6), is_net=True))
    await target.write(delivery(6, batch(6, [3])))
    [net, _] = names(tmp_path)
    assert net.endswith(f".net.{kind}")
    before = stamps(tmp_path)
    for inside in (3, 5):
        with pytest.raises(OffsetError, match=r"versions from 2 to 5 as one difference"):
            await target.accept(offset(inside))
        with pytest.raises(OffsetError, match=r"Reset to 2 .* or to a version after 5"):
            await target.resume(offset(inside))
    assert stamps(tmp_path) == before
    for at, left in ((6, [1, 2]), (2, [])):
        await target.accept(offset(at))
        await sink(tmp_path, format=kind).resume(offset(at))
        assert [row[0] for row in file_rows(tmp_path)] == left


@KINDS
@pytest.mark.attack
@pytest.mark.parametrize(("back_to", "left"), [(6, [0, 1, 4, 5]), (4, [0, 1]), (3, []), (2, [])])
async def test_a_reset_into_a_delivery_that_began_in_a_snapshot_does_not_duplicate_rows(
    tmp_path: Path, kind: str, back_to: int, left: list[int]
) -> None:
    snapshot = Offset(table_id="table-1", version=Version(3), phase=Phase.SNAPSHOT)
    inside = replace(snapshot, position=7)
    target = sink(tmp_path, format=kind)
    await target.resume(snapshot)
    await target.write(replace(delivery(3, batch(3, [0])), start=snapshot, end=inside))
    rest = (batch(3, [1]), *(batch(version, [version]) for version in (4, 5, 6)))
    await target.write(replace(delivery(3, *rest), start=inside, end=offset(7)))
    await target.accept(offset(back_to))
    for _ in range(2):
        await sink(tmp_path, format=kind).resume(offset(back_to))
        assert [row[0] for row in file_rows(tmp_path)] == left


@pytest.mark.attack
async def test_a_restart_within_a_snapshot_keeps_the_rows_before_the_offset(tmp_path: Path) -> None:
    snapshot = Offset(table_id="table-1", version=Version(3), phase=Phase.SNAPSHOT)
    target = sink(tmp_path)
    await target.resume(snapshot)
    inside = replace(snapshot, position=7)
    await target.write(replace(delivery(3, batch(3, [0])), start=snapshot, end=inside))
    await target.write(replace(delivery(3, batch(3, [1])), start=inside, end=offset(4)))
    await sink(tmp_path).resume(inside)
    assert [row[0] for row in file_rows(tmp_path)] == [0]


async def test_no_value_can_imitate_the_end_of_a_line(tmp_path: Path) -> None:
    target = sink(tmp_path)
    await target.resume(offset(0))
    ends = '"_commit_version":9,"_commit_timestamp":"1"}\n'
    rows = pa.record_batch({"id": pa.array([7], pa.int64()), "text": pa.array([ends * 20])})
    reported = [replace(batch(version, [0]), rows=rows) for version in range(3)]
    await target.write(replace(delivery(0, *reported), end=offset(3)))
    await target.resume(offset(2))
    assert [row[2] for row in file_rows(tmp_path)] == [0, 1]


async def test_a_cut_parquet_file_keeps_its_schema(tmp_path: Path) -> None:
    target = sink(tmp_path, format="parquet")
    await target.resume(offset(0))
    variant = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("v", variant, metadata=VARIANT_FIELD),
            pa.field("at", pa.timestamp("us")),
        ]
    )
    rows = pa.RecordBatch.from_pylist(
        [{"id": 1, "v": {"metadata": b"m", "value": b"v"}, "at": 5}], schema=schema
    )
    reported = [replace(batch(version, [0]), rows=rows) for version in range(3)]
    await target.write(replace(delivery(0, *reported), end=offset(3)))
    path = only_file(tmp_path)
    whole = pq.ParquetFile(path).read()
    await target.resume(offset(2))
    cut = pq.ParquetFile(path).read()
    assert cut.schema.equals(whole.schema, check_metadata=True)
    assert cut.equals(whole.slice(0, 2))


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("jsonl", b'{"id":1}\n'),
        ("jsonl", b""),
        ("jsonl", b'{"id":1,"_commit_version":3,"_commit_timestamp":"t"}'),
        ("parquet", b"PAR1"),
    ],
)
async def test_a_file_that_is_not_as_it_was_written_is_named_and_left_alone(
    tmp_path: Path, kind: str, content: bytes
) -> None:
    target = sink(tmp_path, format=kind)
    await target.resume(offset(0))
    await target.write(delivery(0, batch(0, [1])))
    path = only_file(tmp_path)
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"{path.name} is damaged or was changed.*move it"):
        await target.resume(offset(1))
    assert path.read_bytes() == content


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@KINDS
async def test_a_full_disk_leaves_the_file_whole_and_may_be_tried_again(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await deliver_many_versions(tmp_path, kind, size="1MiB")
    before = rows_before(10)
    target = sink(tmp_path, format=kind)
    await target.resume(offset(10))
    monkeypatch.setattr(file_cut, "open_temporary", lambda *_: open("/dev/full", "wb"))  # noqa: SIM115
    with pytest.raises(SinkError, match="No space left") as caught:
        await target.resume(offset(5))
    assert caught.value.retryable
    assert file_rows(tmp_path) == before
    monkeypatch.undo()
    await target.resume(offset(5))
    assert file_rows(tmp_path) == rows_before(5)


async def test_cutting_a_large_file_holds_little_of_it(tmp_path: Path) -> None:
    target = sink(tmp_path)
    await target.resume(offset(0))
    batches = [batch(version, range(50_000)) for version in range(6)]
    await target.write(replace(delivery(0, *batches), end=offset(6)))
    tracemalloc.start()
    try:
        await target.resume(offset(5))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    path = only_file(tmp_path)
    assert path.stat().st_size > 5 * peak
    assert path.read_bytes().count(b"\n") == 250_000


async def test_the_record_of_a_gap_behind_the_offset_goes_and_one_at_it_stays(
    tmp_path: Path,
) -> None:
    target = sink(tmp_path)
    await target.resume(offset(0))
    gap = Gap(table="orders", start=offset(1), end=offset(7), reason="missing_version")
    await target.note_gap(gap)
    await target.resume(offset(7))
    assert len(names(tmp_path)) == 1
    await target.resume(offset(6))
    assert names(tmp_path) == []
