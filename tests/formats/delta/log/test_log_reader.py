from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailerd.errors import (
    ChecksumMismatchError,
    CorruptLogError,
    MissingVersionError,
    NotATableError,
    TailerdError,
    TornCommitError,
    UnsupportedFeatureError,
)
from tailerd.formats.delta.log import log_folder, log_reader, segment_replay
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.storage.base import FileMeta
from tailerd.storage.local import LocalStore
from tailerd.storage.metered import MeteredStore
from tests.doubles.faulty_store import FaultyStore
from tests.formats.delta.histories import (
    CHECKPOINT_KINDS,
    HEAD,
    CheckpointKind,
    assert_described,
    assert_is,
    live_files,
    write_checkpoint,
    write_history,
)
from tests.formats.delta.log_bodies import PROTOCOL, add, body_of, metadata
from tests.tables.builder import TableBuilder
from tests.tables.table_files import START_MS
from tests.waiting import PATIENCE_SECONDS


def make_reader(table: TableBuilder, **options: Any) -> LogReader:
    return LogReader(LocalStore(), str(table.folder), **options)


REAL_KINDS = [kind for kind in CHECKPOINT_KINDS if kind != "none"]


@pytest.mark.parametrize("kind", CHECKPOINT_KINDS)
async def test_every_version_is_what_a_naive_replay_gives(
    tmp_path: Path, kind: CheckpointKind
) -> None:
    table = write_history(tmp_path)
    write_checkpoint(table, kind, 4)
    reader = make_reader(table)
    for version in range(HEAD + 1):
        for with_files in (True, False):
            snapshot = await reader.open(version, with_files=with_files)
            assert_is(snapshot, table.state(version), with_files=with_files)
            is_based = kind != "none" and version >= 4
            assert snapshot.checkpoint_version == (4 if is_based else None)
    assert (await reader.open()).version == HEAD


@pytest.mark.parametrize("kind", REAL_KINDS)
async def test_a_cleaned_up_log_is_read_from_its_checkpoint(
    tmp_path: Path, kind: CheckpointKind
) -> None:
    table = write_history(tmp_path)
    states = [table.state(version) for version in range(HEAD + 1)]
    write_checkpoint(table, kind, 6)
    for version in range(7):
        table.commit_path(version).unlink()
    reader = make_reader(table)
    for version in range(6, HEAD + 1):
        snapshot = await reader.open(version)
        assert_is(snapshot, states[version])
        files = await live_files(reader, snapshot)
        assert_described(files, states[version], has_stats=kind != "classic-no-stats")
    with pytest.raises(MissingVersionError, match="cannot be rebuilt"):
        await reader.open(5)


@pytest.mark.parametrize("kind", CHECKPOINT_KINDS)
async def test_advancing_equals_opening_anew(tmp_path: Path, kind: CheckpointKind) -> None:
    table = write_history(tmp_path)
    write_checkpoint(table, kind, 2)
    reader = make_reader(table)
    snapshot = await reader.open(2)
    bare = await reader.open(2, with_files=False)
    for version in range(3, HEAD + 1):
        file = await reader.commit_file(version)
        assert file is not None
        found = await reader.read_commit(file)
        snapshot, bare = snapshot.advance(found.commit), bare.advance(found.commit)
        assert_is(snapshot, table.state(version))
        assert_is(bare, table.state(version), with_files=False)
        assert_described(
            await live_files(reader, snapshot),
            table.state(version),
            has_stats=kind != "classic-no-stats",
        )
    assert await reader.commit_file(HEAD + 1) is None


