"""Garbage collection of datasets: deletes files that neither metadata nor a ledger references."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Collection, Iterable
from dataclasses import dataclass

import msgspec

from tailerd.changefeed.offset import Version
from tailerd.clock import Clock
from tailerd.errors import BugError, NotATableError, UsageError
from tailerd.formats.kartothek.dataset import DatasetAddress, find_dataset, read_dataset
from tailerd.formats.kartothek.metadata import PARQUET
from tailerd.formats.kartothek.partition_files import FORMAT
from tailerd.formats.kartothek.state import ObservedState
from tailerd.formats.maintenance import (
    CLEANUP,
    AskFloor,
    Decision,
    JobResult,
    LogAssessment,
    MaintenancePolicies,
    RetentionFloor,
)
from tailerd.formats.one_process import PAUSED, SWITCHED_OFF, OneProcessMaintenance, nothing_deleted
from tailerd.formats.part_request import PartRequest
from tailerd.state.ledger import open_ledger
from tailerd.storage.base import FileMeta, ListsFolders, delete_all

_OWN_FOLDER = "_tailerd"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Retained:
    """States kept in ledgers: the files they reference, and their numbers."""

    paths: frozenset[str]
    numbers: frozenset[int]
    table_id: str


class _NoJobs(msgspec.Struct):
    """The format's own fields of the section `maintenance`: there are none."""


class DatasetMaintenance(OneProcessMaintenance):
    """Maintains one dataset; see `formats.maintenance.TableMaintenance`."""

    def __init__(
        self, request: PartRequest, policies: MaintenancePolicies, clock: Clock, floor: AskFloor
    ) -> None:
        super().__init__(request, policies, clock, floor)
        policies.jobs_as(_NoJobs, FORMAT)
        older = policies.cleanup.older_than_seconds or 0.0
        self._grace_seconds = max(GRACE_SECONDS, older)

    async def assessment(
        self, *, with_cleanup: bool = True, is_requested: bool = False
    ) -> LogAssessment:
        """Read the dataset and decide whether a garbage collection is due.

        Raises:
            NotATableError: There is no dataset.
            TableError, StorageError, OffsetError: It, or a ledger, cannot be read.
        """
        address = await self._address()
        retained = await self._read_retained(address)
        floor, garbage, obstacle = RetentionFloor(), None, "Garbage was not searched for."
        if with_cleanup:
            floor = await self._floor(retained.table_id)
            obstacle = floor.obstacle
            if self._is_paused():
                obstacle = PAUSED
            garbage = await self._garbage(address, retained)
        is_enabled = self._policies.cleanup.is_enabled
        decision = self._decision(garbage, obstacle, is_enabled=is_enabled)
        return LogAssessment(
            table_id=retained.table_id,
            version=max(retained.numbers, default=0),
            decisions=(decision,),
            floor=floor,
            has_expired=bool(is_enabled and garbage and garbage.files),
            payload=garbage,
        )

    def _decision(self, garbage: Garbage | None, obstacle: str, *, is_enabled: bool) -> Decision:
        if garbage is None:
            return Decision(job=CLEANUP, is_due=False, reason=obstacle)
        found = _sentence(garbage, self._grace_seconds)
        if not garbage.files:
            due_ms = garbage.next_ms if is_enabled else None
            return Decision(job=CLEANUP, is_due=False, reason=found, due_ms=due_ms)
        if not is_enabled or obstacle:
            why = obstacle or SWITCHED_OFF
            return Decision(job=CLEANUP, is_due=False, reason=f"{found} {why}")
        return Decision(
            job=CLEANUP,
            is_due=True,
            reason=found,
            cost=f"{len(garbage.files)} files are deleted.",
            saves=f"{garbage.size_bytes} bytes.",
        )

    async def apply(self, assessment: LogAssessment, decision: Decision) -> JobResult:
        """Delete the garbage that an assessment found, if it is still garbage.

        Raises:
            TableError, StorageError, OffsetError: It failed; only garbage was deleted before.
        """
        before = assessment.payload
        if decision.job != CLEANUP or not isinstance(before, Garbage):
            raise BugError(f"The job {decision.job} of a dataset was never planned.")
        address = await self._address()
        retained = await self._read_retained(address)
        floor = await self._floor(retained.table_id)
        now = await self._garbage(address, retained)
        agreed = {file.path for file in before.files} if not floor.obstacle else set()
        files = [file for file in now.files if file.path in agreed]
        await delete_all(self._location.store, [file.path for file in files])
        if not files:
            return nothing_deleted(assessment, floor.obstacle or "There is no garbage any more.")
        size = sum(file.size_bytes for file in files)
        return JobResult(
            job=CLEANUP,
            outcome="deleted",
            version=assessment.version,
            files=len(files),
            size_bytes=size,
            summary=f"{len(files)} files of {size} bytes were deleted.",
        )

    async def check_readable_from(self, version: Version, reader: str) -> None:
        """Raise `UsageError`: a dataset's version stays readable while a pipeline needs it.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            f"Version {version} cannot be pinned for {reader}: a Kartothek dataset keeps no"
            " versions, and a ledger only what its own pipeline has yet to deliver.",
            remedy="Set `maintenance.cleanup.older_than` to longer than readers take.",
        )

    async def _address(self) -> DatasetAddress:
        address = await find_dataset(self._location.store, self._location.root)
        if address is None:
            raise NotATableError(f"There is no dataset at {self._location.url}.")
        return address

    async def _read_retained(self, address: DatasetAddress) -> _Retained:
        """Return the files referenced by states of this dataset that pipelines keep."""
        paths: set[str] = set()
        numbers: set[int] = set()
        table_id = ""
        for requested in self._request.ledgers:
            ledger = open_ledger(requested, self._location.stores)
            for number in await ledger.numbers():
                entry = await ledger.load(number)
                state = None if entry is None else ObservedState.from_bytes(entry)
                if state is None or state.uuid != address.uuid:
                    # Deleted meanwhile, or the whole ledger is of another dataset.
                    continue
                paths.update(address.path(key) for key in state.keys)
                paths.update(address.path(key) for key in state.indices.values())
                numbers.add(number)
                table_id = state.table_id
        return _Retained(paths=frozenset(paths), numbers=frozenset(numbers), table_id=table_id)

    async def _garbage(self, address: DatasetAddress, retained: _Retained) -> Garbage:
        # Listed before the metadata is read: files added in between are new, or referenced by it.
        listed = [file async for file in self._list_below(address.path(address.uuid))]
        metadata = (await read_dataset(self._location.store, address)).metadata
        keys = [key for keys in metadata.files.values() for key in keys]
        named = {address.path(key) for key in (*keys, *metadata.indices.values())}
        return find_garbage(
            listed,
            named,
            retained.paths,
            now_ms=self._clock.now_ms(),
            grace_seconds=self._grace_seconds,
        )

    async def _list_below(self, folder: str) -> AsyncIterator[FileMeta]:
        """Yield the files below a folder; does not follow links, skips tailerd's own files."""
        left = [folder]
        while left:
            path = left.pop()
            async for file in self._location.store.list_from(path):
                yield file
            names = await self._folders(path)
            left += [f"{path}/{name}" for name in names if name != _OWN_FOLDER]

    async def _folders(self, path: str) -> list[str]:
        # Its own may be wrapped.
        store = self._location.stores.locate(self._location.url)[0]
        if store.is_local_folder:
            return await asyncio.to_thread(_local_folders, path)
        if isinstance(store, ListsFolders):
            return [name async for name in store.list_folders(path)]
        return []


