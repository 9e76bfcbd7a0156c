"""Decodes commit files in bounded slices, and collects their content in one pass.

Protocol: PROTOCOL.md#delta-log-entries, #actions
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, MutableSequence
from contextlib import suppress

import msgspec
from msgspec import Raw, Struct

from tailerd.changefeed.limits import DEFAULT_MEMORY_BYTES, largest_piece_bytes
from tailerd.errors import CorruptLogError, TooLargeError, TornCommitError
from tailerd.formats.delta.protocol.actions import (
    UNREADABLE,
    CommitInfo,
    DomainMetadata,
    FileAction,
    Line,
    Metadata,
    Protocol,
    Transaction,
    plain_line,
    read_num_records,
)
from tailerd.formats.delta.protocol.file_key import file_key
from tailerd.formats.delta.protocol.file_tally import cardinality

SLICE_BYTES = 4 * 1024 * 1024
"""A body is decoded in slices of about this size, so that memory and pauses stay bounded."""

PACK_AT_LEAST = 16_384

_DECODER = msgspec.json.Decoder(Line)
_NULL = Raw(b"null")


class LineDecoder:
    """Decodes chunks of a body to actions; buffers a line until it is complete.

    Args:
        name: File name for error messages.
        memory_bytes: Memory for reading.

    Attributes:
        bytes_done: Bytes of the lines decoded so far.
    """

    def __init__(self, name: str, memory_bytes: int = DEFAULT_MEMORY_BYTES) -> None:
        self.name = name
        self.bytes_done = 0
        self._blocks = WholeLines(name, memory_bytes)
        self._lines_seen = 0

    @property
    def has_rest(self) -> bool:
        """Whether an incomplete line is buffered."""
        return self._blocks.has_rest

    def feed(self, chunk: bytes) -> list[Line]:
        """Return the actions of every line completed by `chunk`.

        Raises:
            CorruptLogError: A complete line is not an action.
            TooLargeError: A line does not fit the memory.
        """
        whole = self._blocks.feed(chunk)
        self.bytes_done += len(whole)
        return self._decode(whole) if whole else []

    def finish(self) -> list[Line]:
        """Return the actions of a last line without a line end.

        Raises:
            TornCommitError: The last line is incomplete, or the file has no action at all.
            CorruptLogError: The last line is not an action, and no continuation can make it one.
        """
        rest = self._blocks.rest()
        self.bytes_done += len(rest)
        if rest.strip():
            try:
                last = _DECODER.decode(rest)
            except msgspec.ValidationError:
                # Complete, whatever might follow.
                return self._decode(rest)
            except UNREADABLE as error:
                raise TornCommitError(
                    f"The last line of {self.name} is incomplete ({error}), because its writer has"
                    " not finished or has died while writing."
                ) from error
            self._lines_seen += 1
            return [last]
        if not self._lines_seen:
            raise TornCommitError(
                f"{self.name} is empty, because its writer has not finished or has died."
            )
        return []

    def _decode(self, whole: bytes) -> list[Line]:
        lines = decode_block(self.name, whole, self._lines_seen)
        self._lines_seen += len(lines)
        return lines


def decode_block(name: str, block: bytes, lines_before: int = 0) -> list[Line]:
    """Decode complete lines of a body.

    Args:
        name: File name for error messages.
        lines_before: Number of its lines before this block.

    Raises:
        CorruptLogError: A line is not an action.
    """
    try:
        return _DECODER.decode_lines(block)
    except UNREADABLE:
        # One by one, to name the line or to leave out nulls.
        texts = [text for text in block.splitlines() if text.strip()]
        return [_decode_line(name, text, lines_before + n) for n, text in enumerate(texts, 1)]


def _decode_line(name: str, text: bytes, number: int) -> Line:
    try:
        return _DECODER.decode(text)
    except UNREADABLE as error:
        with suppress(*UNREADABLE):
            return _DECODER.decode(plain_line(text))
        raise CorruptLogError(
            f"Line {number} of {name} is not an action of the Delta protocol: {error}.",
            remedy="Restore the file from a backup; committed log entries must not be edited.",
        ) from error


def slices(body: bytes) -> Iterator[bytes]:
    """Split a body in memory into slices of bounded size."""
    if len(body) <= SLICE_BYTES:
        return iter((body,))
    return _slices(body)


def _slices(body: bytes) -> Iterator[bytes]:
    for start in range(0, len(body), SLICE_BYTES):
        yield body[start : start + SLICE_BYTES]


def decode_lines(
    name: str, chunks: Iterable[bytes], memory_bytes: int = DEFAULT_MEMORY_BYTES
) -> Iterator[list[Line]]:
    """Decode a whole body, slice by slice.

    Raises:
        CorruptLogError, TornCommitError, TooLargeError: As `LineDecoder`.
    """
    decoder = LineDecoder(name, memory_bytes)
    for chunk in chunks:
        yield decoder.feed(chunk)
    yield decoder.finish()


class FileTally(Struct, gc=False):
    """Count and bytes of one kind of file action."""

    files: int = 0
    size_bytes: int = 0

    def count(self, action: FileAction) -> None:
        """Add one action."""
        self.files += 1
        self.size_bytes += action.size or 0


Keys = MutableSequence[int]
"""Unsigned 64-bit keys; an array if there are many."""


_PACKED = {
    "added_keys": "Q",
    "added_sizes": "q",
    "added_paths": "Q",
    "removed_keys": "Q",
    "removed_paths": "Q",
    "vector_keys": "Q",
    "vector_rows": "q",
    "vector_paths": "Q",
}


class Commit(Struct):
    """The content of a commit (or compaction), without the bodies of file actions.

    Attributes:
        info_json: The commit's raw provenance; empty without any.
        is_info_first: Whether it is the first action (needed for in-commit timestamps).
        added_keys, added_sizes: Keys and bytes of `add` actions, parallel, in file order.
        removed_keys: Keys of `remove` actions.
        added_paths, removed_paths: Keys of the paths alone, parallel to the above; equal arrays
            without deletion vectors.
        added, removed, change_files: Tallies of all `add`, `remove` and `cdc` actions.
        data_added, data_removed: The same for those with `dataChange`.
        has_vectors: Whether any file action has a deletion vector.
        vector_keys, vector_rows, vector_paths: Keys of `add` actions with a deletion vector, the
            number of rows it deletes, and the key of the path alone; parallel.
        rows_added, rows_removed: Physical rows in the files of all `add` and `remove` actions;
            None if one lacks statistics, or counting was not requested.
        size_bytes: Bytes of the body.
        parsed_info: Of `info`, once it was requested: replaying many commits needs none.
    """

    version: int
    info_json: bytes = b""
    is_info_first: bool = False
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    transactions: list[Transaction] = []
    domain_metadata: list[DomainMetadata] = []
    added_keys: Keys = msgspec.field(default_factory=list)
    added_sizes: Keys = msgspec.field(default_factory=list)
    removed_keys: Keys = msgspec.field(default_factory=list)
    added_paths: Keys = msgspec.field(default_factory=list)
    removed_paths: Keys = msgspec.field(default_factory=list)
    added: FileTally = msgspec.field(default_factory=FileTally)
    removed: FileTally = msgspec.field(default_factory=FileTally)
    change_files: FileTally = msgspec.field(default_factory=FileTally)
    data_added: FileTally = msgspec.field(default_factory=FileTally)
    data_removed: FileTally = msgspec.field(default_factory=FileTally)
    has_vectors: bool = False
    vector_keys: Keys = msgspec.field(default_factory=list)
    vector_rows: Keys = msgspec.field(default_factory=list)
    vector_paths: Keys = msgspec.field(default_factory=list)
    rows_added: int | None = None
    rows_removed: int | None = None
    size_bytes: int = 0
    parsed_info: CommitInfo | None = None

    @property
    def info(self) -> CommitInfo | None:
        """The commit's provenance, read leniently; None without any."""
        if self.parsed_info is None and self.info_json:
            self.parsed_info = CommitInfo.from_json(self.info_json)
        return self.parsed_info

    @property
    def timestamp_in_commit_ms(self) -> int | None:
        """`inCommitTimestamp`; None if the commit has none."""
        info = self.info
        return info.in_commit_timestamp if info else None

    def pack(self) -> None:
        """Convert long lists of keys to arrays: 8 bytes per entry instead of 40."""
        if len(self.added_keys) + len(self.removed_keys) < PACK_AT_LEAST:
            return
        for name, kind in _PACKED.items():
            values = getattr(self, name)
            if isinstance(values, list):
                setattr(self, name, array(kind, values))


