"""Changes as files in a folder: each row exactly once, even after crashes.

A delivery becomes `{version:020}-{phase}-{position:020}-{part:05}.jsonl`, named by its start, so
that names sort in delivery order; `.net.jsonl` if it is one difference over several commits. A
file appears atomically under its final name. Files at or after
the saved offset are not covered by it: `resume` removes them and they are written again, so a
reader sees each row once; between a crash and the restart, a reader may see rows that are later
replaced by the same rows. If an operator set the offset back into the middle of a file, `resume`
removes the rows after it from that file. The file `.tailerd.json` names the table of the folder,
and the folder `.tailerd` records the owning process and the last delivery (`owner.py`). A gap is a
file `....gap.json`, and a change of the columns a file `_....schema.json`: named by what follows
it. The latter is removed with its rows, and readers of a whole folder of Parquet files leave files
with `_` out. Files of a replaced table are moved to a folder `replaced-...`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Self

import pyarrow as pa

from tailerd.changefeed.gap import Gap
from tailerd.changefeed.offset import Offset, Phase, Version
from tailerd.errors import BugError, ConfigError, SinkError
from tailerd.sinks.base import Delivery, RemoteDelivery
from tailerd.sinks.file.config import FileSinkConfig
from tailerd.sinks.file.cut import check_cut, cut_rows
from tailerd.sinks.file.delivery_files import (
    NAME,
    DeliveryFiles,
    FilesWriter,
    Folder,
    prefix,
)
from tailerd.sinks.file.owner import FolderOwner
from tailerd.sinks.file.parts import close_durably, open_temporary
from tailerd.sinks.resources import EncodeBatch, SinkResources
from tailerd.storage.posix_files import sync_folder
from tailerd.threads import in_thread

_MARKER = ".tailerd.json"
_GAP = "-00000.gap.json"
_SCHEMA = ".schema.json"
_FORMAT = 1
_ATTEMPT_BYTES = 4


class FileSink:
    """Writes deliveries of one table to one folder, exactly once."""

    def __init__(self, config: FileSinkConfig, *, encode: EncodeBatch, table: str = "NAME") -> None:
        self._folder = Path(config.path).absolute()
        self._owner = FolderOwner(self._folder, table=table)
        self._config = config
        self._location = Folder(path=self._folder, owner=self._owner, config=config, encode=encode)

    @classmethod
    def from_config(cls, config: FileSinkConfig, resources: SinkResources) -> Self:
        """Build the sink of a table."""
        return cls(config, encode=resources.encode, table=resources.table)

    @property
    def max_in_flight(self) -> int:
        """One: concurrent deliveries would not be faster on one disk."""
        return 1

    @property
    def offsets(self) -> None:
        """None: the daemon stores them."""

    async def healthcheck(self) -> None:
        """Check whether the folder can be written or created; change nothing.

        Raises:
            SinkError: It cannot.
        """
        await asyncio.to_thread(self._probe)

    async def resume(self, offset: Offset) -> None:
        """Remove rows at or after `offset`, and temporary files left by a crash.

        The first call claims the folder: writes of other processes fail from now on.

        Raises:
            ConfigError: The folder contains the changes of another table.
            OffsetError: The first call's offset is inconsistent with the folder's last delivery.
            SinkFencedError: Another process has claimed the folder since.
            SinkError: The folder cannot be written.
        """
        await in_thread(self._resume, offset)

    async def check_first_start(self) -> None:
        """Check that the folder has no changes yet.

        Raises:
            OffsetError: It has changes.
            SinkError: It cannot be read.
        """
        await asyncio.to_thread(self._check_first_start)

    async def find_delivered(self, saved: Offset | None) -> Offset | None:
        """Return the offset after the folder's last delivery, or `saved` if it is as far.

        Raises:
            SinkError: The folder cannot be read.
        """
        return await asyncio.to_thread(self._find_delivered, saved)

    async def accept(self, offset: Offset) -> None:
        """Allow the next start to resume at `offset`.

        Raises:
            OffsetError: It is inside a difference over several commits.
            SinkError: The folder cannot be written.
        """
        await in_thread(self._accept, offset)

    async def note_gap(self, gap: Gap) -> None:
        """Write a record of the gap; move files of another history aside.

        Raises:
            SinkError: The folder cannot be written.
        """
        await in_thread(self._note_gap, gap)

    async def write(self, delivery: Delivery) -> int:
        """Write all rows durably; return their number. Without rows, no file is created.

        Raises:
            SinkFencedError: Another process has claimed the folder since.
            SinkError: The disk is full, or the folder is missing or not writable.
        """
        files = DeliveryFiles(replace(self._location, is_net=delivery.is_net), delivery.start)
        try:
            await self._accept_new_table_id(delivery.start, delivery.end)
            async for batch in delivery.batches:
                await in_thread(files.add, batch)
            await in_thread(files.finish)
            records = await in_thread(self._write_schemas, delivery)
            await in_thread(self._publish, delivery, [*records, *files.paths])
        except BaseException as error:
            # Also when cancelled: only temporary files remain.
            await in_thread(files.discard)
            if isinstance(error, OSError | pa.ArrowException):
                raise self._location.unwritable(error) from error
            raise
        return files.rows

    async def write_remotely(self, delivery: RemoteDelivery) -> None:
        """Have another process write the files, and rename them here.

        A failure leaves temporary files, which the next owner of the folder removes.

        Raises:
            TailerdError: As `write`, or the error of the writing process.
        """
        try:
            await self._accept_new_table_id(delivery.start, delivery.end)
            attempt = secrets.token_hex(_ATTEMPT_BYTES)
            location = replace(self._location, is_net=delivery.is_net, attempt=attempt)
            found = await delivery.run(FilesWriter(folder=location, start=delivery.start))
            if not isinstance(found, list):
                raise BugError(f"Files were written, and {found!r} is not a list of them.")
            records = await in_thread(self._write_schemas, delivery, attempt)
            await in_thread(self._publish, delivery, [*records, *found], attempt)
        except OSError as error:
            raise self._location.unwritable(error) from error

    async def _accept_new_table_id(self, start: Offset, end: Offset) -> None:
        if end.table_id != start.table_id:
            # Before the offset is saved, so that a start with that offset is accepted.
            await in_thread(self._claim_too, end.table_id)

    @property
    def value_format(self) -> str:
        """`json`: each line is a record of that format."""
        return "json"

    @property
    def has_decimal_numbers(self) -> bool:
        """False: decimals are strings."""
        return False

    @property
    def empty_is_null(self) -> bool:
        """False: JSON distinguishes them."""
        return False

    def read_back(self) -> AsyncGenerator[Sequence[bytes]]:
        """Yield the lines of all files.

        Raises:
            SinkError: They cannot be read.
        """
        return read_lines(self._folder)

    async def aclose(self) -> None:
        """Do nothing: no file stays open between deliveries."""

    def _write_schemas(self, delivery: Delivery | RemoteDelivery, attempt: str = "") -> list[Path]:
        """Write a record of each change of the columns; return their final paths."""
        start, paths = delivery.start, list[Path]()
        while delivery.schema_changes:
            change, at = delivery.schema_changes.popleft(), start
            if change.version > start.version:
                at = Offset(table_id="", version=change.version)
            name = f"_{prefix(at)}-"
            number = sum(path.name.startswith(name) for path in paths)
            path = self._folder / f"{name}{number:05d}{_SCHEMA}"
            content = {"table": delivery.table, **change.to_json()}
            write_record(self._owner.temporary(path, attempt), content, self._config.file_mode())
            paths.append(path)
        return paths

    def _publish(
        self, delivery: Delivery | RemoteDelivery, paths: Sequence[Path], attempt: str = ""
    ) -> None:
        if not paths:
            return
        self._owner.record(delivery.start, delivery.end)
        for path in paths:
            self._owner.publish(path, attempt)
        sync_folder(self._folder)

    def _probe(self) -> None:
        location = self._folder
        while not location.exists():
            location = location.parent
        if not location.is_dir():
            raise SinkError(
                f"The sink folder {self._folder} cannot be made, because {location} is a file.",
                remedy="Give the sink another folder.",
            )
        if not os.access(location, os.W_OK | os.X_OK):
            raise self._location.unwritable(PermissionError(0, "this user may not write there"))

    def _resume(self, offset: Offset) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._check_table(offset.table_id)
            self._own(offset)
            self._owner.remove_unfinished()
            if not (self._folder / _MARKER).exists():
                self._write_marker([offset.table_id])
            last = self._last_delivery(offset)
            # Before anything is removed: it may have to stay.
            check_cut(last, _cut_version(offset))
            # The last first: the remaining files never have a gap.
            for path in sorted(self._folder.iterdir(), reverse=True):
                if _is_at_or_after(path.name, offset):
                    self._owner.check()
                    path.unlink()
            cut_rows(last, _cut_version(offset), self._owner)
            sync_folder(self._folder)
            # Only now: until here an interrupted reset must be repeated by the next start.
            self._owner.settle_reset(offset)
        except OSError as error:
            raise self._location.unwritable(error) from error

    def _own(self, offset: Offset) -> None:
        """Claim the folder for a pipeline that resumes at `offset`; later calls only check."""
        epoch = self._owner.epoch
        if epoch == 0:
            # Before the claim, which stops another owner: this process may have the wrong state.
            self._owner.agree(offset, self._newest_file())
        self._owner.ensure_owned()
        if epoch == 0:
            self._owner.remove_unfinished()
            # Again, for files published until the claim.
            self._owner.agree(offset, self._newest_file())

    def _check_first_start(self) -> None:
        try:
            self._owner.agree_to_begin(self._newest_file())
        except OSError as error:
            raise self._location.unwritable(error) from error

    def _find_delivered(self, saved: Offset | None) -> Offset | None:
        try:
            published = self._owner.read_published(self._newest_file())
        except OSError as error:
            raise self._location.unwritable(error) from error
        if published is None or (saved is not None and published.agrees_with(saved)):
            return saved
        return published.end if published.end.table_id else saved

    def _accept(self, offset: Offset) -> None:
        try:
            if self._folder.exists():
                check_cut(self._last_delivery(offset), _cut_version(offset))
                self._owner.accept(offset)
        except OSError as error:
            raise self._location.unwritable(error) from error

    def _last_delivery(self, offset: Offset) -> list[Path]:
        """Return the files of the last delivery before `offset`, which may extend beyond it."""
        names = [path.name for path in self._folder.iterdir() if _is_own(path.name)]
        before = [n for n in names if not _is_note(n) and not _is_at_or_after(n, offset)]
        start = _parse_prefix(max(before, default=""))
        return [self._folder / name for name in sorted(before) if _parse_prefix(name) == start]

    def _newest_file(self) -> Offset | None:
        """Return the start offset of the newest file of changes; None if there is none."""
        if not self._folder.exists():
            return None
        names = [path.name for path in self._folder.iterdir() if not _is_note(path.name)]
        newest = max(filter(_is_own, names), default=None)
        if newest is None:
            return None
        version, rank, position = map(int, newest.split("-")[:3])
        phase = Phase.FOLLOW if rank else Phase.SNAPSHOT
        return Offset(table_id="", version=Version(version), phase=phase, position=position)

    def _note_gap(self, gap: Gap) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._owner.ensure_owned()
            if gap.is_other_history:
                own = sorted(path for path in self._folder.iterdir() if _is_own(path.name))
                marker = self._folder / _MARKER
                # The marker last: until all is moved, the folder belongs to the old table.
                set_aside(self._folder, [*own, *([marker] if marker.exists() else [])], gap)
            record = self._folder / f"{prefix(gap.end)}{_GAP}"
            write_gap_record(record, gap, self._owner, self._config.file_mode())
            # Until the offset after the gap is saved, a restart encounters the gap again.
            self._owner.record(gap.start, gap.end)
        except OSError as error:
            raise self._location.unwritable(error) from error

    def _check_table(self, table_id: str) -> None:
        """Check that the folder belongs to this table: file names of two tables would mix."""
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
        """Add the id that the table has since it was replaced to the folder's marker."""
        self._folder.mkdir(parents=True, exist_ok=True)
        owners = self._owners() if (self._folder / _MARKER).exists() else []
        if table_id not in owners:
            self._write_marker([*owners, table_id])

    def _owners(self) -> list[str]:
        """Return the ids of the folder's table: the first, and one for each replacement."""
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


