"""Writes V2 checkpoints by the tasks of an engine, for tables too large for one process.

The driver collects non-file actions and lists the files of the log; file actions are exchanged
between tasks by key range. So the driver needs memory for the names of sidecars and for the keys
that commits changed, but not for the table.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa

from tailerd.clock import Clock, SystemClock
from tailerd.errors import LogChangedError, TailerdError
from tailerd.formats.delta.log.checkpoint_basis import (
    CheckpointBasis,
    check_has_sidecars,
    check_readable_checkpoint,
    choose_basis,
)
from tailerd.formats.delta.log.checkpoint_entries import expired_removes, remove_keys
from tailerd.formats.delta.log.log_folder import LogFolder
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.log.log_writer import CheckpointResult, LogWriter
from tailerd.formats.delta.log.parquet_rows import CheckpointFile
from tailerd.formats.delta.log.v2_manifest import (
    ManifestContents,
    ManifestKind,
    named_sidecars,
    withdraw_sidecars,
    write_manifest,
)
from tailerd.formats.delta.maintenance.distributed.actions import present, read_lines
from tailerd.formats.delta.maintenance.distributed.ranges import (
    WrittenSidecar,
    read_pieces,
    write_range,
)
from tailerd.formats.delta.maintenance.distributed.request import (
    LogSplit,
    commit_splits,
    part_splits,
)
from tailerd.formats.delta.protocol.checkpoint import IDENTITY_COLUMNS, PROBES, plain_row
from tailerd.formats.delta.protocol.checkpoint_columns import OtherActions, StateAction
from tailerd.formats.delta.protocol.checkpoint_form import CheckpointForm, ExtraColumns, merged_type
from tailerd.formats.delta.protocol.file_key import KeyArray
from tailerd.formats.delta.protocol.full_actions import OTHER_KINDS
from tailerd.formats.delta.protocol.log_path import LogFile, LogFileKind, checksum_name
from tailerd.formats.delta.protocol.sidecar import SIDECAR_FILES, SidecarPlan, StoredPart
from tailerd.formats.delta.protocol.snapshot import Snapshot
from tailerd.formats.delta.protocol.version_checksum import parse_version_checksum
from tailerd.formats.maintenance import TaskExecutor

KEYS_BYTES = 2 * 1024**3
"""Maximum bytes of commits whose keys the driver collects; above, no sidecar is reused."""


@dataclass(slots=True)
class _Plan:
    """The driver's state of one checkpoint being written."""

    snapshot: Snapshot
    basis: CheckpointBasis
    others: OtherActions = field(default_factory=OtherActions)
    form: CheckpointForm | None = None
    reused: tuple[StoredPart, ...] = ()
    splits: list[LogSplit] = field(default_factory=list)
    actions: int = 0