async def test_compactions_replace_commits_that_are_gone(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    states = [table.state(version) for version in range(HEAD + 1)]
    table.compact(0, 2)
    table.compact(4, 7)
    for version in (0, 1, 2, 4, 5, 6, 7):
        table.commit_path(version).unlink()
    reader = make_reader(table)
    for version in (2, 3, 7, 8, HEAD):
        snapshot = await reader.open(version)
        assert_is(snapshot, states[version])
        assert_described(await live_files(reader, snapshot), states[version])
    with pytest.raises(MissingVersionError):
        await reader.open(5)


@pytest.mark.parametrize(
    "hint",
    [
        b"",
        b"{",
        b'{"version":4,"size":1,"checksum":"wrong"}',
        b'{"version":9999999999999999999999}',
        b'{"version":1e999999999}',
        b'{"version":150,"size":1}',
        b'{"version":8,"size":1}',
        b'{"version":0,"size":1}',
        b'{"version":1,"t":"\\ud800","checksum":"x"}',
    ],
)
async def test_a_hint_that_points_nowhere_or_is_corrupt_changes_nothing(
    tmp_path: Path, hint: bytes
) -> None:
    table = write_history(tmp_path)
    write_checkpoint(table, "classic", 4)
    (table.log / "_last_checkpoint").write_bytes(hint)
    for version in (2, 4, 8, None):
        snapshot = await make_reader(table).open(version)
        assert_is(snapshot, table.state(version))


async def test_a_hint_far_ahead_of_a_log_that_was_set_back_changes_nothing(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    table.last_checkpoint(5000)
    assert_is(await make_reader(table).open(), table.state())


async def test_a_hint_to_a_newer_version_than_asked_for_does_not_hide_older_ones(
    tmp_path: Path,
) -> None:
    table = TableBuilder(tmp_path)
    table.create(add("a"))
    table.checkpoint(hint=False)
    for number in range(1, 130):
        table.commit(add(f"f{number}"))
    table.checkpoint()
    for version in (0, 1, 20, 128, 129, None):
        assert_is(await make_reader(table).open(version), table.state(version))


async def test_a_hint_keeps_the_listing_short(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    table.create()
    for _ in range(120):
        table.commit({"txn": {"appId": "a", "version": 1}})
    table.checkpoint()
    for version in range(10):
        table.commit_path(version).write_bytes(b"never looked at")
    assert (await make_reader(table).open()).version == 120


def damage(path: Path, how: str) -> None:
    match how:
        case "gone":
            path.unlink()
        case "cut":
            path.write_bytes(path.read_bytes()[:-20])
        case "short":
            path.write_bytes(b"PAR1")
        case "zeros":
            path.write_bytes(bytes(path.stat().st_size))
        case "other":
            pq.write_table(pa.table({"add": ["x"], "metaData": [5]}), path)
        case "no paths":
            pq.write_table(pa.table({"add": [{"size": 1}]}), path)


DAMAGES = ["gone", "cut", "short", "zeros", "other", "no paths"]


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("kind", REAL_KINDS)
async def test_a_damaged_checkpoint_is_passed_over(
    tmp_path: Path, kind: CheckpointKind, how: str
) -> None:
    table = write_history(tmp_path)
    write_checkpoint(table, "classic", 3)
    for path in write_checkpoint(table, kind, 6):
        kept = path.read_bytes()
        damage(path, how)
        snapshot = await make_reader(table).open()
        assert snapshot.checkpoint_version == 3
        assert_is(snapshot, table.state())
        path.write_bytes(kept)
    assert (await make_reader(table).open()).checkpoint_version == 6


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("kind", REAL_KINDS)
async def test_without_another_way_a_damaged_checkpoint_is_one_clear_error(
    tmp_path: Path, kind: CheckpointKind, how: str
) -> None:
    table = write_history(tmp_path)
    files = write_checkpoint(table, kind, 6)
    for version in range(7):
        table.commit_path(version).unlink()
    damage(files[-1], how)
    with pytest.raises((CorruptLogError, MissingVersionError)) as raised:
        await make_reader(table).open()
    assert raised.value.remedy


async def test_of_several_checkpoints_at_one_version_a_whole_one_is_found(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    states = table.state()
    damage(write_checkpoint(table, "v2-json-sidecars", 6)[-1], "gone")
    damage(write_checkpoint(table, "classic", 6)[0], "cut")
    write_checkpoint(table, "parts", 6)
    for version in range(7):
        table.commit_path(version).unlink()
    snapshot = await make_reader(table).open()
    assert_is(snapshot, states)
    assert [file.parts for file, _ in snapshot.checkpoint_files] == [3, 3, 3]


async def test_a_checkpoint_that_says_another_version_is_damaged(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    [manifest] = write_checkpoint(table, "v2-json", 6)
    text = manifest.read_text()
    manifest.write_text(text.replace('"version": 6', '"version": 5', 1))
    snapshot = await make_reader(table).open()
    assert snapshot.checkpoint_version is None
    assert_is(snapshot, table.state())


async def test_a_checkpoint_without_metadata_is_damaged(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    [manifest] = write_checkpoint(table, "v2-json", 6)
    lines = [line for line in manifest.read_text().splitlines() if "metaData" not in line]
    manifest.write_text("\n".join(lines) + "\n")
    assert (await make_reader(table).open()).checkpoint_version is None
    for version in range(7):
        table.commit_path(version).unlink()
    with pytest.raises(CorruptLogError, match="no metaData"):
        await make_reader(table).open()


async def test_paths_of_a_checkpoint_may_be_large_texts(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    [path] = table.checkpoint()
    read = pq.read_table(path)
    old = read.column("add").combine_chunks()
    names = [item.name for item in old.type]
    arrays = [old.field(name) for name in names]
    arrays[names.index("path")] = arrays[names.index("path")].cast(pa.large_string())
    new = pa.StructArray.from_arrays(arrays, names, mask=old.is_null())
    pq.write_table(read.set_column(read.column_names.index("add"), "add", new), path)
    reader = make_reader(table)
    snapshot = await reader.open()
    assert snapshot.checkpoint_version == HEAD
    assert_is(snapshot, table.state())
    assert_described(await live_files(reader, snapshot), table.state())


async def test_a_right_checksum_is_silent(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    table.checksum()
    table.checksum(3)
    for version in (3, None):
        assert_is(await make_reader(table).open(version), table.state(version))


async def test_a_wrong_checksum_is_an_error_without_anybody_to_tell(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    table.checksum(numFiles=999)
    with pytest.raises(ChecksumMismatchError, match="numFiles is 999"):
        await make_reader(table).open()
    reported: list[ChecksumMismatchError] = []
    snapshot = await make_reader(table, on_mismatch=reported.append).open()
    assert_is(snapshot, table.state())
    assert [error.code for error in reported] == ["checksum_mismatch"]


async def test_a_wrong_checksum_is_not_looked_at_without_files(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    table.checksum(numFiles=999)
    assert (await make_reader(table).open(with_files=False)).version == HEAD
    (table.log / f"{HEAD:020}.crc").write_text("garbage")
    assert (await make_reader(table).open()).version == HEAD


@pytest.mark.parametrize("missing", [0, 3, 8])
async def test_a_missing_commit_is_a_gap(tmp_path: Path, missing: int) -> None:
    table = write_history(tmp_path)
    table.commit_path(missing).unlink()
    with pytest.raises(MissingVersionError):
        await make_reader(table).open()


async def test_an_empty_folder_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(NotATableError, match=str(tmp_path)):
        await make_reader(TableBuilder(tmp_path)).open()


async def test_junk_beside_the_log_is_ignored(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    state = table.state()
    junk = [".00000000000000000009.json.crc", "00000000000000000010.json.tmp", "x", "_tmp_path"]
    for name in junk:
        (table.log / name).write_bytes(b"junk")
    for folder in ("_staged_commits", "_commits", "00000000000000000011.json"):
        (table.log / folder).mkdir()
        (table.log / folder / f"{HEAD + 1:020}.json").write_bytes(body_of(add("no")))
    assert_is(await make_reader(table).open(), state)


async def test_a_damaged_commit_is_one_clear_error(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    path = table.commit_path(5)
    kept = path.read_bytes()
    for body, kind in ((kept[:-30], TornCommitError), (b"", TornCommitError), (b"x\n", None)):
        path.write_bytes(body)
        with pytest.raises(kind or CorruptLogError, match=path.name):
            await make_reader(table, torn_wait_seconds=0.1).open()
        assert (await make_reader(table).open(4)).version == 4


async def test_a_failed_replay_leaves_no_fetch_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = write_history(tmp_path)
    table.commit_path(2).write_bytes(b"x\n")
    monkeypatch.setattr(segment_replay, "_GROUP_FILES", 1)
    before = asyncio.all_tasks()
    with pytest.raises(CorruptLogError):
        await make_reader(table).open()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("group", [1, 2, 3])
async def test_groups_and_large_commits_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: int
) -> None:
    table = write_history(tmp_path)
    monkeypatch.setattr(segment_replay, "_GROUP_FILES", group)
    monkeypatch.setattr(segment_replay, "_GROUP_BYTES", 300)
    monkeypatch.setattr(segment_replay, "LARGE_COMMIT_BYTES", 300)
    monkeypatch.setattr(log_reader, "LARGE_COMMIT_BYTES", 300)
    monkeypatch.setattr(log_folder, "SLICE_BYTES", 50)
    monkeypatch.setattr(log_folder, "LINES_SLICE_BYTES", 50)
    reader = make_reader(table)
    snapshot = await reader.open()
    assert_is(snapshot, table.state())
    assert_described(await live_files(reader, snapshot), table.state())
    file = await reader.commit_file(0)
    assert file is not None
    assert (await reader.read_commit(file)).body is None


async def test_a_torn_newest_commit_is_given_time(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    store = FaultyStore(LocalStore())
    reader = LogReader(store, str(table.folder), torn_wait_seconds=5)
    file = await reader.commit_file(HEAD)
    assert file is not None
    store.tear(file.name, 40, times=3)
    found = await reader.read_commit(file)
    assert found.commit.added.files == 2
    assert store.count("get") == 4


async def test_a_commit_that_stays_torn_is_reported_with_what_to_do(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    table.raw_commit(b'{"add":{"path":"x"')
    reader = make_reader(table, torn_wait_seconds=0.1)
    file = await reader.commit_file(HEAD + 1)
    assert file is not None
    with pytest.raises(TornCommitError, match="remove the file"):
        await reader.read_commit(file)
    with pytest.raises(TornCommitError):
        await reader.open()
    assert (await reader.open(HEAD)).version == HEAD


async def test_a_commit_that_can_never_become_whole_is_not_waited_for(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    table.raw_commit(b'{"add":{"path":5}}')
    store = MeteredStore(LocalStore())
    reader = LogReader(store, str(table.folder), torn_wait_seconds=60)
    file = await reader.commit_file(HEAD + 1)
    assert file is not None
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(CorruptLogError, match="Line 1"):
            await reader.read_commit(file)


async def test_lines_are_read_again_from_where_a_line_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = write_history(tmp_path)
    monkeypatch.setattr(log_folder, "SLICE_BYTES", 64)
    monkeypatch.setattr(log_folder, "LINES_SLICE_BYTES", 64)
    monkeypatch.setattr(log_folder, "LINES_SLICE_BYTES", 64)
    reader = make_reader(table)
    file = await reader.commit_file(0)
    assert file is not None
    body = table.commit_path(0).read_bytes()
    for held in (None, body, body[:-1]):
        found = [part async for part in reader.lines(file, body=held)]
        total = [line for lines, _ in found for line in lines]
        assert len(total) == body.count(b"\n")
        seen = 0
        for lines, after in found:
            seen += len(lines)
            rest = [line async for more, _ in reader.lines(file, after, held) for line in more]
            assert rest == total[seen:]


async def test_a_refused_protocol_is_refused_at_its_versions_only(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    table.create(add("a"))
    table.commit(
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": ["newThing"],
                "writerFeatures": ["newThing"],
            }
        }
    )
    table.commit(add("b"))
    table.commit(PROTOCOL, operation="DROP FEATURE")
    reader = make_reader(table)
    for version in (1, 2):
        with pytest.raises(UnsupportedFeatureError, match=r"newThing \(unknown"):
            await reader.open(version)
        snapshot, _ = await reader.open_listed(version)
        assert snapshot.version == version
    for served in (0, 3, None):
        assert_is(await reader.open(served), table.state(served))


@pytest.mark.parametrize(
    ("protocol", "why"),
    [
        ({"minReaderVersion": 99, "minWriterVersion": 2}, "reader version 99"),
        ({"minReaderVersion": 3, "minWriterVersion": 7}, "no readerFeatures"),
    ],
)
async def test_a_protocol_that_cannot_be_read_is_named(
    tmp_path: Path, protocol: dict[str, int], why: str
) -> None:
    table = TableBuilder(tmp_path)
    table.create()
    table.commit({"protocol": protocol})
    for open_it in (make_reader(table).open, make_reader(table).open_listed):
        with pytest.raises(TailerdError, match=why):
            await open_it()
    assert (await make_reader(table).open(0)).version == 0


async def test_a_log_that_begins_without_protocol_is_corrupt(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path)
    table.commit(metadata())
    with pytest.raises(CorruptLogError, match="no protocol action"):
        await make_reader(table).open()


async def test_files_know_their_size_and_time(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    file = await make_reader(table).commit_file(3)
    assert file is not None
    assert (file.version, file.mtime_ms) == (3, START_MS + 3000)
    assert file.size_bytes == table.commit_path(3).stat().st_size
    listing = await make_reader(table).list_log(7)
    assert sorted(listing.commits) == [7, 8, 9]
    assert listing.commits[7].mtime_ms == START_MS + 7000


async def test_commits_are_read_together_as_they_are_one_by_one(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    reader = make_reader(table)
    commits = (await reader.list_log()).commits
    files = [commits[version] for version in range(HEAD + 1)]
    assert await reader.read_commits(files) == [await reader.read_commit(file) for file in files]


async def test_a_reader_opens_a_location_of_any_form(tmp_path: Path) -> None:
    table = write_history(tmp_path)
    for location in (str(tmp_path), f"{tmp_path}/", tmp_path.as_uri()):
        assert_is(await LogReader.at(location).open(), table.state())


class TestAListingThatShowsFilesOutOfOrder:
    """A folder may show a file and not the one before, where both appear while it is listed."""

    @pytest.mark.parametrize("version", [None, HEAD])
    @pytest.mark.parametrize("kind", ["none", "classic"])
    async def test_is_not_taken_for_a_gap(
        self, tmp_path: Path, kind: CheckpointKind, version: int | None
    ) -> None:
        table = write_history(tmp_path)
        write_checkpoint(table, kind, 4)
        store = FaultyStore(LocalStore())
        store.hide_from_listings(table.commit_path(HEAD - 1).name)
        snapshot = await LogReader(store, str(tmp_path)).open(version)
        assert_is(snapshot, table.state(HEAD))
        assert store.count("list") == 2

    async def test_may_do_so_again_with_another_file(self, tmp_path: Path) -> None:
        table = write_history(tmp_path)
        inner = FaultyStore(LocalStore())
        inner.hide_from_listings(table.commit_path(HEAD - 1).name)
        store = FaultyStore(inner)
        store.hide_from_listings(table.commit_path(HEAD - 2).name, times=2)
        inner.hide_from_listings(table.commit_path(HEAD - 3).name)
        assert_is(await LogReader(store, str(tmp_path)).open(), table.state(HEAD))

    @pytest.mark.parametrize("version", [None, 0, 3])
    async def test_may_lack_the_first_commit(self, tmp_path: Path, version: int | None) -> None:
        table = write_history(tmp_path)
        store = FaultyStore(LocalStore())
        store.hide_from_listings(table.commit_path(0).name)
        snapshot = await LogReader(store, str(tmp_path)).open(version)
        assert_is(snapshot, table.state(HEAD if version is None else version))

    async def test_now_one_and_now_the_other_is_believed_after_some_looks(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(log_reader, "GAP_PATIENCE_SECONDS", 0.01)
        table = write_history(tmp_path)
        names = [table.commit_path(HEAD - 1).name, table.commit_path(HEAD - 2).name]

        class Alternating(FaultyStore):
            async def list_from(
                self, folder: str, start_after: str = ""
            ) -> AsyncIterator[FileMeta]:
                hidden = names[self.count("list") % 2]
                async for meta in super().list_from(folder, start_after):
                    if meta.name != hidden:
                        yield meta

        store = Alternating(LocalStore())
        with pytest.raises(MissingVersionError, match=r"Version \d is missing"):
            await asyncio.wait_for(LogReader(store, str(tmp_path)).open(), PATIENCE_SECONDS)
        assert store.count("list") == 1 + log_reader.GAP_LISTINGS

    async def test_is_believed_the_second_time(self, tmp_path: Path) -> None:
        table = write_history(tmp_path)
        table.commit_path(HEAD - 1).unlink()
        store = FaultyStore(LocalStore())
        with pytest.raises(MissingVersionError, match=f"Version {HEAD - 1} is missing"):
            await LogReader(store, str(tmp_path)).open()
        assert store.count("list") == 2

    async def test_is_not_waited_for_where_the_log_was_cut_off(self, tmp_path: Path) -> None:
        table = write_history(tmp_path)
        write_checkpoint(table, "classic", 6)
        for version in range(6):
            table.commit_path(version).unlink()
        store = FaultyStore(LocalStore())
        with pytest.raises(MissingVersionError, match="cannot be rebuilt"):
            await LogReader(store, str(tmp_path)).open(5)
        assert store.count("list") == 1


async def test_a_compaction_that_goes_while_it_is_read_is_replaced_by_the_next(
    tmp_path: Path,
) -> None:
    table = write_history(tmp_path)
    state = table.state(HEAD)
    write_checkpoint(table, "classic", 4)
    checkpoint = table.log / f"{4:020}.checkpoint.parquet"
    unseen = checkpoint.rename(tmp_path / "unseen")
    table.compact(0, 2)
    for version in (0, 1, 2):
        table.commit_path(version).unlink()

    class Cleaned(LocalStore):
        async def get_many(self, paths: Sequence[str]) -> list[bytes]:
            if unseen.exists():
                unseen.rename(checkpoint)
                (table.log / f"{0:020}.{2:020}.compacted.json").unlink()
            return await super().get_many(paths)

    assert_is(await LogReader(Cleaned(), str(tmp_path)).open(), state)