class CommitScan:
    """Builds a `Commit` from slices of its body.

    Args:
        version: Version of the commit.
        name: File name for error messages.
        root_url: The table's location, to recognise absolute paths below it.
        with_rows: Whether to read the number of rows from statistics.
        memory_bytes: Memory for reading.
        with_lines: Whether to keep the decoded lines.

    Attributes:
        lines: All lines decoded so far, in order, if they are kept; else None.
    """

    def __init__(
        self,
        version: int,
        name: str,
        root_url: str = "",
        *,
        with_rows: bool = False,
        with_lines: bool = False,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
    ) -> None:
        self.lines: list[Line] | None = [] if with_lines else None
        self._commit = Commit(version)
        self._rows = RowTally() if with_rows else None
        self._decoder = LineDecoder(name, memory_bytes)
        self._root_url = root_url
        self._is_first = True

    def feed(self, chunk: bytes) -> None:
        """Scan the next slice."""
        self._commit.size_bytes += len(chunk)
        self.take(self._decoder.feed(chunk))

    def whole(self, body: bytes) -> Commit:
        """Scan a body in memory and return the commit.

        Raises:
            CorruptLogError, TornCommitError: As `finish`.
        """
        for chunk in slices(body):
            self.feed(chunk)
        return self.finish()

    def finish(self) -> Commit:
        """Return the commit.

        Raises:
            CorruptLogError, TornCommitError: As `LineDecoder`; or it has two metadata or protocol
                actions.
        """
        self.take(self._decoder.finish())
        if self._rows is not None:
            self._commit.rows_added = self._rows.added
            self._commit.rows_removed = self._rows.removed
        return self._commit

    @property
    def commit(self) -> Commit:
        """The commit so far."""
        return self._commit

    def take(self, lines: list[Line]) -> None:
        """Add decoded lines to the commit."""
        commit = self._commit
        if self.lines is not None:
            self.lines.extend(lines)
        for line in lines:
            if (action := line.add) is not None:
                key, path_key = self._keys(action)
                commit.added_keys.append(key)
                commit.added_sizes.append(action.size or 0)
                commit.added_paths.append(path_key)
                commit.added.count(action)
                if self._rows is not None:
                    self._rows.take_add(action, path_key)
                if action.deletion_vector is not None:
                    commit.vector_keys.append(key)
                    commit.vector_rows.append(cardinality(action.deletion_vector.cardinality))
                    commit.vector_paths.append(path_key)
                if action.data_change:
                    commit.data_added.count(action)
            elif (action := line.remove) is not None:
                key, path_key = self._keys(action)
                commit.removed_keys.append(key)
                commit.removed_paths.append(path_key)
                commit.removed.count(action)
                if self._rows is not None:
                    self._rows.take_remove(action, path_key)
                if action.data_change:
                    commit.data_removed.count(action)
            else:
                self._take_other(line)
            self._is_first = False
        commit.pack()

    def _keys(self, action: FileAction) -> tuple[int, int]:
        path_key = file_key(action.path, None, self._root_url)
        if action.deletion_vector is None:
            return path_key, path_key
        self._commit.has_vectors = True
        return file_key(action.path, action.deletion_vector.unique_id, self._root_url), path_key

    def _take_other(self, line: Line) -> None:
        commit = self._commit
        if line.cdc is not None:
            commit.change_files.count(line.cdc)
        elif line.txn is not None:
            commit.transactions.append(line.txn)
        elif line.domain_metadata is not None:
            commit.domain_metadata.append(line.domain_metadata)
        elif line.meta_data is not None:
            self._once(commit.metadata, "metaData")
            commit.metadata = line.meta_data
        elif line.protocol is not None:
            self._once(commit.protocol, "protocol")
            commit.protocol = line.protocol
        elif line.commit_info and line.commit_info != _NULL:
            commit.info_json = bytes(line.commit_info)
            commit.is_info_first = self._is_first

    def _once(self, seen: object, action: str) -> None:
        if seen is not None:
            raise CorruptLogError(
                f"{self._decoder.name} has two {action} actions, which the protocol forbids.",
                remedy="The writer is broken: restore the log entry from a backup.",
            )


