"""The process that owns a sink's folder, and the offsets that the folder already contains.

A start claims the folder: it creates `.tailerd/owner-<epoch>` exclusively, with the highest epoch,
and removes the lower ones. The last claim wins. An older owner cannot publish any more: each file
is written under a temporary name with its owner's epoch, then the claim is checked, then the file
is renamed. A new owner claims first, then removes all temporary files, then lists the folder. So it
sees the files published before. A file that an older owner would publish later either has had its
temporary file removed, or was started after the claim, and then the check fails.

`.tailerd/published.json` has the start and end offsets of the last delivery, written before its
files are renamed. A saved offset agrees with it if it is

    A  the delivery's start   -> stopped before the offset was saved: delivered again
    B  its end, or after it   -> saved; commits without rows leave no file
    C  the offset an operator reset the pipeline to (`.tailerd/reset.json`)

Otherwise it is from another owner's state, or from an old copy. The record need not survive a power
failure: without it, the file names show where the last delivery started.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from tailerd.changefeed.offset import Offset, Phase
from tailerd.errors import OffsetError, SinkFencedError
from tailerd.remedies import CONFIG_FILE
from tailerd.storage.posix_files import sync_folder

TEMPORARY = ".tmp"

_FOLDER = ".tailerd"
_PUBLISHED = "published.json"
_RESET = "reset.json"
_OWNER = re.compile(r"owner-(\d{10})")
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The offsets of the last delivery in a folder, as far as known.

    Attributes:
        start: Its start.
        end: Its end; the same as its start if only file names are left.
    """

    start: Offset
    end: Offset

    def agrees_with(self, saved: Offset) -> bool:
        """Return whether a saved offset can belong to this delivery's pipeline (cases A and B)."""
        return saved.order == self.start.order or saved.order >= self.end.order

    @property
    def reach(self) -> str:
        """Up to which version the folder has rows, as text."""
        is_whole = self.end.is_commit_start and self.end.version > self.start.version
        return f"{'before' if is_whole else 'up to'} version {self.end.version}"


