"""Replays a log segment into a snapshot. Returns the files it needs and is fed; does no IO.

```python
replay = LogReplay(segment)
while not replay.done:
    for file in replay.next_files(limit):     # the shell fetches
        replay.feed_lines(file, chunks)       # or feed_rows(file, actions, files)
snapshot = replay.result()
```

Sidecars are further files to request. Commits may be requested ahead of those already fed.

Protocol: PROTOCOL.md#action-reconciliation, #checkpoints
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tailerd.changefeed.limits import DEFAULT_MEMORY_BYTES
from tailerd.errors import BugError, CorruptLogError
from tailerd.formats.delta.protocol.actions import DomainMetadata, Line, Transaction
from tailerd.formats.delta.protocol.checkpoint import checkpoint_files, other_actions
from tailerd.formats.delta.protocol.commit_file import Commit, CommitScan, decode_lines
from tailerd.formats.delta.protocol.file_index import CheckpointFiles, FileIndex
from tailerd.formats.delta.protocol.file_key import file_key
from tailerd.formats.delta.protocol.file_tally import cardinality
from tailerd.formats.delta.protocol.log_path import LogFile, LogFileKind
from tailerd.formats.delta.protocol.log_segment import LogSegment
from tailerd.formats.delta.protocol.sidecar import sidecar_file
from tailerd.formats.delta.protocol.snapshot import (
    Snapshot,
    TableState,
    first_state,
    merge_domains,
    merge_transactions,
)
from tailerd.remedies import KEEP_CHECKPOINT


@dataclass(slots=True)
class _CheckpointContent:
    """The content of the checkpoint's files fed so far."""

    actions: Commit
    files: list[CheckpointFiles] = field(default_factory=list)
    next_row: int = 0
    sidecars: list[LogFile] = field(default_factory=list)
    first_rows: list[tuple[LogFile, int]] = field(default_factory=list)