def scan_commit(version: int, name: str, body: bytes, root_url: str = "") -> Commit:
    """Scan a body in memory."""
    return CommitScan(version, name, root_url).whole(body)


# Protocol: PROTOCOL.md#per-file-statistics


class RowTally:
    """Counts physical rows, including deleted ones, so that a new deletion vector changes nothing.

    Attributes:
        added: Rows in the files of `add` actions; None if one lacks statistics.
    """

    def __init__(self) -> None:
        self.added: int | None = 0
        self._removed = 0
        self._of_marked: dict[int, int] = {}
        self._uncounted: list[int] = []

    @property
    def removed(self) -> int | None:
        """Rows in the files of `remove` actions; None if those of one are not known.

        Writers omit statistics from removes; for one that is paired with an `add` of the same path,
        the rows of the `add` are used.
        """
        paired = [self._of_marked.get(key) for key in self._uncounted]
        known = [rows for rows in paired if rows is not None]
        return None if len(known) < len(paired) else self._removed + sum(known)

    def take_add(self, action: FileAction, path_key: int) -> None:
        """Count an `add`."""
        rows = read_num_records(action)
        if rows is None or self.added is None:
            self.added = None
        else:
            self.added += rows
        if rows is not None and action.deletion_vector is not None:
            self._of_marked[path_key] = rows

    def take_remove(self, action: FileAction, path_key: int) -> None:
        """Count a `remove`."""
        rows = read_num_records(action)
        if rows is None:
            self._uncounted.append(path_key)
        else:
            self._removed += rows