def _local_folders(path: str) -> list[str]:
    with os.scandir(path) as entries:
        return sorted(each.name for each in entries if each.is_dir(follow_symlinks=False))


def _sentence(garbage: Garbage, grace_seconds: float) -> str:
    """Return the findings as a sentence."""
    hours = f"{grace_seconds / 3600:g} hours"
    found = [f"{len(garbage.files)} files of {garbage.size_bytes} bytes are garbage"]
    if garbage.waiting:
        found.append(f"{garbage.waiting} are named by nothing and not yet {hours} old")
    if garbage.retained_by_ledger:
        found.append(
            f"{garbage.retained_by_ledger} are kept for pipelines that have yet to read them"
        )
    first = ", ".join(file.name for file in garbage.files[:3])
    names = f" The first: {first}." if first else ""
    return f"{'; '.join(found)}.{names}"


GRACE_SECONDS = 86_400.0
"""Writers write data files before the metadata that references them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """Unreferenced files below a dataset's folder.

    Attributes:
        files: Files to delete: unreferenced and older than the grace period; by path.
        waiting: Number of unreferenced files that are younger.
        next_ms: When the first of these is old enough; None if there is none.
        retained_by_ledger: Number of files that only a ledger references.
    """

    files: tuple[FileMeta, ...]
    waiting: int
    next_ms: int | None
    retained_by_ledger: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the files to delete."""
        return sum(file.size_bytes for file in self.files)


def find_garbage(
    listed: Iterable[FileMeta],
    named: Collection[str],
    in_ledger: Collection[str],
    *,
    now_ms: int,
    grace_seconds: float,
) -> Garbage:
    """Return the unreferenced files below a dataset's folder.

    Args:
        listed: Files below the dataset's folder; those that are not data files are ignored.
        named: Paths that the current metadata references, including index files.
        in_ledger: Paths that a state in a ledger references.
        grace_seconds: Younger files stay.
    """
    files, waiting, retained = [], [], 0
    until_ms = now_ms - int(grace_seconds * 1000)
    for file in listed:
        if not file.name.endswith(PARQUET) or file.path in named:
            continue
        if file.path in in_ledger:
            retained += 1
        elif file.mtime_ms < until_ms:
            files.append(file)
        else:
            waiting.append(file.mtime_ms)
    next_ms = min(waiting) + int(grace_seconds * 1000) + 1 if waiting else None
    files.sort(key=lambda file: file.path)
    return Garbage(
        files=tuple(files), waiting=len(waiting), next_ms=next_ms, retained_by_ledger=retained
    )
