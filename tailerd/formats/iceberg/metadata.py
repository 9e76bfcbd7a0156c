"""Parses table metadata, and lists the commits of a branch. Pure.

Specification: "Table Metadata", "Snapshots", "Snapshot References"
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
from msgspec import Struct, field

from tailerd.changefeed.offset import Version
from tailerd.errors import (
    CorruptLogError,
    TooLargeError,
    UnreadableMetadataError,
    UnsupportedFeatureError,
    UsageError,
)

METADATA_FOLDER = "metadata"
SUFFIX = ".metadata.json"
HINT = "version-hint.text"
MAIN = "main"
FIRST_TIME = 10**11
"""A version from here on is a time in ms (in 1973); no sequence number is so large."""
NEWEST_FORMAT = 3
_NO_SNAPSHOT = -1
_GZIP = 31
"""Window bits by which zlib reads a gzip header."""
_NUMBERED = re.compile(r"(?:v(\d+)|(\d+)-[^/]+?)(?:\.gz)?\.metadata\.json(?:\.gz)?", re.ASCII)
_VOID = "void"
_IDENTITY = "identity"


def metadata_number(name: str) -> int | None:
    """Return the number in the name of a metadata file; None for other files."""
    found = _NUMBERED.fullmatch(name)
    return None if found is None else int(found[1] or found[2])


class Snapshot(Struct, rename="kebab", frozen=True):
    """One commit. `schema_id` is None where an old writer left it out."""

    snapshot_id: int
    timestamp_ms: int
    manifest_list: str = ""
    manifests: list[str] | None = None
    parent_snapshot_id: int | None = None
    sequence_number: int | None = None
    summary: dict[str, str] = {}
    schema_id: int | None = None
    key_id: str | None = None

    @property
    def operation(self) -> str:
        """The operation that the writer recorded."""
        return self.summary.get("operation", "")


class Reference(Struct, rename="kebab", frozen=True):
    """A branch or a tag."""

    snapshot_id: int
    type: str = "branch"


class PartitionField(Struct, rename="kebab", frozen=True):
    """A field of a partition spec; a field of several source columns has no source id."""

    name: str
    transform: str
    source_id: int | None = None
    field_id: int | None = None


class PartitionSpec(Struct, rename="kebab", frozen=True):
    """How files are partitioned."""

    spec_id: int = 0
    fields: list[PartitionField] = []

    @property
    def is_partitioned(self) -> bool:
        """Whether any field has values."""
        return any(each.transform != _VOID for each in self.fields)

    @property
    def identities(self) -> dict[int, int]:
        """The columns that a partition has the values of: position in the partition -> field id."""
        return {
            position: each.source_id
            for position, each in enumerate(self.fields)
            if each.transform == _IDENTITY and each.source_id is not None
        }


class TableMetadata(Struct, rename="kebab", frozen=True):
    """The content of a metadata file, as far as readers need it."""

    format_version: int
    location: str
    table_uuid: str = ""
    last_updated_ms: int = 0
    current_schema_id: int = 0
    schemas: list[msgspec.Raw] = []
    old_schema: msgspec.Raw = field(default=msgspec.Raw(b""), name="schema")
    partition_specs: list[PartitionSpec] = []
    partition_spec: list[PartitionField] | None = None
    default_spec_id: int = 0
    current_snapshot_id: int | None = None
    snapshots: list[Snapshot] | None = None
    refs: dict[str, Reference] | None = None
    properties: dict[str, str] = {}
    encryption_keys: list[msgspec.Raw] | None = None
    last_sequence_number: int = 0
    next_row_id: int | None = None


class _SchemaId(Struct, rename="kebab"):
    schema_id: int = 0


_decoder = msgspec.json.Decoder(TableMetadata)


class _Format(Struct, rename="kebab"):
    format_version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A snapshot among the ancestors of a branch's head.

    Attributes:
        version: Its sequence number; in format version 1, and for pipelines that began there, its
            time in ms. Ascending.
        has_parent: Whether the snapshot before it is known, or there never was one.
    """

    version: Version
    snapshot: Snapshot
    parent: Snapshot | None
    has_parent: bool

    @property
    def timestamp_us(self) -> int:
        """Time of the commit."""
        return self.snapshot.timestamp_ms * 1000