def _is_note(name: str) -> bool:
    return name.endswith((_GAP, _SCHEMA))


def _is_at_or_after(name: str, offset: Offset) -> bool:
    match = NAME.fullmatch(name)
    if match is None:
        return False
    order = tuple(map(int, match.groups()[:3]))
    if name.endswith(_GAP):
        # A gap's record that ends at the offset describes what is missing before it, so it stays.
        return order > offset.order
    # The snapshot of a version includes its commit.
    is_of_commit = offset.is_commit_start and order[:2] == (offset.version, 0)
    return is_of_commit or order >= offset.order


def _parse_prefix(name: str) -> str:
    """Return the part of a file's name that all files of its delivery share."""
    return name.rpartition("-")[0]


def _cut_version(offset: Offset) -> int:
    """Return the first version whose rows are removed from files that start before the offset."""
    # An offset inside a commit or a snapshot is always the end of a delivery, and so of a file.
    return offset.version + (offset.position > 0)


def write_gap_record(path: Path, gap: Gap, owner: FolderOwner, mode: int | None = None) -> None:
    """Write a durable record of the versions missing before the next files; raises `OSError`."""
    content = {
        "table": gap.table,
        "reason": gap.reason,
        "from": json.loads(gap.start.to_json()),
        "to": json.loads(gap.end.to_json()),
    }
    write_record(owner.temporary(path), content, mode)
    owner.publish(path)
    sync_folder(path.parent)


