"""Changes as files in a folder: each row once, whatever crashes.

A delivery becomes `{version:020}-{phase}-{position:020}-{part:05}.jsonl`, named by its start, so
that names sort in delivery order. A file appears whole under its name. Files at or after the saved
offset were never covered by it: `resume` removes them and they are written again, so a reader sees
each row once; a reader that looks between a crash and the restart may see rows that are replaced
by the same rows. Where an operator set the offset back into the middle of a file, `resume` removes
the rows behind it from that file. A small file `.tailerd.json` says which table the folder belongs
to, and a folder `.tailerd` which process may write and what was published last (`file_owner.py`).
A gap is a file `....gap.json`, named by what follows it; files of a table that was replaced are set
aside in a folder `replaced-...`.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Self

import pyarrow as pa

from tailerd.changefeed.gap import Gap
from tailerd.changefeed.offset import Offset, Phase, Version
from tailerd.errors import BugError, ConfigError, SinkError
from tailerd.sinks.base import Delivery, RemoteDelivery
from tailerd.sinks.file.config import FileSinkConfig
from tailerd.sinks.file.cut import cut_rows
from tailerd.sinks.file.delivery_files import (
    NAME,
    DeliveryFiles,
    FilesWriter,
    Folder,
    prefix,
)
from tailerd.sinks.file.gaps import set_aside, write_gap_record
from tailerd.sinks.file.owner import FolderOwner
from tailerd.sinks.file.parts import close_durably, open_temporary
from tailerd.sinks.file.read_back import read_lines
from tailerd.sinks.resources import EncodeBatch, SinkResources
from tailerd.sinks.threads import in_thread
from tailerd.storage.posix_files import sync_folder

_MARKER = ".tailerd.json"
_GAP = "-00000.gap.json"
_FORMAT = 1
_ATTEMPT_BYTES = 4


class FileSink:
    """Writes deliveries of one table to one folder, exactly once."""

    def __init__(self, config: FileSinkConfig, *, encode: EncodeBatch, table: str = "NAME") -> None:
        self._folder = Path(config.path).absolute()
        self._owner = FolderOwner(self._folder, table=table)
        self._config = config
        self._place = Folder(path=self._folder, owner=self._owner, config=config, encode=encode)

    @classmethod
    def from_config(cls, config: FileSinkConfig, resources: SinkResources) -> Self:
        """Build the sink of a table."""
        return cls(config, encode=resources.encode, table=resources.table)

    @property
    def max_in_flight(self) -> int:
        """One: two deliveries at a time would not be faster on one disk."""
        return 1

    @property
    def offsets(self) -> None:
        """None: the daemon keeps them."""

    async def healthcheck(self) -> None:
        """Look whether the folder can be written or made; change nothing.

        Raises:
            SinkError: It cannot.
        """
        await asyncio.to_thread(self._probe)

    async def resume(self, offset: Offset) -> None:
        """Remove what was written at or after `offset`, and what a crash left half written.

        The first call claims the folder: what another process writes there fails from now on.

        Raises:
            ConfigError: The folder holds the changes of another table.
            OffsetError: The first call's offset is not where the folder's last delivery can be.
            SinkFencedError: Another process claimed the folder since.
            SinkError: The folder cannot be written.
        """
        await asyncio.to_thread(self._resume, offset)

    async def check_first_start(self) -> None:
        """Make sure that the folder has no changes yet.

        Raises:
            OffsetError: It has.
            SinkError: It cannot be read.
        """
        await asyncio.to_thread(self._check_first_start)

    async def accept(self, offset: Offset) -> None:
        """Let the next start go on at `offset`.

        Raises:
            SinkError: The folder cannot be written.
        """
        await in_thread(self._accept, offset)

    async def note_gap(self, gap: Gap) -> None:
        """Write a record of the gap; set files of another history aside.

        Raises:
            SinkError: The folder cannot be written.
        """
        await in_thread(self._note_gap, gap)

    async def write(self, delivery: Delivery) -> int:
        """Write all rows and make them durable; return their number. No rows: no file.

        Raises:
            SinkFencedError: Another process claimed the folder since.
            SinkError: The disk is full, the folder is gone or may not be written.
        """
        files = DeliveryFiles(self._place, delivery.start)
        try:
            await self._let_in(delivery.start, delivery.end)
            async for batch in delivery.batches:
                await in_thread(files.add, batch)
            await in_thread(files.finish)
            await in_thread(self._publish, delivery.start, delivery.end, files.paths)
        except BaseException as error:
            # Also when cancelled: what is left is only temporary files.
            await in_thread(files.discard)
            if isinstance(error, OSError | pa.ArrowException):
                raise self._place.unwritable(error) from error
            raise
        return files.rows

    async def write_remotely(self, delivery: RemoteDelivery) -> None:
        """Have the files written elsewhere, and give them their names here.

        What a failure leaves are temporary files, which the next owner of the folder removes.

        Raises:
            TailerdError: As of `write`, or of who writes.
        """
        try:
            await self._let_in(delivery.start, delivery.end)
            place = replace(self._place, attempt=secrets.token_hex(_ATTEMPT_BYTES))
            found = await delivery.run(FilesWriter(folder=place, start=delivery.start))
            if not isinstance(found, list):
                raise BugError(f"Files were written, and {found!r} is no list of them.")
            await in_thread(self._publish, delivery.start, delivery.end, found, place.attempt)
        except OSError as error:
            raise self._place.unwritable(error) from error

    async def _let_in(self, start: Offset, end: Offset) -> None:
        if end.table_id != start.table_id:
            # Before the offset is saved: whoever has it, is let in.
            await in_thread(self._claim_too, end.table_id)

    @property
    def value_format(self) -> str:
        """JSON lines are the records of the format `json`."""
        return "json"

    @property
    def has_decimal_numbers(self) -> bool:
        """Decimals are texts."""
        return False

    @property
    def empty_is_null(self) -> bool:
        """JSON tells them apart."""
        return False

    def read_back(self) -> AsyncGenerator[Sequence[bytes]]:
        """Give the lines of all files.

        Raises:
            SinkError: They cannot be read.
        """
        return read_lines(self._folder)

    async def aclose(self) -> None:
        """Do nothing: no file stays open between deliveries."""

    def _publish(
        self, start: Offset, end: Offset, paths: Sequence[Path], attempt: str = ""
    ) -> None:
        if not paths:
            return
        self._owner.record(start, end)
        for path in paths:
            self._owner.publish(path, attempt)
        sync_folder(self._folder)

    def _probe(self) -> None:
        place = self._folder
        while not place.exists():
            place = place.parent
        if not place.is_dir():
            raise SinkError(
                f"The sink folder {self._folder} cannot be made, because {place} is a file.",
                remedy="Give the sink another folder.",
            )
        if not os.access(place, os.W_OK | os.X_OK):
            raise self._place.unwritable(PermissionError(0, "this user may not write there"))

    def _resume(self, offset: Offset) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._check_table(offset.table_id)
            self._own(offset)
            self._owner.remove_unfinished()
            if not (self._folder / _MARKER).exists():
                self._write_marker([offset.table_id])
            kept: list[Path] = []
            # The last first: what is left at any moment has no hole.
            for path in sorted(self._folder.iterdir(), reverse=True):
                if _is_at_or_after(path.name, offset):
                    self._owner.check()
                    path.unlink()
                elif _is_own(path.name) and not path.name.endswith(_GAP):
                    kept.append(path)
            cut_rows(_last_delivery(kept), _cut_version(offset), self._owner)
            sync_folder(self._folder)
        except OSError as error:
            raise self._place.unwritable(error) from error

    def _own(self, offset: Offset) -> None:
        """Claim the folder for a pipeline that goes on at `offset`; later calls only check."""
        epoch = self._owner.epoch
        if epoch == 0:
            # Before the claim, which stops another owner: this one may be the one that is wrong.
            self._owner.agree(offset, self._newest_file())
        self._owner.hold()
        if epoch == 0:
            self._owner.remove_unfinished()
            # What was published until the claim counts too.
            self._owner.agree(offset, self._newest_file())
            self._owner.settle_reset(offset)

    def _check_first_start(self) -> None:
        try:
            self._owner.agree_to_begin(self._newest_file())
        except OSError as error:
            raise self._place.unwritable(error) from error

    def _accept(self, offset: Offset) -> None:
        try:
            self._owner.accept(offset)
        except OSError as error:
            raise self._place.unwritable(error) from error

    def _newest_file(self) -> Offset | None:
        """Return where the newest file of changes begins; None where there is none."""
        if not self._folder.exists():
            return None
        names = [path.name for path in self._folder.iterdir() if not path.name.endswith(_GAP)]
        newest = max(filter(_is_own, names), default=None)
        if newest is None:
            return None
        version, rank, position = map(int, newest.split("-")[:3])
        phase = Phase.FOLLOW if rank else Phase.SNAPSHOT
        return Offset(table_id="", version=Version(version), phase=phase, position=position)

    def _note_gap(self, gap: Gap) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._owner.hold()
            if gap.is_other_history:
                own = sorted(path for path in self._folder.iterdir() if _is_own(path.name))
                marker = self._folder / _MARKER
                # Last: until all is moved, the folder is the old table's.
                set_aside(self._folder, [*own, *([marker] if marker.exists() else [])], gap)
            record = self._folder / f"{prefix(gap.end)}{_GAP}"
            write_gap_record(record, gap, self._owner, self._config.file_mode())
            # Until the offset behind the gap is saved, a restart meets the gap again.
            self._owner.record(gap.start, gap.end)
        except OSError as error:
            raise self._place.unwritable(error) from error

    def _check_table(self, table_id: str) -> None:
        """Make sure that the folder is this table's: its file names would mix with another's."""
        if not (self._folder / _MARKER).exists():
            return
        owners = self._owners()
        if table_id not in owners:
            raise ConfigError(
                f"The folder {self._folder} holds changes of the table with id {owners[-1]}, not of"
                f" {table_id}: the table was recreated, or the folder belongs to another.",
                remedy="Give the sink another folder, or empty this one.",
            )

    def _claim_too(self, table_id: str) -> None:
        """Let the folder also be of the id that the table has since it was replaced."""
        self._folder.mkdir(parents=True, exist_ok=True)
        owners = self._owners() if (self._folder / _MARKER).exists() else []
        if table_id not in owners:
            self._write_marker([*owners, table_id])

    def _owners(self) -> list[str]:
        """Return the ids of the folder's table, one for each time it was replaced."""
        marker = self._folder / _MARKER
        try:
            fields = json.loads(marker.read_text())
            return [str(fields["table_id"]), *map(str, fields.get("replaced_by", []))]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(
                f"{marker} is damaged, so it is unknown whose changes {self._folder} holds.",
                remedy="Give the sink another folder, or empty this one.",
            ) from error

    def _write_marker(self, owners: list[str]) -> None:
        marker = self._folder / _MARKER
        first, *others = owners
        fields = {"format": _FORMAT, "table_id": first}
        content = {**fields, "replaced_by": others} if others else fields
        with open_temporary(self._owner.temporary(marker), self._config.file_mode()) as file:
            file.write(json.dumps(content).encode())
            close_durably(file)
        self._owner.publish(marker)


def _is_own(name: str) -> bool:
    return NAME.fullmatch(name) is not None


def _is_at_or_after(name: str, offset: Offset) -> bool:
    match = NAME.fullmatch(name)
    if match is None:
        return False
    order = tuple(map(int, match.groups()[:3]))
    # The record of a gap that ends at the offset tells what is missing before it.
    return order > offset.order or (order == offset.order and not name.endswith(_GAP))


def _last_delivery(descending: list[Path]) -> list[Path]:
    """Return the files of the delivery that may go on behind the offset: the last before it.

    A snapshot's rows have one version, and a snapshot that has begun lies before the offset.
    """
    if not descending:
        return []
    start = descending[0].name.rpartition("-")[0]
    if start.split("-")[1] == "0":
        return []
    return [*takewhile(lambda path: path.name.startswith(start), descending)][::-1]


def _cut_version(offset: Offset) -> int:
    """Return the first version whose rows do not stay in files that begin before the offset."""
    is_inside = offset.phase is Phase.FOLLOW and offset.position > 0
    # Inside a commit lies only where a delivery ended, and so a file.
    return offset.version + is_inside
