"""Collects what the driver needs before file actions are moved: the non-file actions of a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tailerd.formats.delta.log.checkpoint_entries import expired_removes, remove_keys
from tailerd.formats.delta.log.log_folder import LogFolder
from tailerd.formats.delta.log.parquet_rows import CheckpointFile
from tailerd.formats.delta.maintenance.distributed.actions import lines_of, present
from tailerd.formats.delta.maintenance.distributed.splits import LogSplit
from tailerd.formats.delta.protocol.checkpoint import IDENTITY_COLUMNS, PROBES, plain_row
from tailerd.formats.delta.protocol.checkpoint_form import ExtraColumns, merged_type
from tailerd.formats.delta.protocol.file_key import KeyArray
from tailerd.formats.delta.protocol.full_actions import OTHER_KINDS
from tailerd.formats.delta.protocol.log_path import LogFile, LogFileKind
from tailerd.formats.delta.protocol.other_actions import StateAction
from tailerd.formats.delta.protocol.sidecar_plan import StoredPart

_BATCH_ROWS = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedSplit:
    """What a task collected from its files.

    Attributes:
        others: Non-file actions, in the order of the log.
        extra_adds, extra_removes: Types of unknown fields of file actions.
        keys: Of all file actions of commits; empty if not requested.
        actions: Maximum number of file actions.
        rows_of_groups: Rows of each row group of a Parquet file.
    """

    split: LogSplit
    others: tuple[StateAction, ...] = ()
    extra_adds: dict[str, pa.DataType] = field(default_factory=dict)
    extra_removes: dict[str, pa.DataType] = field(default_factory=dict)
    keys: KeyArray = field(default_factory=lambda: np.empty(0, np.uint64))
    actions: int = 0
    rows_of_groups: tuple[int, ...] = ()


def assessment(log: LogFolder, split: LogSplit, *, with_keys: bool) -> ScannedSplit:
    """Scan the files of a split.

    Raises:
        CorruptLogError, FileMissingError: The log is damaged, or changes meanwhile.
    """
    if split.is_json:
        return _scan_json(log, split, with_keys=with_keys)
    return _scan_parquet(log, split)


def _scan_json(log: LogFolder, split: LogSplit, *, with_keys: bool) -> ScannedSplit:
    extras, others = ExtraColumns(), list[StateAction]()
    keys: list[int] = []
    actions = 0
    for file in split.files:
        for lines in lines_of(log, file):
            for line in lines:
                for kind, row in (("add", line.add), ("remove", line.remove)):
                    if row is not None:
                        extras.take_row(kind, row)
                        actions += 1
                        if with_keys:
                            keys.append(row.key(log.url))
                if (other := line.other) is not None:
                    others.append(other)
    return ScannedSplit(
        split=split,
        others=tuple(others),
        extra_adds=extras.adds,
        extra_removes=extras.removes,
        keys=np.unique(np.array(keys, np.uint64)),
        actions=actions,
    )


def _scan_parquet(log: LogFolder, split: LogSplit) -> ScannedSplit:
    [file] = split.files
    extras, others = ExtraColumns(), list[StateAction]()
    with CheckpointFile.of(log, file) as rows:
        for kind in ("add", "remove"):
            if (column := rows.column_type(kind)) is not None:
                extras.take_column(kind, column)
        if file.kind is not LogFileKind.SIDECAR:
            for batch in rows.rows_with(OTHER_KINDS, [PROBES[kind] for kind in OTHER_KINDS]):
                for kind in batch.schema.names:
                    for row in batch.column(kind).drop_null().to_pylist():
                        others.append((kind, plain_row(row)))
        counts = rows.rows_by_group()
    return ScannedSplit(
        split=split,
        others=tuple(others),
        extra_adds=extras.adds,
        extra_removes=extras.removes,
        actions=sum(counts),
        rows_of_groups=counts,
    )


def merged_extras(found: Sequence[ScannedSplit]) -> ExtraColumns:
    """Return types for the unknown fields of all files."""
    extras = ExtraColumns()
    for each in found:
        for known, new in ((extras.adds, each.extra_adds), (extras.removes, each.extra_removes)):
            for name, kind in new.items():
                known[name] = merged_type(known.get(name), kind)
    return extras


def stored_part(
    log: LogFolder, file: LogFile, changed: KeyArray, removed_after_ms: int
) -> StoredPart:
    """Check which actions of a sidecar are still valid.

    Args:
        changed: Keys of all later file actions, ascending.
        removed_after_ms: Removes of files deleted at or before this time expired.

    Raises:
        CorruptLogError, FileMissingError: The sidecar is damaged or missing.
    """
    with CheckpointFile.of(log, file) as rows:
        adds, removes = rows.count_of("add.path"), rows.count_of("remove.path")
        touched_adds = sum(_touched(log, column, changed) for column in _keyed(rows, "add"))
        touched_removes = expired = 0
        for column in _keyed(rows, "remove"):
            touched_removes += _touched(log, column, changed)
            expired += int(expired_removes(column, removed_after_ms).sum())
        return StoredPart(
            file=file,
            first_row=0,
            rows=rows.num_rows,
            adds=adds,
            removes=removes,
            live_adds=(adds or 0) - touched_adds,
            has_sound_removes=not touched_removes and expired * 2 <= (removes or 0),
        )


def _keyed(rows: CheckpointFile, kind: str) -> Iterator[pa.StructArray]:
    """Yield the key columns of the actions of a kind, and the times of removes."""
    if rows.column_type(kind) is None:
        return
    leaves = [leaf.replace("add.", f"{kind}.", 1) for leaf in IDENTITY_COLUMNS]
    for batch in rows.rows((*leaves, f"{kind}.deletionTimestamp"), _BATCH_ROWS):
        column, _ = present(batch.column(kind), np.empty(batch.num_rows, np.int64))
        if len(column):
            yield column


def _touched(log: LogFolder, column: pa.StructArray, changed: KeyArray) -> int:
    return int(np.isin(remove_keys(column, log.url), changed).sum())