class FolderOwner:
    """One process's claim on a sink's folder. Blocking; may raise `OSError`.

    Attributes:
        epoch: Number of this claim, from 1; 0 before the first.
    """

    def __init__(self, folder: Path, *, table: str) -> None:
        """Initialize without a claim; `table` is the configured name, for messages."""
        self.epoch = 0
        self._folder = folder
        self._location = folder / _FOLDER
        self._table = table
        self._id = secrets.token_hex(8)

    @property
    def token(self) -> str:
        """The token with which another process of this owner calls `check_token`."""
        return f"{self.epoch}-{self._id}-{self._table}"

    def ensure_owned(self) -> None:
        """Claim the folder, or check that the claim is still valid.

        Raises:
            SinkFencedError: Another process has claimed it since.
        """
        if self.epoch:
            # The folder may have been emptied; then it is claimed again.
            with contextlib.suppress(FileNotFoundError):
                self.check()
                return
        self.claim()

    def claim(self) -> None:
        """Become the owner, under the next epoch; durable when this returns."""
        self._location.mkdir(parents=True, exist_ok=True)
        while True:
            epoch = 1 + max((self.epoch, *self._epochs()))
            try:
                self._create(epoch)
            except FileExistsError:
                continue
            # The listing may have been stale. A higher epoch is never removed before one above it
            # exists, so a second listing shows it.
            if epoch == max(self._epochs(), default=epoch):
                break
            self._owner_file(epoch).unlink(missing_ok=True)
        self.epoch = epoch
        for other in self._epochs():
            if other < epoch:
                self._owner_file(other).unlink(missing_ok=True)
        sync_folder(self._location)
        sync_folder(self._folder)

    def check(self) -> None:
        """Check that no other process has claimed the folder since.

        Raises:
            SinkFencedError: Another process has.
            FileNotFoundError: The claim was removed, and there is no other.
        """
        if self._build_record(self.epoch).get("owner") == self._id:
            return
        newest = max(self._epochs(), default=0)
        if newest < self.epoch:
            raise FileNotFoundError(
                errno.ENOENT, "the record of its writer was removed", str(self._location)
            )
        own = f"process {os.getpid()} on {socket.gethostname()}"
        raise SinkFencedError(
            f"Another daemon took over the sink folder {self._folder}: {self._who(newest)}, which"
            f" started later than this one ({own}).",
            remedy="Stop one of the two, or give each its own folder and its own `state`; to let"
            f" this one take over, run `tailerd resume {self._table}`.",
        )

    def temporary(self, path: Path, attempt: str = "") -> Path:
        """Return a file's name until it is complete; hidden, and unique to this owner.

        Args:
            attempt: Distinguishes concurrent writers of this owner; empty if there is only one.
        """
        whose = f"{self.epoch}-{attempt}" if attempt else f"{self.epoch}"
        return path.with_name(f".{path.name}.{whose}{TEMPORARY}")

    def publish(self, path: Path, attempt: str = "") -> None:
        """Rename a finished file to its final name, replacing an existing one.

        Args:
            path: The final name.
            attempt: The one in its temporary name.

        Raises:
            SinkFencedError: Another process has claimed the folder.
        """
        self.check()
        try:
            self.temporary(path, attempt).replace(path)
        except FileNotFoundError:
            # A new owner removes the previous owner's temporary files.
            self.check()
            raise

    def remove_unfinished(self) -> None:
        """Remove the temporary files of all owners; called right after a claim."""
        for folder in (self._folder, self._location):
            for path in folder.iterdir():
                if path.name.startswith(".") and path.name.endswith(TEMPORARY):
                    path.unlink(missing_ok=True)

    def record(self, start: Offset, end: Offset) -> None:
        """Record the offsets of a delivery, before its files are renamed.

        Raises:
            SinkFencedError: Another process has claimed the folder.
        """
        path = self._location / _PUBLISHED
        fields = {name: json.loads(o.to_json()) for name, o in (("start", start), ("end", end))}
        self.temporary(path).write_text(json.dumps({"format": _FORMAT, **fields}))
        self.publish(path)

    def agree(self, saved: Offset, newest_file: Offset | None) -> None:
        """Check that a saved offset is consistent with the folder's content.

        Args:
            saved: The offset where the pipeline would resume.
            newest_file: The start offset of the newest file in the folder.

        Raises:
            OffsetError: It is from another owner, or from an old copy of the state.
        """
        published = self.read_published(newest_file)
        if published is None or published.agrees_with(saved) or self._is_reset_to(saved):
            return
        raise OffsetError(
            f"The saved offset of {self._table} says that version {saved.version} comes next, but"
            f" the sink folder {self._folder} has changes {published.reach}: the"
            " state was restored from an older copy, or another daemon delivers into this folder"
            " with a copy of it.",
            remedy=self._way_out(published),
        )

    def agree_to_begin(self, newest_file: Offset | None) -> None:
        """Check that nothing was delivered into the folder yet.

        Raises:
            OffsetError: Something was delivered.
        """
        published = self.read_published(newest_file)
        if published is None:
            return
        raise OffsetError(
            f"No offset is saved for {self._table}, but the sink folder {self._folder} has changes"
            f" {published.reach}: the state was lost, or the folder belongs to"
            " another pipeline.",
            remedy=self._way_out(published),
        )

    def accept(self, offset: Offset) -> None:
        """Allow a pipeline to resume at an operator's `offset`; the folder exists."""
        self._location.mkdir(exist_ok=True)
        temporary = self._location / f".{_RESET}.{self._id}{TEMPORARY}"
        temporary.write_text(offset.to_json())
        temporary.replace(self._location / _RESET)

    def settle_reset(self, saved: Offset) -> None:
        """Record an accepted offset as published and delete it; called once the claim is held."""
        if self._is_reset_to(saved):
            self.record(saved, saved)
        (self._location / _RESET).unlink(missing_ok=True)

    def read_published(self, newest_file: Offset | None) -> Published | None:
        """Return the offsets of the last delivery; None if there was none."""
        try:
            fields = json.loads((self._location / _PUBLISHED).read_text())
            start, end = (Offset.from_json(json.dumps(fields[name])) for name in ("start", "end"))
        except (FileNotFoundError, ValueError, KeyError, TypeError, OffsetError):
            # Lost in a power failure.
            return None if newest_file is None else Published(start=newest_file, end=newest_file)
        return Published(start=start, end=end)

    def _is_reset_to(self, saved: Offset) -> bool:
        try:
            return Offset.from_json((self._location / _RESET).read_text()).order == saved.order
        except (FileNotFoundError, ValueError, OffsetError):
            return False

    def _way_out(self, published: Published) -> str:
        end = published.end
        reset, config = f"`tailerd offsets reset {self._table} --to", f"--config {CONFIG_FILE}`"
        if end.phase is Phase.SNAPSHOT:
            way = f"or empty the folder and run {reset} snapshot {config}"
        else:
            way = f"or run {reset} {end.version} {config} to resume where the folder ends"
        return f"Start with the state that was used last, {way}, or give the sink another folder."

    def _epochs(self) -> list[int]:
        try:
            names = [path.name for path in self._location.iterdir()]
        except FileNotFoundError:
            return []
        return [int(match[1]) for match in map(_OWNER.fullmatch, names) if match]

    def _create(self, epoch: int) -> None:
        fields = {"owner": self._id, "host": socket.gethostname(), "pid": os.getpid()}
        path = self._owner_file(epoch)
        with path.open("x", encoding="utf-8") as file:
            try:
                file.write(json.dumps({"format": _FORMAT, **fields}))
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                path.unlink(missing_ok=True)
                raise

    def _owner_file(self, epoch: int) -> Path:
        return self._location / f"owner-{epoch:010}"

    def _build_record(self, epoch: int) -> dict[str, object]:
        try:
            # Opened, not only checked for existence: a network file system then asks its server.
            fields = json.loads(self._owner_file(epoch).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return fields if isinstance(fields, dict) else {}

    def _who(self, epoch: int) -> str:
        reported = self._build_record(epoch)
        return (
            f"process {reported.get('pid', 'unknown')} on {reported.get('host', 'another machine')}"
        )


def check_token(folder: Path, token: str) -> None:
    """Do what `FolderOwner.check` does, for the owner with this `token`."""
    epoch, identity, table = token.split("-", 2)
    owner = FolderOwner(folder, table=table)
    owner.epoch, owner._id = int(epoch), identity
    owner.check()