class TableState:
    """A table as one metadata file describes it.

    Args:
        name: The table's location, for errors.
        path: Of the metadata file.
        branch: The branch, or tag, whose ancestors are the commits.
        is_by_time: Whether versions are times in any case; in format version 1 they always are.
    """

    def __init__(
        self,
        metadata: TableMetadata,
        *,
        name: str,
        path: str,
        branch: str,
        is_by_time: bool = False,
    ) -> None:
        self.metadata = metadata
        self.is_by_time = is_by_time or metadata.format_version == 1
        self.path = path
        self._name = name
        self._branch = branch
        self._by_id = {each.snapshot_id: each for each in metadata.snapshots or ()}
        self.specs = {each.spec_id: each for each in _list_specs(metadata)}
        self.commits = self._list_commits()

    @property
    def table_id(self) -> str:
        """Identity of the table."""
        return self.metadata.table_uuid or self.metadata.location

    @property
    def head(self) -> Commit | None:
        """The newest commit; None before the first."""
        return self.commits[-1] if self.commits else None

    @cached_property
    def _schemas(self) -> dict[int, msgspec.Raw]:
        old = self.metadata.old_schema
        listed = self.metadata.schemas or ([old] if bytes(old) else [])
        return {msgspec.json.decode(each, type=_SchemaId).schema_id: each for each in listed}

    def has_snapshot(self, snapshot_id: int) -> bool:
        """Return whether the metadata lists a snapshot, of whichever branch."""
        return snapshot_id in self._by_id

    def schema_text(self, snapshot: Snapshot | None) -> str:
        """Return the schema of a snapshot as JSON; None: the current one.

        Raises:
            CorruptLogError: It is not in the metadata.
        """
        current = self.metadata.current_schema_id
        requested = (
            current if snapshot is None or snapshot.schema_id is None else snapshot.schema_id
        )
        found = self._schemas.get(requested)
        if found is None:
            raise self._corrupt(f"has no schema {requested}")
        return bytes(found).decode()

    def all_schemas(self) -> Sequence[str]:
        """Return every schema as JSON, the newest first."""
        return [bytes(text).decode() for _, text in sorted(self._schemas.items(), reverse=True)]

    def find(self, snapshot_id: int) -> Commit | None:
        """Return the commit with a snapshot id; None if it is not among the ancestors."""
        return next((c for c in self.commits if c.snapshot.snapshot_id == snapshot_id), None)

    def at(self, version: int) -> Commit | None:
        """Return the commit of a version; None if there is none."""
        return next((each for each in self.commits if each.version == version), None)

    def _head_id(self) -> int | None:
        metadata = self.metadata
        refs = metadata.refs or {}
        current = metadata.current_snapshot_id
        if self._branch in refs:
            return refs[self._branch].snapshot_id
        if self._branch != MAIN:
            known = ", ".join(sorted({MAIN, *refs}))
            raise UsageError(
                f"The table {self._name} has no branch or tag {self._branch!r}; it has {known}.",
                remedy="Correct the option `branch`, or leave it out.",
            )
        return None if current == _NO_SNAPSHOT else current

    def _list_commits(self) -> list[Commit]:
        """Return the ancestors of the head, oldest first, as far as the metadata lists them.

        Raises:
            CorruptLogError: The head is not listed, or ancestors form a cycle.
        """
        chain: list[Snapshot] = []
        seen: set[int] = set()
        following = self._head_id()
        while following is not None:
            found = self._by_id.get(following)
            if found is None and not chain:
                raise self._corrupt(f"does not list its current snapshot {following}")
            if following in seen:
                raise self._corrupt(f"has snapshot {following} among its own ancestors")
            if found is None:
                break
            seen.add(following)
            chain.append(found)
            following = found.parent_snapshot_id
        return _number(chain[::-1], is_by_time=self.is_by_time)

    def _corrupt(self, why: str) -> CorruptLogError:
        return CorruptLogError(
            f"The metadata file {self.path} of {self._name} {why}.",
            remedy="Its writer is broken: restore the file from a backup, or use its catalog.",
        )


def _number(chain: Sequence[Snapshot], *, is_by_time: bool) -> list[Commit]:
    """Return commits with their versions.

    Case A: by time: in ms; of two in one millisecond the later gets one more.
    Case B: the sequence number. Snapshots from before an upgrade from format version 1 all have
    number 0: the last of them is version 0, and their own changes cannot be told apart.
    """
    commits: list[Commit] = []
    parent: Snapshot | None = None
    last = -1
    for snapshot in chain:
        is_known = parent is not None or snapshot.parent_snapshot_id is None
        number = snapshot.sequence_number or 0
        if is_by_time:  # Case A
            number = max(snapshot.timestamp_ms, last + 1)
        elif number == last == 0:  # Case B
            commits.pop()
            is_known = False
        commits.append(
            Commit(version=Version(number), snapshot=snapshot, parent=parent, has_parent=is_known)
        )
        parent, last = snapshot, number
    return commits


def _list_specs(metadata: TableMetadata) -> list[PartitionSpec]:
    if metadata.partition_specs or metadata.partition_spec is None:
        return metadata.partition_specs
    return [PartitionSpec(fields=metadata.partition_spec)]


def parse_metadata(content: bytes, path: str, memory_bytes: int) -> TableMetadata:
    """Parse a metadata file, which may be compressed.

    Raises:
        UnreadableMetadataError: It is incomplete or not JSON.
        UnsupportedFeatureError: Its format version is newer, or the table is encrypted.
        TooLargeError: It does not fit the memory.
    """
    text = _unpack(content, path, memory_bytes)
    try:
        number = msgspec.json.decode(text, type=_Format).format_version
        if number not in range(1, NEWEST_FORMAT + 1):
            raise UnsupportedFeatureError(
                f"The metadata file {path} has the format version {number}, and this release reads"
                f" versions 1 to {NEWEST_FORMAT}.",
                remedy="Update tailerd, or keep the table at an older format version.",
            )
        found = _decoder.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UnreadableMetadataError(
            f"The metadata file {path} cannot be read: {error}.",
            remedy="It is incomplete or not table metadata: restore it from a backup, or name an"
            " earlier metadata file.",
        ) from error
    if found.encryption_keys or any(each.key_id for each in found.snapshots or ()):
        raise UnsupportedFeatureError(
            f"The table of {path} is encrypted, which this release does not read.",
            remedy="Use a copy of the table without encryption.",
        )
    return found


def _unpack(content: bytes, path: str, memory_bytes: int) -> bytes:
    if content[:2] != b"\x1f\x8b":
        return content
    unpacker = zlib.decompressobj(_GZIP)
    try:
        text = unpacker.decompress(content, memory_bytes)
    except zlib.error as error:
        raise UnreadableMetadataError(
            f"The metadata file {path} cannot be unpacked: {error}.",
            remedy="It is damaged: restore it from a backup.",
        ) from error
    if unpacker.unconsumed_tail:
        raise TooLargeError.within(memory_bytes, f"The metadata file {path}, unpacked, is larger")
    return text