class DistributedCheckpoints:
    """Writes V2 checkpoints of one table. Used by one task at a time.

    Args:
        executor: Runs the tasks; its workers can access the table.
        reader: The table's log, in a store that workers can open.
        clock: Determines which files have expired.
    """

    def __init__(
        self, executor: TaskExecutor, reader: LogReader, *, clock: Clock | None = None
    ) -> None:
        self._executor = executor
        self._reader = reader
        self._log = LogFolder(reader.store, reader.root)
        self._clock: Clock = clock or SystemClock()
        self._writer = LogWriter(reader, clock=self._clock)

    async def write(self, snapshot: Snapshot, manifest: ManifestKind = "json") -> CheckpointResult:
        """Write a checkpoint of a published version; its snapshot needs no files.

        Raises:
            UnsupportedFeatureError: The table has no V2 checkpoints, or requires an unsupported
                writer feature.
            MissingVersionError, FileMissingError: Commits of the snapshot are missing from the log.
            CorruptLogError: The log is damaged.
            LogChangedError: It changed meanwhile, or was replaced by that of another table.
            StorageError: A file cannot be written; nothing visible to readers is left.
            EngineError: The engine failed.
        """
        basis = await choose_basis(self._log, snapshot, self._clock.now_ms())
        if basis.existing:
            check_readable_checkpoint(self._log, basis.existing)
            return CheckpointResult(version=snapshot.version, outcome="already_there")
        check_has_sidecars(snapshot.state)
        plan = _Plan(snapshot, basis)
        await self._assessment(plan)
        written = await self._move(plan)
        try:
            await self._check_complete(plan, written)
        except TailerdError as error:
            await withdraw_sidecars(self._log, [each.file for each in written], error)
            raise
        return await self._finish(plan, written, manifest)

    # ------------------------------------------------------------------ assessment

    async def _assessment(self, plan: _Plan) -> None:
        """Collect everything except the file actions, and decide which sidecars are reused."""
        parts, sidecars = await self._checkpoint_files(plan.snapshot)
        commit_bytes = sum(file.size_bytes for file in plan.basis.commits)
        may_reuse = bool(sidecars) and commit_bytes <= KEYS_BYTES
        splits = [
            *(LogSplit(files=(file,)) for file in parts),
            *commit_splits(plan.basis.commits),
        ]
        assess = partial(assessment, self._log, with_keys=may_reuse)
        found = await self._executor.map(splits, assess)
        for each in found:
            for kind, body in each.others:
                plan.others.take(kind, body)
        plan.others.check_is(plan.snapshot)
        rewritten = sidecars
        if may_reuse:
            keys = [each.keys for each in found if each.split.files[0] not in parts]
            changed = np.unique(np.concatenate([np.empty(0, np.uint64), *keys]))
            rewritten = await self._choose(plan, sidecars, changed)
        described = [LogSplit(files=(file,)) for file in rewritten]
        found += await self._executor.map(
            described, partial(assessment, self._log, with_keys=False)
        )
        # Unknown fields of reused sidecars need no column in new ones.
        extras = merged_extras(found)
        plan.form = CheckpointForm.from_state(plan.snapshot.state, extras.adds, extras.removes)
        plan.actions = sum(each.actions for each in found)
        plan.splits = [split for each in found for split in _make_splits(each)]

    async def _checkpoint_files(self, snapshot: Snapshot) -> tuple[list[LogFile], list[LogFile]]:
        """Return the files of the previous checkpoint, and its sidecars."""
        found = [file for file, _ in snapshot.checkpoint_files]
        parts = [file for file in found if file.kind is not LogFileKind.SIDECAR]
        sidecars: dict[str, LogFile] = {}
        for file in parts:
            for sidecar in await named_sidecars(self._log, file):
                sidecars[sidecar.name] = sidecar
        return parts, list(sidecars.values())

    async def _choose(
        self, plan: _Plan, sidecars: Sequence[LogFile], changed: KeyArray
    ) -> list[LogFile]:
        """Decide which sidecars are reused; return the others."""
        read = partial(_stored_part, self._log, plan.basis.removed_after_ms)
        parts = await self._executor.map_with(changed, sidecars, read)
        chosen = SidecarPlan.decide(parts)
        plan.reused = chosen.reused
        return [part.file for part in chosen.rewritten]

    # ------------------------------------------------------------------ moving

    async def _move(self, plan: _Plan) -> list[WrittenSidecar]:
        """Write the sidecars in tasks."""
        log, form, version = self._log, plan.form, plan.snapshot.version
        assert form is not None
        cutoff, ranges = plan.basis.removed_after_ms, max(1, -(-plan.actions // SIDECAR_FILES))
        return await self._executor.map_by_range(
            plan.splits,
            partial(read_pieces, log, form=form, ranges=ranges),
            ranges,
            partial(write_range, log, form=form, version=version, cutoff_ms=cutoff),
        )

    # ------------------------------------------------------------------ finishing

    async def _check_complete(self, plan: _Plan, written: Iterable[WrittenSidecar]) -> None:
        """Compare the number of files with the version's checksum, if it has one.

        Raises:
            LogChangedError: The numbers differ.
        """
        if not plan.basis.has_checksum:
            return
        body = await self._log.store.get(f"{self._log.path}/{checksum_name(plan.snapshot.version)}")
        checksum = parse_version_checksum(body)
        adds = sum(part.adds or 0 for part in plan.reused) + sum(each.adds for each in written)
        if checksum is not None and checksum.num_files not in (None, adds):
            raise LogChangedError(
                f"Version {plan.snapshot.version} has {checksum.num_files} files by its checksum,"
                f" and {adds} were found for its checkpoint, which was not written.",
                remedy="Run the command again; if it says so again, the checksum or the log is"
                " damaged.",
            )

    async def _finish(
        self, plan: _Plan, written: Sequence[WrittenSidecar], kind: ManifestKind
    ) -> CheckpointResult:
        assert plan.form is not None
        assert plan.basis.published is not None
        version, reused = plan.snapshot.version, [part.file for part in plan.reused]
        contents = ManifestContents(
            version=version,
            published=plan.basis.published,
            others=plan.others.select_for_checkpoint(plan.basis.transactions_after_ms),
            reused=reused,
            new=[each.file for each in written],
        )
        manifest = await write_manifest(self._log, contents, uuid.uuid4, kind=kind, form=plan.form)
        adds = sum(part.adds or 0 for part in plan.reused) + sum(each.adds for each in written)
        removes = sum(part.removes or 0 for part in plan.reused)
        removes += sum(each.removes for each in written)
        new_bytes = sum(each.file.size_bytes for each in written)
        is_hinted = await self._writer.write_hint(
            version,
            manifest.actions + adds + removes,
            manifest.size_bytes + new_bytes + sum(file.size_bytes for file in reused),
            adds,
        )
        return CheckpointResult(
            version=version,
            outcome="written",
            files=(manifest.name, *(each.file.name for each in written)),
            size_bytes=manifest.size_bytes + new_bytes,
            reused_files=tuple(file.name for file in reused),
            add_files=adds,
            is_hinted=is_hinted,
        )


def _make_splits(found: ScannedSplit) -> list[LogSplit]:
    if found.split.is_json:
        return [found.split]
    return part_splits(found.split.files[0], found.group_rows)


def _stored_part(
    log: LogFolder, removed_after_ms: int, file: LogFile, changed: KeyArray
) -> StoredPart:
    return stored_part(log, file, changed, removed_after_ms)


_BATCH_ROWS = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedSplit:
    """Actions and figures that a task collected from its files.

    Attributes:
        others: Non-file actions, in the order of the log.
        extra_adds, extra_removes: Types of unknown fields of file actions.
        keys: Of all file actions of commits; empty if not requested.
        actions: Maximum number of file actions.
        group_rows: Rows of each row group of a Parquet file.
    """

    split: LogSplit
    others: tuple[StateAction, ...] = ()
    extra_adds: dict[str, pa.DataType] = field(default_factory=dict)
    extra_removes: dict[str, pa.DataType] = field(default_factory=dict)
    keys: KeyArray = field(default_factory=lambda: np.empty(0, np.uint64))
    actions: int = 0
    group_rows: tuple[int, ...] = ()


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
        for lines in read_lines(log, file):
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
    with CheckpointFile.open(log, file) as rows:
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
        group_rows=counts,
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
    with CheckpointFile.open(log, file) as rows:
        adds, removes = rows.count_values("add.path"), rows.count_values("remove.path")
        touched_adds = sum(
            _count_touched(log, column, changed) for column in _select_keys(rows, "add")
        )
        touched_removes = expired = 0
        for column in _select_keys(rows, "remove"):
            touched_removes += _count_touched(log, column, changed)
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


def _select_keys(rows: CheckpointFile, kind: str) -> Iterator[pa.StructArray]:
    """Yield the key columns of the actions of a kind, and the times of removes."""
    if rows.column_type(kind) is None:
        return
    leaves = [leaf.replace("add.", f"{kind}.", 1) for leaf in IDENTITY_COLUMNS]
    for batch in rows.rows((*leaves, f"{kind}.deletionTimestamp"), _BATCH_ROWS):
        column, _ = present(batch.column(kind), np.empty(batch.num_rows, np.int64))
        if len(column):
            yield column


def _count_touched(log: LogFolder, column: pa.StructArray, changed: KeyArray) -> int:
    return int(np.isin(remove_keys(column, log.url), changed).sum())
