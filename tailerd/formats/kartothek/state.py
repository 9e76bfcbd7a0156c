"""One observed state of a dataset's table, as stored in the ledger. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import xxhash

from tailerd.errors import OffsetError
from tailerd.formats.kartothek.metadata import DatasetMetadata
from tailerd.remedies import RESTART

ENTRY_FORMAT = 1
MAX_COMMITS = 200
"""Number of commits recorded in the newest state for `history`."""


class ObservedCommit(msgspec.Struct, frozen=True, gc=False):
    """One observed commit.

    Attributes:
        operation: A word for it, derived by tailerd; writers record none.
        bytes_added, bytes_removed: -1 if files were removed before their size was requested.
        changes: How its rows are found: a `ChangeSourceKind`.
    """

    number: int
    timestamp_ms: int
    operation: str
    files_added: int
    files_removed: int
    bytes_added: int
    bytes_removed: int
    changes: str


class ObservedState(msgspec.Struct, frozen=True):
    """A table of a dataset at the time its metadata was read.

    Attributes:
        number: Of the state in its ledger, from 0; the table's version.
        origin: Digest of the ledger's first state, which identifies the ledger.
        digest: Of the metadata file's content.
        creation_time: When the dataset was created or overwritten, as written.
        timestamp_ms: When the metadata file was written, according to its store.
        table: Name of the table.
        keys: Of its data files, sorted.
        schema: Its columns, as Arrow IPC.
        indices: Column -> key of its index file.
        user_metadata: Annotations, as JSON.
        commits: The newest commits up to this state, oldest first.
    """

    number: int
    origin: str
    digest: str
    uuid: str
    creation_time: str
    timestamp_ms: int
    table: str
    keys: list[str]
    schema: bytes
    indices: dict[str, str]
    user_metadata: str
    commits: list[ObservedCommit] = []
    format: int = ENTRY_FORMAT

    @property
    def table_id(self) -> str:
        """Identity of the dataset, and of the ledger that numbers its states."""
        return f"{self.uuid}@{self.creation_time}#{self.origin}"

    @property
    def mark(self) -> str:
        """The mark by which an offset after this state identifies it."""
        return self.digest[:12]

    @property
    def schema_id(self) -> str:
        """Hash of the columns."""
        return xxhash.xxh3_64_hexdigest(self.schema)

    def to_bytes(self) -> bytes:
        """Return the ledger's entry."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, entry: bytes) -> ObservedState:
        """Parse a ledger's entry.

        Raises:
            OffsetError: It is not an entry, or a newer release wrote it.
        """
        try:
            found = _decoder.decode(entry)
        except msgspec.MsgspecError as error:
            raise OffsetError(
                f"An entry of the ledger cannot be read: {error}.",
                remedy=f"Restore it from a backup, or {RESTART}.",
            ) from error
        if found.format != ENTRY_FORMAT:
            raise OffsetError(
                f"An entry of the ledger has format {found.format}, this release reads"
                f" {ENTRY_FORMAT}, because a newer tailerd wrote it.",
                remedy=f"Run the newer release, or {RESTART}.",
            )
        return found


_decoder = msgspec.msgpack.Decoder(ObservedState)


def parse_origin(table_id: str) -> str:
    """Return the origin of the ledger in a table id."""
    return table_id.rpartition("#")[2]


@dataclass(frozen=True, slots=True)
class FileDifference:
    """Files that a commit removes and adds, sorted."""

    removed: list[str]
    added: list[str]


def difference(before: ObservedState | None, after: ObservedState) -> FileDifference:
    """Return the files that differ between two states; None is the empty state."""
    old = set() if before is None else set(before.keys)
    new = set(after.keys)
    return FileDifference(sorted(old - new), sorted(new - old))


def operation(before: ObservedState | None, after: ObservedState, files: FileDifference) -> str:
    """Return a word for the operation of a commit."""
    if before is None:
        return "first observed"
    if before.creation_time != after.creation_time:
        return "overwrite"
    if files.added or files.removed:
        kinds = {(True, True): "update", (True, False): "append", (False, True): "delete"}
        return kinds[bool(files.added), bool(files.removed)]
    if before.schema != after.schema:
        return "schema"
    if before.indices != after.indices:
        return "indices"
    return "metadata"


def observe_state(
    metadata: DatasetMetadata,
    *,
    before: ObservedState | None,
    digest: str,
    timestamp_ms: int,
    table: str,
    schema: bytes,
) -> ObservedState:
    """Return the state that follows another in its ledger; `before` is None for the first."""
    return ObservedState(
        number=0 if before is None else before.number + 1,
        origin=digest[:12] if before is None else before.origin,
        digest=digest,
        uuid=metadata.uuid,
        creation_time=metadata.creation_time,
        timestamp_ms=timestamp_ms,
        table=table,
        keys=metadata.files.get(table, []),
        schema=schema,
        indices=metadata.indices,
        user_metadata=metadata.user_metadata,
        commits=[] if before is None else before.commits,
    )
