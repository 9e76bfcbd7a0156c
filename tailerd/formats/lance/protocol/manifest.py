"""Parses manifests: the content of a table in one version. Pure.

Specification: "Dataset Directory", "Fragments", "Manifest Naming Schemes". Fragments stay bytes:
those of two versions are compared as bytes, and only the ones that differ are parsed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from functools import cached_property

import xxhash

from tailerd.errors import CorruptLogError, UnsupportedFeatureError
from tailerd.formats.lance.protocol.fragments import Fragment, parse_fragment
from tailerd.formats.lance.protocol.wire import content, entry, fields, number, runs, text

_FOOTER = struct.Struct("<QHH4s")
_LENGTH = struct.Struct("<I")
_MAGIC = b"LANC"
_NANOS = 1e9
_FRAGMENTS = 2
_TRANSACTION_SECTIONS = (21, 23)

STABLE_ROW_IDS = 2
KNOWN_FLAGS = {
    1: "deletion files",
    STABLE_ROW_IDS: "stable row ids",
    4: "data files of version 2",
    8: "table configuration",
    16: "several base paths",
    32: "no transaction files",
}
"""Bits of the reader flags, and their meaning; tables with others are rejected."""
_OTHER_FLAGS = {64: "data overlay files", 128: "covering indices", 256: "mixed file versions"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BasePath:
    """A location for data files outside the table's own folder.

    Attributes:
        is_table: Whether it is a table's folder, with `data` and `_deletions` in it.
    """

    number: int
    path: str
    is_table: bool


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One version of a table.

    Attributes:
        fields: Its columns, as messages.
        fragments: As messages, in order.
        timestamp_us: Microseconds since the epoch, UTC.
        reader_flags: Bits; `check_readable` rejects unknown ones.
        transaction_file: Name below `_transactions`; empty if there is none.
        transaction: The transaction inlined in the manifest's file; None if it is not inlined.
        file_version: Of its data files.
        writer: Name and version of the library that wrote it; may be empty.
        size_bytes: Of its file.
        digest: Of its message.
    """

    version: int
    timestamp_us: int
    fields: tuple[bytes, ...]
    fragments: tuple[bytes, ...]
    reader_flags: int = 0
    transaction_file: str = ""
    transaction: bytes | None = None
    base_paths: tuple[BasePath, ...] = ()
    branch: str = ""
    file_version: str = ""
    writer: str = ""
    config: dict[str, str] = field(default_factory=dict)
    size_bytes: int = 0
    digest: str = ""

    @property
    def identity(self) -> str:
        """Distinguishes this version from the same one of another table: its transaction's uuid."""
        name = self.transaction_file.removesuffix(".txn")
        return name.partition("-")[2] or self.digest

    @property
    def has_stable_row_ids(self) -> bool:
        """Whether a row keeps its id when it moves to another fragment."""
        return bool(self.reader_flags & STABLE_ROW_IDS)

    @cached_property
    def fragment_set(self) -> frozenset[bytes]:
        """The fragments as a set, for lookup."""
        return frozenset(self.fragments)

    def parse(self, fragment: bytes) -> Fragment:
        """Parse one of its fragments.

        Raises:
            CorruptLogError, UnsupportedFeatureError: As `parse_fragment`.
        """
        found = parse_fragment(fragment)
        # Releases that did not record themselves filled in wrong numbers, without deleted rows.
        return found if self.writer else replace(found, physical_rows=0)

    @property
    def flags_shown(self) -> list[str]:
        """The names of its flags."""
        known = KNOWN_FLAGS | _OTHER_FLAGS
        bits = (1 << bit for bit in range(self.reader_flags.bit_length()))
        return [known.get(bit, f"bit {bit}") for bit in bits if self.reader_flags & bit]

    def check_readable(self, location: str) -> None:
        """Make sure that every flag is known, before any row is read.

        Raises:
            UnsupportedFeatureError: One is not.
        """
        unknown = self.reader_flags & ~sum(KNOWN_FLAGS)
        if unknown:
            bits = [1 << bit for bit in range(unknown.bit_length()) if unknown >> bit & 1]
            named = ", ".join(
                f"{bit} ({_OTHER_FLAGS[bit]})" if bit in _OTHER_FLAGS else str(bit) for bit in bits
            )
            raise UnsupportedFeatureError(
                f"Version {self.version} of {location} requires an unsupported feature: flag"
                f" {named}. Its rows would not be read correctly.",
                remedy="Use a newer release, or let a writer remove the feature.",
            )


