"""Which group a table is in, and from where: durable, because its offset is in that group.

A table stays where it is once it has been assigned. It is moved only when its sink can no longer
be written together with the group's others; then, and when a query of its own becomes part of a
group, it begins its life in the new group where the old one has delivered it up to. Each life has a
number, so that what an old one left in a checkpoint is never taken for the new one's.

Groups keep their files in a folder that no table's own checkpoint can be in: those are
`<state>/spark/<table>`, and names of tables begin with a letter or a digit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from tailerd.changefeed.offset import Offset
from tailerd.config import SinkConfig
from tailerd.errors import StorageError
from tailerd.sinks.file.config import FileSinkConfig
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.spark.checkpoints import CHECKPOINT_FOLDER, batch_end, logged_batches
from tailerd.spark.durable import read_document, write_durably
from tailerd.spark.group.group_offset import GroupOffset
from tailerd.spark.group.quarantine import read_holds, stands_at
from tailerd.spark.spark_offset import OffsetFields, batch_start, offset_of
from tailerd.storage.posix_files import sync_folder

_FOLDER = "_groups"
_ASIDE = "_{}.before-its-group"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Where a table's offset is.

    Attributes:
        group: Name of the group, and of its folder.
        generation: Number of the life.
        begin: Where it begins; None where the configuration says it.
        kind: What `group_kind` said of its sink.
    """

    group: str
    generation: int
    begin: Offset | None
    kind: str


def group_kind(sink: SinkConfig) -> str | None:
    """Return what sinks have in common that can share a query; None: it needs one of its own."""
    if isinstance(sink, FileSinkConfig):
        return "lines" if sink.format == "jsonl" else None
    if not isinstance(sink, KafkaSinkConfig):
        return None
    return f"kafka-{hashlib.sha256(sink.sharing_key.encode()).hexdigest()[:8]}"