class LogReplay:
    """Replays one segment.

    Files are fed in the order in which `next_files` returned them, each once.

    Args:
        segment: The segment to replay.
        with_files: Whether to build the index of live files; without it, row groups of file
            actions need not be fed.
        root_url: The table's location, to recognise absolute paths below it.
        memory_bytes: Memory for reading a file.
    """

    def __init__(
        self,
        segment: LogSegment,
        *,
        with_files: bool = True,
        root_url: str = "",
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
    ) -> None:
        self._memory_bytes = memory_bytes
        self.segment = segment
        self.with_files = with_files
        self._root_url = root_url
        self._to_ask: deque[LogFile] = deque(segment.checkpoint)
        self._requested: deque[LogFile] = deque()
        self._commits: deque[LogFile] = deque(segment.ascending_commits)
        version = segment.checkpoint_version
        self._checkpoint = _CheckpointContent(Commit(-1 if version is None else version))
        self._is_checkpoint_open = bool(segment.checkpoint)
        self._version: int | None = None
        self._state: TableState | None = None
        self._transactions: Mapping[str, Transaction] = {}
        self._domains: Mapping[str, DomainMetadata] = {}
        self._files = FileIndex()

    @property
    def done(self) -> bool:
        """Whether every file was fed."""
        return not (self._to_ask or self._requested or self._commits)

    @property
    def is_checkpoint_open(self) -> bool:
        """Whether files of the checkpoint are still to be fed."""
        return self._is_checkpoint_open

    def next_files(self, limit: int, max_bytes: int | None = None) -> list[LogFile]:
        """Return files to fetch that were not returned before: at least one, if there are any.

        Empty while a checkpoint's files are still to be fed: they may reference sidecars.

        Args:
            limit: Maximum number of files.
            max_bytes: Maximum bytes in total; a larger file is returned alone.
        """
        if not self._to_ask and not self._is_checkpoint_open:
            self._to_ask, self._commits = self._commits, deque()
        files: list[LogFile] = []
        size = 0
        while self._to_ask and len(files) < limit:
            size += self._to_ask[0].size_bytes
            if files and max_bytes is not None and size > max_bytes:
                break
            files.append(self._to_ask.popleft())
        self._requested.extend(files)
        return files

    def feed_lines(self, file: LogFile, chunks: Iterable[bytes]) -> None:
        """Feed the body of a JSON file: a commit, a compaction or a V2 manifest.

        Raises:
            CorruptLogError, TornCommitError, UnsupportedFeatureError: The file cannot be used.
        """
        self._expect(file)
        if file.kind is LogFileKind.UUID_CHECKPOINT:
            self._feed_manifest(file, chunks)
            self._end_checkpoint_file()
            return
        scan = self.begin_commit(file)
        for chunk in chunks:
            scan.feed(chunk)
        self._apply(file, scan.finish())

    def begin_commit(self, file: LogFile) -> CommitScan:
        """Return a scan for a commit's slices, for a body too large for memory."""
        return CommitScan(
            file.end_version, file.name, self._root_url, memory_bytes=self._memory_bytes
        )

    def end_commit(self, file: LogFile, scan: CommitScan) -> None:
        """Feed a commit whose slices were all fed to `scan`.

        Raises:
            CorruptLogError, TornCommitError: As `feed_lines`.
        """
        self._expect(file)
        self._apply(file, scan.finish())

    def _apply(self, file: LogFile, commit: Commit) -> None:
        if self._version is not None and file.version != self._version + 1:
            raise BugError(f"Version {file.version} cannot follow version {self._version}.")
        self._files.apply(commit)
        self._merge(commit)

    def _merge(self, commit: Commit) -> None:
        if self._state is None:
            self._state = first_state(commit.version, commit.protocol, commit.metadata)
        else:
            self._state = self._state.after(commit)
        if commit.transactions:
            self._transactions = merge_transactions(self._transactions, commit)
        if commit.domain_metadata:
            self._domains = merge_domains(self._domains, commit)
        self._version = commit.version

    def feed_rows(
        self,
        file: LogFile,
        actions: Iterable[pa.RecordBatch],
        files: Iterable[pa.RecordBatch],
    ) -> None:
        """Feed a Parquet checkpoint, part or sidecar.

        Args:
            actions: Rows with the columns of `checkpoint.OTHER_ACTIONS`; rows without any such
                action may be omitted.
            files: All rows in order, with `checkpoint.KEY_COLUMNS`; empty without files.

        Raises:
            CorruptLogError: A row is not an action.
        """
        self._expect(file)
        content = self._checkpoint
        if file.kind is not LogFileKind.SIDECAR:
            for batch in actions:
                for line in other_actions(batch, file.name):
                    self._take(line)
        content.first_rows.append((file, content.next_row))
        for batch in files:
            content.files.append(checkpoint_files(batch, content.next_row, self._root_url))
            content.next_row += batch.num_rows
        self._end_checkpoint_file()

    def _end_checkpoint_file(self) -> None:
        if self._requested or self._to_ask:
            return
        content = self._checkpoint
        if content.sidecars:
            self._to_ask.extend(content.sidecars)
            content.sidecars.clear()
            return
        self._is_checkpoint_open = False
        self._files = FileIndex.from_checkpoint(content.actions.version, _taken_from(content.files))
        self._merge(content.actions)

    def _feed_manifest(self, file: LogFile, chunks: Iterable[bytes]) -> None:
        keys, sizes, rows = [], [], []
        vector_keys, vector_rows, vector_paths = [], [], []
        self._checkpoint.first_rows.append((file, self._checkpoint.next_row))
        for lines in decode_lines(file.name, chunks, self._memory_bytes):
            for line in lines:
                if line.add is not None:
                    vector = line.add.deletion_vector
                    name = None if vector is None else vector.unique_id
                    keys.append(file_key(line.add.path, name, self._root_url))
                    sizes.append(line.add.size or 0)
                    rows.append(self._checkpoint.next_row)
                    if vector is not None:
                        vector_keys.append(keys[-1])
                        vector_rows.append(cardinality(vector.cardinality))
                        vector_paths.append(file_key(line.add.path, None, self._root_url))
                else:
                    self._take(line)
                self._checkpoint.next_row += 1
        self._checkpoint.files.append(
            CheckpointFiles(
                keys=np.array(keys, np.uint64),
                sizes=np.array(sizes, np.int64),
                rows=np.array(rows, np.uint32),
                vector_keys=tuple(vector_keys),
                vector_rows=tuple(vector_rows),
                vector_paths=tuple(vector_paths),
            )
        )

    def _take(self, line: Line) -> None:
        actions = self._checkpoint.actions
        if line.meta_data is not None:
            actions.metadata = line.meta_data
        elif line.protocol is not None:
            actions.protocol = line.protocol
        elif line.txn is not None:
            actions.transactions.append(line.txn)
        elif line.domain_metadata is not None:
            actions.domain_metadata.append(line.domain_metadata)
        elif line.sidecar is not None and self.with_files:
            self._checkpoint.sidecars.append(sidecar_file(line.sidecar, actions.version))
        elif line.checkpoint_metadata is not None:
            stated_version = line.checkpoint_metadata.version
            if stated_version != actions.version:
                raise CorruptLogError(
                    f"The checkpoint of version {actions.version} says it is of version"
                    f" {stated_version}.",
                    remedy=KEEP_CHECKPOINT,
                )

    def _expect(self, file: LogFile) -> None:
        if not self._requested or self._requested[0] is not file:
            raise BugError(f"{file.name} was fed out of order.")
        self._requested.popleft()

    def result(self) -> Snapshot:
        """Return the snapshot.

        Raises:
            BugError: Not all files were fed.

        """
        if not self.done or self._state is None or self._version != self.segment.version:
            raise BugError("The replay's result was requested before its input was complete.")
        return Snapshot.from_replay(
            self._version,
            state=self._state,
            transactions=self._transactions,
            domain_metadata=self._domains,
            files=self._files if self.with_files else None,
            checkpoint_files=tuple(self._checkpoint.first_rows),
            compactions=self.segment.compactions,
        )


def _taken_from(files: list[CheckpointFiles]) -> Iterator[CheckpointFiles]:
    """Yield the parts in order and release each: together they are as large as the index."""
    files.reverse()
    while files:
        yield files.pop()
