"""What is not read correctly is refused, and the message names it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from tailerd.changefeed.limits import BatchLimit
from tailerd.changefeed.offset import Version
from tailerd.errors import (
    CorruptLogError,
    FilesCollectedError,
    InvalidDeletionVectorError,
    MissingDataFileError,
    MissingExtraError,
    NotATableError,
    PathOutsideTableError,
    TailerdError,
    UnsupportedFeatureError,
)
from tailerd.formats.base import OpenRequest
from tailerd.formats.detect import open_table
from tailerd.formats.lance.library import load_lance
from tailerd.formats.lance.protocol.wire import fields
from tailerd.storage.table_location import locate_table
from tests.formats.lance.following import batches, changes_from, opened
from tests.formats.lance.wire_format import field, message, rewritten
from tests.integration.daemon.running import run_to_end
from tests.tables.lance_writer import LanceWriter

ROWS = [{"id": number, "name": f"n{number}"} for number in range(4)]


def newest(location: Path) -> Path:
    return min((location / "_versions").glob("*.manifest"))


async def test_flags_that_are_not_known_are_named(tmp_path: Path) -> None:
    LanceWriter(tmp_path / "t").append(ROWS)
    rewritten(newest(tmp_path / "t"), lambda body: body + field(9, 1 | 64 | 4096))
    with pytest.raises(UnsupportedFeatureError, match=r"64 \(data overlay files\), 4096\."):
        await opened(tmp_path / "t")


async def test_overlays_are_refused(tmp_path: Path) -> None:
    LanceWriter(tmp_path / "t").append(ROWS)

    def overlaid(body: bytes) -> bytes:
        return message(
            (n, v + field(11, b"") if n == 2 and isinstance(v, bytes) else v)
            for n, v in fields(body)
        )

    rewritten(newest(tmp_path / "t"), overlaid)
    with pytest.raises(UnsupportedFeatureError, match="overlay files"):
        await changes_from(await opened(tmp_path / "t"), "1")


async def test_base_paths_outside_of_the_table_are_refused(tmp_path: Path) -> None:
    writer = LanceWriter(tmp_path / "t")
    writer.append(ROWS)
    writer.dataset.shallow_clone(str(tmp_path / "c"), 1)
    with pytest.raises(PathOutsideTableError, match="clone"):
        await changes_from(await opened(tmp_path / "c"), "snapshot")


async def test_links_out_of_the_table_are_not_followed(tmp_path: Path) -> None:
    LanceWriter(tmp_path / "t").append(ROWS)
    [file] = (tmp_path / "t/data").iterdir()
    shutil.move(file, tmp_path / "elsewhere.lance")
    file.symlink_to(tmp_path / "elsewhere.lance")
    with pytest.raises(PathOutsideTableError):
        await changes_from(await opened(tmp_path / "t"), "snapshot")


async def test_branches_are_refused_by_name(tmp_path: Path) -> None:
    writer = LanceWriter(tmp_path / "t")
    writer.append(ROWS)
    writer.dataset.create_branch("dev")
    with pytest.raises(UnsupportedFeatureError, match="branch 'dev'"):
        await opened(tmp_path / "t/tree/dev")


async def test_files_that_are_gone_are_told_from_versions_that_are(tmp_path: Path) -> None:
    writer = LanceWriter(tmp_path / "t")
    writer.append(ROWS)
    writer.append([{"id": 9, "name": "n"}])
    source = await opened(tmp_path / "t")
    begin = await source.offset_at(Version(1))
    [group] = [each async for each in source.plan(begin, begin.after_version(source))]
    for file in (tmp_path / "t/data").iterdir():
        file.unlink()
    with pytest.raises(MissingDataFileError, match=r"\.lance does not exist"):
        await batches(source, begin, begin.after_version(source))
    writer.clean_up_before(2)
    with pytest.raises(FilesCollectedError, match="cleaned up"):
        list(source.read(group.tasks[0], BatchLimit()))


async def test_a_deletion_file_that_is_damaged_is_named(tmp_path: Path) -> None:
    writer = LanceWriter(tmp_path / "t")
    writer.append(ROWS)
    writer.delete("id = 1")
    [file] = (tmp_path / "t/_deletions").iterdir()
    file.write_bytes(b"junk")
    with pytest.raises(InvalidDeletionVectorError, match=file.name):
        await changes_from(await opened(tmp_path / "t"), "2")


async def test_a_column_without_a_known_type_is_refused_unless_it_is_left_out(
    tmp_path: Path,
) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("j", pa.string())])
    LanceWriter(tmp_path / "t", schema=schema).append([{"id": 1, "j": "x"}])

    def strange(body: bytes) -> bytes:
        return body.replace(b"\x06string", b"\x06strang")

    rewritten(newest(tmp_path / "t"), strange)
    with pytest.raises(UnsupportedFeatureError, match="The column j cannot be read"):
        await opened(tmp_path / "t")
    for chosen in (["id"], {"exclude": ["j"]}):
        source = await opened(tmp_path / "t", columns=chosen)
        assert (await source.arrow_schema()).names == ["id"]
        # The library itself cannot open such a file.
        begin = await source.initial_offset("1")
        [group] = [each async for each in source.plan(begin, begin.after_version(source))]
        assert len(group.tasks) == 1


async def test_a_manifest_that_is_torn_is_damage(tmp_path: Path) -> None:
    LanceWriter(tmp_path / "t").append(ROWS)
    path = newest(tmp_path / "t")
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CorruptLogError, match="does not end as one"):
        await opened(tmp_path / "t")
    path.unlink()
    with pytest.raises(NotATableError):
        await opened(tmp_path / "t")


async def test_a_manifest_that_waits_for_a_store_elsewhere_is_told_of(tmp_path: Path) -> None:
    LanceWriter(tmp_path / "t").append(ROWS)
    staged = newest(tmp_path / "t").with_name(f"{(1 << 64) - 1 - 2}.manifest-1b4e28ba")
    staged.write_bytes(b"")
    reported: list[TailerdError] = []
    request = OpenRequest(on_warning=reported.append)
    await open_table(locate_table(str(tmp_path / "t")), request, "lance")
    assert [str(each)[:20] for each in reported] == ["Version 2 of " + str(tmp_path)[:7]]


def test_a_missing_library_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "lance", None)
    with pytest.raises(MissingExtraError, match=r"tailerd\[lance\]") as error:
        load_lance()
    assert error.value.exit_status == 2


def test_the_command_ends_with_3_and_prints_no_row(tmp_path: Path) -> None:
    LanceWriter(tmp_path / "t").append(ROWS)
    rewritten(newest(tmp_path / "t"), lambda body: body + field(9, 512))
    done = run_to_end("tail", tmp_path / "t", "--from", "snapshot", "--once", "--format", "jsonl")
    assert (done.returncode, done.stdout) == (3, "")
    assert "flag 512" in done.stderr