class Assignments:
    """The groups of one state folder; blocking, one process at a time."""

    def __init__(self, state: Path) -> None:
        """Take the folder of Spark's state, `<state>/spark`."""
        self._state = state
        self._file = state / _FOLDER / "assignments.json"

    @classmethod
    def around(cls, folder: Path) -> Assignments:
        """Return those that a group with this folder is one of."""
        return cls(folder.parent.parent)

    def folder(self, group: str) -> Path:
        """Return the folder of a group."""
        return self._state / _FOLDER / group

    def find(self, name: str) -> Assignment | None:
        """Return where a table is; None where it never was in a group.

        Raises:
            OffsetError, StorageError: The file cannot be read.
        """
        return self._all().get(name)

    def offset(self, name: str) -> Offset | None:
        """Return where a table in a group stands; None before its first batch.

        Raises:
            OffsetError, StorageError: A file of the group cannot be read.
        """
        found = self.find(name)
        return None if found is None else self._stand(name, found)

    def unfinished(self, name: str, kind: str) -> int | None:
        """Return the batch with rows of a table that its group has not finished, if it must move.

        While there is one, only the sink can tell from where the table goes on: it may have the
        batch when Spark does not know that yet.

        Raises:
            OffsetError, StorageError: A file of the group cannot be read.
        """
        found = self.find(name)
        if found is None or found.kind == kind:
            return None
        folder = self.folder(found.group)
        batch_id = logged_batches(folder / CHECKPOINT_FOLDER).unfinished
        if batch_id is None:
            return None
        end = _end(folder, batch_id)
        entry = end.tables.get(name)
        is_in = name in end.begins and entry is not None and entry.generation == found.generation
        return batch_id if is_in else None

    def assign(
        self,
        name: str,
        kind: str,
        running: Mapping[str, int],
        most: int,
        *,
        delivered: int | None = None,
    ) -> Assignment:
        """Return the group of a table, which it is put into if it is in none of this kind.

        Args:
            name: The table.
            kind: What `group_kind` says of its sink.
            running: How many tables run in each group now.
            most: How many may.
            delivered: The newest batch that the sink of its present group has for certain; None
                where only Spark's own word counts.

        Raises:
            OffsetError, StorageError: A file cannot be read or written.
        """
        every = self._all()
        found = every.get(name)
        if found is not None and found.kind == kind:
            return found
        begin = self._carried(name) if found is None else self._stand(name, found, delivered)
        of_kind = {each.group for each in every.values() if each.kind == kind}
        new = Assignment(
            group=_with_room(kind, of_kind, running, most),
            generation=1 if found is None else found.generation + 1,
            begin=begin,
            kind=kind,
        )
        self._write({**every, name: new})
        if found is None:
            # It no longer says where the table is.
            _set_aside(self._state, name)
        return new

    def begin_at(self, name: str, offset: Offset) -> None:
        """Begin another life of a table that does not run, in the group it is in.

        Raises:
            OffsetError, StorageError: The file cannot be read or written.
        """
        every = self._all()
        old = every[name]
        new = replace(old, generation=old.generation + 1, begin=offset)
        self._write({**every, name: new})

    def _stand(self, name: str, found: Assignment, delivered: int | None = None) -> Offset | None:
        folder = self.folder(found.group)
        batches = logged_batches(folder / CHECKPOINT_FOLDER)
        done = batches.committed
        if delivered is not None and batches.logged is not None and delivered >= batches.logged:
            done = batches.logged
        if done is None:
            return found.begin
        end = _end(folder, done)
        entry = end.tables.get(name)
        if entry is None or entry.generation != found.generation:
            return found.begin
        return stands_at(entry, read_holds(folder).get(name))

    def _carried(self, name: str) -> Offset | None:
        """Return where a query of the table's own stopped, if there was one."""
        checkpoint = self._state / name
        batches = logged_batches(checkpoint)
        if batches.committed is not None:
            return offset_of(_own_end(checkpoint, batches.committed))
        if batches.logged is not None:
            return batch_start({"is_initial": True}, _own_end(checkpoint, batches.logged))
        return None

    def _all(self) -> dict[str, Assignment]:
        document = read_document(self._file)
        return {
            name: _assignment(cast("Mapping[str, object]", each)) for name, each in document.items()
        }

    def _write(self, assignments: Mapping[str, Assignment]) -> None:
        document = {
            name: {
                "group": each.group,
                "generation": each.generation,
                "begin": None if each.begin is None else each.begin.to_json(),
                "kind": each.kind,
            }
            for name, each in assignments.items()
        }
        write_durably(self._file, document)


def unfinished_batch(state: Path, name: str) -> int | None:
    """Return the batch that a query of the table's own had not finished; its files may be there."""
    return logged_batches(state / name).unfinished


def _set_aside(state: Path, name: str) -> None:
    """Keep a table's own checkpoint under a name that no table has; blocking.

    Raises:
        StorageError: The state folder cannot be written.
    """
    checkpoint = state / name
    if not checkpoint.is_dir():
        return
    aside, number = state / _ASIDE.format(name), 2
    while aside.exists():
        aside, number = state / f"{_ASIDE.format(name)}-{number}", number + 1
    try:
        checkpoint.replace(aside)
        sync_folder(state)
    except OSError as error:
        raise StorageError(
            f"{checkpoint} cannot be renamed: {error.strerror or error}.",
            remedy="Look at the permissions of the state folder.",
        ) from error


def _with_room(kind: str, known: Iterable[str], running: Mapping[str, int], most: int) -> str:
    for group in sorted(known):
        if running.get(group, 0) < most:
            return group
    number = 1
    while running.get(f"{kind}-{number:03}", 0) >= most:
        number += 1
    return f"{kind}-{number:03}"


def _end(folder: Path, batch_id: int) -> GroupOffset:
    return GroupOffset.of(batch_end(folder / CHECKPOINT_FOLDER, batch_id))


def _own_end(checkpoint: Path, batch_id: int) -> OffsetFields:
    return cast("OffsetFields", batch_end(checkpoint, batch_id))


def _assignment(fields: Mapping[str, object]) -> Assignment:
    begin = fields["begin"]
    return Assignment(
        group=str(fields["group"]),
        generation=cast(int, fields["generation"]),
        begin=Offset.from_json(begin) if isinstance(begin, str) else None,
        kind=str(fields["kind"]),
    )