def write_record(temporary: Path, content: Mapping[str, object], mode: int | None) -> None:
    """Write a durable file with a JSON object; raises `OSError`."""
    with open_temporary(temporary, mode) as file:
        file.write(json.dumps(content, indent=2).encode() + b"\n")
        close_durably(file)


def set_aside(folder: Path, files: Iterable[Path], gap: Gap) -> None:
    """Move files of another history into a separate folder; a repeated call continues.

    Raises `OSError`. Files are moved in the given order.
    """
    start = gap.start
    digest = hashlib.sha256(start.table_id.encode()).hexdigest()[:8]
    aside = folder / f"replaced-{start.version:020d}-{start.position:020d}-{digest}"
    aside.mkdir(exist_ok=True)
    for path in files:
        target, number = aside / path.name, 1
        while target.exists():
            # The same history was replaced before at the same offset; nothing is overwritten.
            number += 1
            target = aside / f"{path.name}.{number}"
        path.rename(target)
    sync_folder(aside)
    sync_folder(folder)


CHUNK_BYTES = 1 << 20


async def read_lines(folder: Path) -> AsyncGenerator[Sequence[bytes]]:
    """Yield the lines of all JSON-lines files of a folder, in the order of the file names.

    Raises:
        SinkError: The folder or a file cannot be read, or there are Parquet files.
    """
    try:
        for path in await asyncio.to_thread(_files, folder):
            with path.open("rb") as file:
                while lines := await asyncio.to_thread(_next_lines, file):
                    yield lines
    except OSError as error:
        raise SinkError(f"The sink folder {folder} cannot be read: {error.strerror}.") from error


def _files(folder: Path) -> list[Path]:
    files = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    if any(path.suffix == ".parquet" for path in files):
        raise SinkError(
            f"The sink folder {folder} holds Parquet files, and only JSON lines can be read back.",
            remedy="Query them with any Parquet reader.",
        )
    return [path for path in files if path.suffix == ".jsonl"]


def _next_lines(file: BinaryIO) -> list[bytes]:
    return file.readlines(CHUNK_BYTES)
