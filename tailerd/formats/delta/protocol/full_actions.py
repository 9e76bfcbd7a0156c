"""Decodes actions with all their fields, for files that repeat them.

Readers need few fields of an action and leave the rest raw (`actions`); a checkpoint must repeat
all of them, including unknown ones. Decoding is strict and fast, with a slower, lenient fallback
for lines with unknown fields.

Protocol: PROTOCOL.md#add-file-and-remove-file, #protocol-evolution
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Raw, Struct

from tailerd.changefeed.limits import DEFAULT_MEMORY_BYTES
from tailerd.errors import CorruptLogError
from tailerd.formats.delta.protocol.actions import (
    NO_RAW,
    UNREADABLE,
    Bytes,
    DeletionVectorDescriptor,
    plain_action,
)
from tailerd.formats.delta.protocol.commit_file import WholeLines
from tailerd.formats.delta.protocol.file_key import file_key

JsonObject = dict[str, Any]
Texts = dict[str, str | None]

# Not a name that a writer could use: it is internal.
_EXTRAS = "extras of tailerd"


class FileRow(Struct, rename="camel", gc=False, forbid_unknown_fields=True):
    """The body of an `add` or `remove`.

    Attributes:
        extras: Unknown fields, by name.
    """

    path: str
    partition_values: Texts | None = None
    size: Bytes | None = None
    modification_time: Bytes | None = None
    data_change: bool = True
    stats: str | None = None
    tags: Texts | None = None
    deletion_vector: DeletionVectorDescriptor | None = None
    base_row_id: Bytes | None = None
    default_row_commit_version: Bytes | None = None
    clustering_provider: str | None = None
    deletion_timestamp: Bytes | None = None
    extended_file_metadata: bool | None = None
    extras: JsonObject = msgspec.field(name=_EXTRAS, default_factory=dict)

    def key(self, root_url: str) -> int:
        """Return the identity of the logical file."""
        vector = self.deletion_vector
        return file_key(self.path, None if vector is None else vector.unique_id, root_url)


class FullLine(Struct, gc=False, rename="camel"):
    """One line: file actions decoded, the other actions of a state raw, the rest left out."""

    add: FileRow | None = None
    remove: FileRow | None = None
    meta_data: Raw = NO_RAW
    protocol: Raw = NO_RAW
    txn: Raw = NO_RAW
    domain_metadata: Raw = NO_RAW

    @property
    def other(self) -> tuple[str, JsonObject] | None:
        """Name and body of a non-file action that is part of a state; None for other lines."""
        raws = (self.meta_data, self.protocol, self.txn, self.domain_metadata)
        for kind, raw in zip(OTHER_KINDS, raws, strict=True):
            if raw and isinstance(body := msgspec.json.decode(raw), dict):
                return kind, plain_action(body)
        return None


OTHER_KINDS = ("metaData", "protocol", "txn", "domainMetadata")
"""Non-file actions of a state, by their names in the log."""

_DECODER = msgspec.json.Decoder(FullLine)
_FIELDS = frozenset(FileRow.__struct_encode_fields__) - {_EXTRAS}
_TEXT_MAPS = ("partitionValues", "tags")


def decode_full(
    name: str, chunks: Iterable[bytes], memory_bytes: int = DEFAULT_MEMORY_BYTES
) -> Iterator[list[FullLine]]:
    """Decode the body of a commit or compaction that was scanned before, slice by slice.

    Raises:
        CorruptLogError: A line does not have the shape of its action.
        TooLargeError: A line does not fit the memory.
    """
    for block in _whole_lines(name, chunks, memory_bytes):
        try:
            yield _DECODER.decode_lines(block)
        except UNREADABLE:
            yield [_decode_leniently(name, line) for line in block.splitlines() if line.strip()]


def _whole_lines(name: str, chunks: Iterable[bytes], memory_bytes: int) -> Iterator[bytes]:
    lines = WholeLines(name, memory_bytes)
    for chunk in chunks:
        if block := lines.feed(chunk):
            yield block
    if (rest := lines.rest()).strip():
        yield rest


def _decode_leniently(name: str, text: bytes) -> FullLine:
    """Decode one line that has unknown fields, or known ones in an unusual shape."""
    try:
        line = msgspec.json.decode(text)
        files = {
            kind: _file_row(line[kind]) for kind in ("add", "remove") if line.get(kind) is not None
        }
        others = {kind: line[kind] for kind in OTHER_KINDS if line.get(kind) is not None}
        full = _DECODER.decode(msgspec.json.encode(others))
        full.add, full.remove = files.get("add"), files.get("remove")
    except (*UNREADABLE, AttributeError, TypeError) as error:
        raise CorruptLogError(
            f"{name} has a line that is not an action of the Delta protocol: {error}.",
            remedy="Restore the file from a backup; committed log entries must not be edited.",
        ) from error
    return full


def _file_row(body: JsonObject) -> FileRow:
    known = {key: value for key, value in body.items() if key in _FIELDS and value is not None}
    for key in _TEXT_MAPS:
        if key in known:
            known[key] = {name: _text(value) for name, value in known[key].items()}
    row = msgspec.convert(known, FileRow, strict=False)
    row.extras = _no_nulls({key: value for key, value in body.items() if key not in _FIELDS})
    return row


def _no_nulls(value: Any) -> Any:
    """Return a value without nulls: in a column, null and absent are the same."""
    if isinstance(value, dict):
        return {key: _no_nulls(item) for key, item in value.items() if item is not None}
    return [_no_nulls(item) for item in value] if isinstance(value, list) else value


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()
