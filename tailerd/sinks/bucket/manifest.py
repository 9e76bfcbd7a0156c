"""The manifest of a sink's folder: a numbered entry for each step, put if absent.

An entry has the files and the saved offset of one delivery, so readers of the manifest see whole
deliveries. Its number follows that of the entry that its writer knew: after another process has
added one, the writer cannot add any more. An intent, put before the first file of a delivery, fixes
its end and its layout, so a process that repeats it writes the same rows under the same names.

    _tailerd/00000000000000000007.json          an entry
    _tailerd/000001-<start>.intent              the plan of a delivery into epoch=1
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import msgspec
from msgspec import Raw, Struct

from tailerd.changefeed.offset import Offset, Phase
from tailerd.changefeed.saved_offset import SavedOffset
from tailerd.errors import (
    FileExistsAlreadyError,
    FileMissingError,
    OffsetError,
    SinkFencedError,
)
from tailerd.sinks.bucket.delivery_files import DataFile, Layout, Target

FOLDER = "_tailerd"
_FORMAT = 1
_EMPTY = Raw(b"null")
S = TypeVar("S", bound=Struct)


class Entry(Struct, frozen=True, kw_only=True):
    """One step.

    Attributes:
        format: Of the entry.
        number: 1, 2, 3, ...
        kind: `start` of a process, `offset` that was saved without rows, `delivery` or `gap`.
        owner: Random id of the process that wrote it.
        epoch: Files of later deliveries are in the folder `epoch=<epoch>`.
        start, end: Offsets before and after a delivery or a gap; of other entries, `end` is the
            present one, and null before the first.
        rows, files: Of a delivery.
        is_net: Its rows are one difference over several commits.
        schema_changes: Changes of the columns within or before its rows.
        reason: Code of the error that caused a gap.
        saved: The state of the pipeline after the entry; null before the first offset.
    """

    number: int
    kind: Literal["start", "offset", "delivery", "gap"]
    owner: str
    epoch: int
    end: Raw = _EMPTY
    start: Raw = _EMPTY
    rows: int = 0
    files: list[DataFile] = []
    is_net: bool = False
    schema_changes: list[dict[str, object]] = []
    reason: str = ""
    saved: Raw = _EMPTY
    format: int = _FORMAT

    @property
    def begin(self) -> Offset | None:
        """Return `start`; None for an entry without one."""
        return _offset(self.start)

    @property
    def offset(self) -> Offset | None:
        """Return the offset after the entry; None before the first."""
        return _offset(self.end)


class Intent(Struct, frozen=True, kw_only=True):
    """The plan of a delivery.

    Attributes:
        end: The offset at which it ends.
        layout: How its rows become files.
        rows: Digest of the view and the change mode, which decide about the rows.
        epoch: Number of the start of the pipeline that put it.
        format: Of the intent.
    """

    end: Raw
    layout: Layout
    rows: str
    epoch: int
    format: int = _FORMAT

    @property
    def offset(self) -> Offset:
        """Return `end`."""
        return Offset.from_json(bytes(self.end).decode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The content of a new entry, without its number, owner and format."""

    kind: Literal["start", "offset", "delivery", "gap"]
    end: Offset | None
    epoch: int
    start: Offset | None = None
    rows: int = 0
    files: Sequence[DataFile] = ()
    is_net: bool = False
    schema_changes: Sequence[dict[str, object]] = ()
    reason: str = ""
    saved: SavedOffset | None = None


