"""What a checkpoint that failed, or a writer that died, leaves in the log goes again."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

import pytest

from tailerd.errors import AccessDeniedError, LogChangedError, StorageError
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.log.log_writer import LogWriter
from tailerd.formats.delta.maintenance.jobs import DeltaMaintenance
from tailerd.formats.delta.maintenance.policies import CheckpointPolicy, Policies
from tailerd.storage.local import LocalOutput, LocalStore
from tailerd.storage.memory import MemoryStore
from tailerd.storage.output import Output
from tailerd.storage.posix_files import TEMPORARY_PREFIX
from tests.doubles.faulty_store import FaultyStore
from tests.formats.delta.histories import assert_is
from tests.formats.delta.log_bodies import add, remove
from tests.tables.builder import TableBuilder

Manifest = Literal["json", "parquet"]
DAY_SECONDS = 86_400


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    table = TableBuilder(tmp_path, reader_features=["v2Checkpoint"])
    table.create(*(add(f"a{n}") for n in range(5)))
    table.commit(add("b"))
    return table


class LosingAnswers(FaultyStore):
    """Puts whole manifests and then says that it failed; may refuse to delete them."""

    keeps_manifests = False

    async def put(self, path: str, data: bytes, *, if_absent: bool = False) -> None:
        await super().put(path, data, if_absent=if_absent)
        if ".checkpoint." in path:
            raise StorageError("The answer was lost.")

    async def delete(self, path: str) -> None:
        if self.keeps_manifests and ".checkpoint." in path:
            raise StorageError("The answer was lost again.")
        await super().delete(path)


async def checkpoint(store: FaultyStore, table: TableBuilder, manifest: Manifest = "json") -> None:
    reader = LogReader(store, str(table.folder))
    await LogWriter(reader).write_checkpoint(await reader.open(), manifest=manifest)


def written(table: TableBuilder) -> list[str]:
    found = [*table.log.glob("*checkpoint*"), *table.log.glob("_sidecars/*")]
    return sorted(path.name for path in found)


@pytest.mark.parametrize("manifest", ["json", "parquet"])
async def test_a_manifest_that_cannot_be_written_leaves_no_sidecar(
    table: TableBuilder, manifest: Manifest
) -> None:
    for _ in range(3):
        store = FaultyStore(LocalStore())
        store.fail_nth(1, kind="put", path_part=".checkpoint.")
        with pytest.raises(StorageError, match="the test told it to"):
            await checkpoint(store, table, manifest)
        assert written(table) == []


async def test_sidecars_that_are_named_again_stay_where_the_new_manifest_fails(
    table: TableBuilder,
) -> None:
    await checkpoint(FaultyStore(LocalStore()), table)
    before = written(table)
    table.commit(add("c"))
    store = FaultyStore(LocalStore())
    store.fail_nth(1, kind="put", path_part=".checkpoint.")
    with pytest.raises(StorageError, match="the test told it to"):
        await checkpoint(store, table)
    assert written(table) == before


async def test_a_manifest_whose_answer_is_lost_goes_before_its_sidecars(
    table: TableBuilder,
) -> None:
    store = LosingAnswers(LocalStore())
    with pytest.raises(StorageError, match="The answer was lost"):
        await checkpoint(store, table)
    assert written(table) == []
    [first, *rest] = [path for kind, path in store.log if kind == "delete"]
    assert ".checkpoint." in first
    assert all("_sidecars" in path for path in rest)


async def test_a_manifest_that_cannot_be_withdrawn_keeps_its_sidecars(table: TableBuilder) -> None:
    store = LosingAnswers(LocalStore())
    store.keeps_manifests = True
    with pytest.raises(StorageError, match="lost again"):
        await checkpoint(store, table)
    snapshot = await LogReader(LocalStore(), str(table.folder)).open()
    assert snapshot.checkpoint_version == table.version
    assert_is(snapshot, table.state())


class Refusing(FaultyStore):
    """Refuses to put what is no sidecar, and to delete anything."""

    async def put(self, path: str, data: bytes, *, if_absent: bool = False) -> None:
        if "_sidecars" not in path:
            raise AccessDeniedError("The put was refused.")
        await super().put(path, data, if_absent=if_absent)

    async def delete(self, path: str) -> None:
        raise AccessDeniedError("The deletion was refused.")


async def test_a_refused_manifest_is_told_as_that_where_deleting_is_refused_too(
    table: TableBuilder,
) -> None:
    with pytest.raises(AccessDeniedError) as caught:
        await checkpoint(Refusing(LocalStore()), table)
    text = str(caught.value)
    assert text.startswith("The put was refused.")
    assert text.count("may still exist and could not be deleted: The deletion was refused.") == 1
    assert f"{table.log}/{table.version:020}.checkpoint." in text
    assert text.endswith("Delete the remaining files.")


class Full(LocalOutput):
    """A second file that does not fit, and that cannot be forgotten either."""

    async def finish(self, *, if_absent: bool = False) -> None:
        raise StorageError("The disk is full.")

    async def discard(self) -> None:
        await super().discard()
        raise StorageError("It cannot be forgotten.")


class Filling(FaultyStore):
    """Has room for one file that is written piece by piece."""

    def open_output(self, path: str) -> Output:
        is_first = self.count("put") == 0
        return super().open_output(path) if is_first else Full(path)


async def test_a_sidecar_that_cannot_be_forgotten_hides_nothing_and_keeps_no_other(
    table: TableBuilder,
) -> None:
    table.commit(remove("b", deletionTimestamp=round(time.time() * 1000)))
    with pytest.raises(StorageError, match="The disk is full"):
        await checkpoint(Filling(LocalStore()), table)
    assert written(table) == []


class Silent(FaultyStore):
    """Never answers to a deletion."""

    async def delete(self, path: str) -> None:
        await asyncio.sleep(60)


@pytest.mark.parametrize("job", ["checkpoint", "compaction", "checksum"])
async def test_what_cannot_be_deleted_in_time_is_named_with_the_reason(
    table: TableBuilder, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    monkeypatch.setattr("tailerd.formats.delta.log.publication.WITHDRAW_SECONDS", 0.05)
    store = Silent(LocalStore())
    reader = LogReader(store, str(table.folder))
    snapshot, published = await reader.open(), await reader.commit_file(table.version)
    writer = LogWriter(reader)
    # A compaction looks its commit up first.
    store.fail_nth(3 if job == "compaction" else 2, kind="head")
    jobs: dict[str, Callable[[], Awaitable[object]]] = {
        "checkpoint": lambda: writer.write_checkpoint(snapshot),
        "compaction": lambda: writer.write_compaction(snapshot.state, 0, table.version),
        "checksum": lambda: writer.write_checksum(snapshot, published=published),
    }
    with pytest.raises(StorageError, match=r"^The storage failed because") as caught:
        await jobs[job]()
    found = re.search(r"Also, (\S+) may still exist .* within 0.05 seconds", str(caught.value))
    assert found
    left = [path.name for path in table.log.iterdir()]
    assert Path(found[1]).name in left


async def test_a_cancelled_job_stays_cancelled_where_its_file_cannot_be_deleted(
    table: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailerd.formats.delta.log.publication.WITHDRAW_SECONDS", 0.05)
    store = Silent(LocalStore())
    store.fail_nth(2, asyncio.CancelledError(), kind="head")
    with pytest.raises(asyncio.CancelledError) as caught:
        await checkpoint(store, table)
    assert "may still exist" in caught.value.__notes__[0]


async def test_a_log_that_does_not_add_up_leaves_no_sidecar(table: TableBuilder) -> None:
    reader = LogReader(LocalStore(), str(table.folder))
    snapshot = await reader.open()
    table.commit(add("other"), version=table.version)
    with pytest.raises(LogChangedError, match="were found again"):
        await LogWriter(reader).write_checkpoint(snapshot)
    assert written(table) == []


def leftovers(folder: Path) -> dict[str, Path]:
    """Leave unfinished files, one old and one of a writer that may be at work."""
    now = time.time()
    found = {}
    for name, age in (("old", 3 * DAY_SECONDS), ("young", 60)):
        found[name] = folder / f"{TEMPORARY_PREFIX}{name}"
        found[name].write_bytes(b"x")
        os.utime(found[name], (now - age, now - age))
    return found


OFTEN = Policies(checkpoint=CheckpointPolicy(every_commits=1, min_interval_seconds=0))


async def checkpoint_by_policy(store: FaultyStore | MemoryStore, root: str) -> None:
    work = DeltaMaintenance(LogReader(store, root), OFTEN)
    assessment = await work.assessment()
    [due] = [each for each in assessment.decisions if each.is_due]
    assert (await work.apply(assessment, due)).outcome == "written"


async def test_a_checkpoint_removes_what_dead_writers_left_a_day_ago(table: TableBuilder) -> None:
    (table.log / "_sidecars").mkdir()
    here, below = leftovers(table.log), leftovers(table.log / "_sidecars")
    await checkpoint_by_policy(FaultyStore(LocalStore()), str(table.folder))
    for found in (here, below):
        assert not found["old"].exists()
        assert found["young"].exists()


async def test_what_cannot_be_removed_stops_no_checkpoint(table: TableBuilder) -> None:
    class Keeping(FaultyStore):
        async def sweep(self, folder: str, before_ms: int) -> int:
            raise StorageError(f"{folder} may not be tidied.")

    await checkpoint_by_policy(Keeping(LocalStore()), str(table.folder))


async def test_elsewhere_a_checkpoint_does_not_ask_for_leftovers(table: TableBuilder) -> None:
    memory = MemoryStore()
    for path in table.log.glob("*.json"):
        await memory.put(f"/t/_delta_log/{path.name}", path.read_bytes())

    class Asked(FaultyStore):
        async def sweep(self, folder: str, before_ms: int) -> int:
            raise AssertionError(folder)

    elsewhere = Asked(memory)
    elsewhere.is_remote = True
    await checkpoint_by_policy(elsewhere, "/t")