def parse_manifest(file: bytes, path: str) -> Manifest:
    """Parse a manifest's file.

    Args:
        path: For errors.

    Raises:
        CorruptLogError: It is torn, or not a manifest.
    """
    try:
        return _parse_manifest(file)
    except CorruptLogError as error:
        raise CorruptLogError(
            f"The manifest {path} cannot be read: {error.message}.",
            remedy="Restore it from a backup. Writers create it atomically, so something else"
            " changed it.",
        ) from error


def _parse_manifest(file: bytes) -> Manifest:
    if len(file) < _FOOTER.size:
        raise CorruptLogError(f"it has {len(file)} bytes")
    position, _, _, magic = _FOOTER.unpack_from(file, len(file) - _FOOTER.size)
    if magic != _MAGIC:
        raise CorruptLogError("it does not end as one")
    message = _message_at(file, position)
    found: dict[int, int | bytes] = {}
    columns: list[bytes] = []
    base_paths: list[BasePath] = []
    config: dict[str, str] = {}
    fragments, others = runs(message, _FRAGMENTS)
    for field_number, value in others:
        if field_number == 1:
            columns.append(content(value))
        elif field_number == 16:
            key, reported = entry(value)
            config[key] = text(reported)
        elif field_number == 18:
            base_paths.append(_base_path(content(value)))
        else:
            found[field_number] = value
    return Manifest(
        version=number(found.get(3, 0)),
        timestamp_us=_micros(content(found.get(7, b""))),
        fields=tuple(columns),
        fragments=tuple(fragments),
        reader_flags=number(found.get(9, 0)),
        transaction_file=text(found.get(12, b"")),
        transaction=_transaction(file, found),
        base_paths=tuple(base_paths),
        branch=text(found.get(20, b"")),
        file_version=_second(content(found.get(15, b"")), ""),
        writer=_second(content(found.get(13, b"")), " "),
        config=config,
        size_bytes=len(file),
        digest=xxhash.xxh3_128_hexdigest(message),
    )


def _transaction(file: bytes, found: dict[int, int | bytes]) -> bytes | None:
    """Return the inlined transaction, if any; its position is in different fields by release.

    It is used only if it has the uuid in the name of the transaction's own file.
    """
    name = text(found.get(12, b"")).removesuffix(".txn").partition("-")[2]
    for field_number in _TRANSACTION_SECTIONS:
        position = found.get(field_number)
        if not isinstance(position, int):
            continue
        try:
            message = _message_at(file, position)
            if name and dict(fields(message)).get(2) == name.encode():
                return message
        except (CorruptLogError, struct.error):
            continue
    return None


def _message_at(file: bytes, position: int) -> bytes:
    """Return a message in a file, which is stored after its length."""
    start = position + _LENGTH.size
    if start > len(file):
        raise CorruptLogError("it is shorter than it says")
    (length,) = _LENGTH.unpack_from(file, position)
    if start + length > len(file):
        raise CorruptLogError("it is shorter than it says")
    return file[start : start + length]


def _micros(timestamp: bytes) -> int:
    """Return the time as `LanceDataset.versions()` does, so that both agree to the microsecond.

    pylance divides nanoseconds as floats, which may change the last digit by one.
    """
    reported = {field_number: number(value) for field_number, value in fields(timestamp)}
    nanos = reported.get(1, 0) * 10**9 + reported.get(2, 0)
    return int(nanos // _NANOS) * 10**6 + int(nanos % _NANOS // 1e3)


def _second(message: bytes, joint: str) -> str:
    """Return the second text of a message; with `joint`, both texts joined by it."""
    reported = {
        field_number: text(value)
        for field_number, value in fields(message)
        if field_number in (1, 2)
    }
    return (
        reported.get(2, "")
        if not joint
        else joint.join(reported[each] for each in sorted(reported))
    )


def _base_path(message: bytes) -> BasePath:
    reported = dict(fields(message))
    return BasePath(
        number=number(reported.get(1, 0)),
        path=text(reported.get(4, b"")),
        is_table=bool(number(reported.get(3, 0))),
    )