# Protocol: PROTOCOL.md#delta-log-entries


class WholeLines:
    """Buffers a line until it is complete.

    Args:
        name: File name for error messages.
        memory_bytes: Memory for reading.
    """

    def __init__(self, name: str, memory_bytes: int) -> None:
        self._name = name
        self._memory_bytes = memory_bytes
        # Pieces are joined once: joining at every chunk would be quadratic in their number.
        self._pieces: list[bytes] = []
        self._held_bytes = 0

    @property
    def has_rest(self) -> bool:
        """Whether more than white space is buffered."""
        return any(piece.strip() for piece in self._pieces)

    def feed(self, chunk: bytes) -> bytes:
        """Return every line completed by `chunk`; empty if there is none.

        Raises:
            CorruptLogError: A too long line has NUL bytes: its data was never written.
            TooLargeError: A line does not fit the memory.
        """
        cut = chunk.rfind(b"\n") + 1
        if not cut:
            self._hold(chunk)
            return b""
        if cut == len(chunk) and not self._pieces:
            return chunk
        whole = b"".join((*self._pieces, chunk[:cut]))
        self._pieces, self._held_bytes = [], 0
        self._hold(chunk[cut:])
        return whole

    def rest(self) -> bytes:
        """Return the buffered bytes and clear the buffer."""
        rest = b"".join(self._pieces)
        self._pieces, self._held_bytes = [], 0
        return rest

    def _hold(self, piece: bytes) -> None:
        if not piece:
            return
        self._pieces.append(piece)
        self._held_bytes += len(piece)
        if self._held_bytes <= largest_piece_bytes(self._memory_bytes):
            return
        has_nuls = b"\0" in self._pieces[0]
        # Free the memory now: a traceback of the error keeps this object alive.
        self._pieces.clear()
        if has_nuls:
            # JSON has no NUL bytes; file systems show them for data that never reached the disk.
            raise CorruptLogError(
                f"{self._name} has NUL bytes where actions of the Delta protocol should be, because"
                " it was damaged or never written whole.",
                remedy="Restore the file from a backup.",
            )
        raise TooLargeError.within(
            self._memory_bytes, f"A line of {self._name} has more than {self._held_bytes >> 20} MiB"
        )