class Manifest:
    """Reads and adds entries; at most one process can add them.

    Errors: `StorageError`, and `OffsetError` for a damaged entry.
    """

    def __init__(self, target: Target) -> None:
        """Initialize; sends no request."""
        self._target = target
        self._owner = secrets.token_hex(8)
        self._newest: Entry | None = None
        self._is_known = False

    @property
    def is_ours(self) -> bool:
        """Whether this process added the newest entry that it knows."""
        return self._newest is not None and self._newest.owner == self._owner

    async def newest(self) -> Entry | None:
        """Return the newest entry that this process knows; reads it the first time."""
        return self._newest if self._is_known else await self.refresh()

    async def refresh(self) -> Entry | None:
        """Read the newest entry: numbers have no gaps, so few requests find the last of many."""
        low = 0 if self._newest is None else self._newest.number
        step = 1
        while await self._exists(low + step):
            low, step = low + step, step * 2
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if await self._exists(middle) else (low, middle)
        if low and (self._newest is None or self._newest.number != low):
            self._newest = await self.read(low)
        self._is_known = True
        return self._newest

    async def read(self, number: int) -> Entry:
        """Read one entry."""
        path = self._path(number)
        return self._decode(await self._target.store.get(path), path, Entry)

    async def read_many(self, first: int, end: int) -> list[Entry]:
        """Read the entries from `first` until `end`."""
        paths = [self._path(number) for number in range(first, end)]
        found = await self._target.store.get_many(paths)
        return [self._decode(data, path, Entry) for data, path in zip(found, paths, strict=True)]

    async def add(self, step: Step) -> None:
        """Add an entry after the newest one that this process knows.

        Raises:
            SinkFencedError: Another process has added one.
        """
        before = await self.newest()
        entry = Entry(
            number=before.number + 1 if before else 1,
            kind=step.kind,
            owner=self._owner,
            epoch=step.epoch,
            end=_raw(step.end),
            start=_raw(step.start),
            rows=step.rows,
            files=list(step.files),
            is_net=step.is_net,
            schema_changes=list(step.schema_changes),
            reason=step.reason,
            saved=_raw(step.saved) if step.saved else before.saved if before else _EMPTY,
        )
        try:
            await self._put(self._path(entry.number), msgspec.json.encode(entry))
        except FileExistsAlreadyError as error:
            # Its answer may have been lost.
            if await self.read(entry.number) != entry:
                raise self.fenced_error() from error
        self._newest = entry

    async def require_ownership(self) -> None:
        """Check that no other process has added an entry.

        Raises:
            SinkFencedError: One has.
        """
        if not self.is_ours or await self._exists(self._newest.number + 1 if self._newest else 1):
            raise self.fenced_error()

    def fenced_error(self) -> SinkFencedError:
        """Return the error for a process that another one has replaced."""
        folder = self._target.store.format_url(self._target.root)
        return SinkFencedError(
            f"Another process has taken over {folder}, so this one cannot deliver there any more.",
            remedy="Run one daemon for a table and folder, and give each table another folder.",
        )

    async def load_intent(self, epoch: int, start: Offset) -> Intent | None:
        """Return the intent of the delivery that begins at `start`; None if there is none."""
        path = self._intent_path(epoch, start)
        try:
            return self._decode(await self._target.store.get(path), path, Intent)
        except FileMissingError:
            return None

    async def put_intent(self, epoch: int, start: Offset, intent: Intent) -> Intent:
        """Put an intent, and return it, or the one that was there before."""
        try:
            await self._put(self._intent_path(epoch, start), msgspec.json.encode(intent))
        except FileExistsAlreadyError:
            found = await self.load_intent(epoch, start)
            assert found is not None
            return found
        return intent

    async def _put(self, path: str, data: bytes) -> None:
        await self._target.store.put(path, data, if_absent=self._target.is_conditional)

    async def _exists(self, number: int) -> bool:
        try:
            await self._target.store.head(self._path(number))
        except FileMissingError:
            return False
        return True

    def _path(self, number: int) -> str:
        return f"{self._target.root}/{FOLDER}/{number:020d}.json"

    def _intent_path(self, epoch: int, start: Offset) -> str:
        return f"{self._target.root}/{FOLDER}/{epoch:06d}-{offset_name(start)}.intent"

    def _decode(self, data: bytes, path: str, kind: type[S]) -> S:
        url = self._target.store.format_url(path)
        remedy = "Run the release that wrote it, or give the sink another folder."
        try:
            found = msgspec.json.decode(data, type=kind)
        except msgspec.MsgspecError as error:
            raise OffsetError(f"{url} cannot be read: {error}.", remedy=remedy) from error
        if (version := getattr(found, "format", _FORMAT)) != _FORMAT:
            raise OffsetError(
                f"{url} has format {version}, and this release reads {_FORMAT}.", remedy=remedy
            )
        return found


def offset_name(offset: Offset) -> str:
    """Return an offset as a part of names, which sort as offsets do."""
    rank = 0 if offset.phase is Phase.SNAPSHOT else 1
    return f"{offset.version:020d}-{rank}-{offset.position:020d}"


def continues(before: Offset | None, start: Offset) -> bool:
    """Return whether rows from `start` on may follow those before an offset in one folder.

    They may not if they come again: after a reset, in a new snapshot, or of another table.
    """
    if before is None or is_same(before, start):
        return True
    is_new_snapshot = start.phase is Phase.SNAPSHOT and (
        before.phase is not Phase.SNAPSHOT or before.version != start.version
    )
    return start.table_id == before.table_id and before.is_before(start) and not is_new_snapshot


def is_same(one: Offset, other: Offset) -> bool:
    """Return whether two offsets are the same point of a table; marks may differ."""
    return one.table_id == other.table_id and one.order == other.order


def _offset(value: Raw) -> Offset | None:
    return None if bytes(value) == b"null" else Offset.from_json(bytes(value).decode())


def _raw(value: Offset | SavedOffset | None) -> Raw:
    return _EMPTY if value is None else Raw(value.to_json().encode())
