"""Plans the tasks whose rows are the difference of two versions of a table."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tailerd.changefeed.change_task import ChangeSourceKind, ChangeType
from tailerd.formats.lance.payload import (
    ChangedColumns,
    ComparedFragments,
    FragmentRows,
    Payload,
    TableVersion,
    encode_offsets,
)
from tailerd.formats.lance.protocol.columns import ROW_ID, Column, columns_schema, find_sources
from tailerd.formats.lance.protocol.commit_plan import (
    Difference,
    difference,
    is_only_rearranged,
    may_be_rearranged,
)
from tailerd.formats.lance.protocol.fragments import Fragment
from tailerd.formats.lance.protocol.manifest import Manifest
from tailerd.formats.lance.protocol.transactions import Operation
from tailerd.formats.lance.protocol.version_names import VERSIONS_FOLDER
from tailerd.formats.lance.table_files import TableFiles
from tailerd.formats.lance.version_log import VersionLog
from tailerd.formats.plain_schema import encode_schema
from tailerd.rows.hash_kernels import Rows

MAX_COMPARED_FRAGMENTS = 50_000
"""Maximum fragments of a commit that are compared; a larger one is read without comparison."""


class Comparison(enum.StrEnum):
    """How updates of a commit are found; the value is saved in offsets inside a commit."""

    NONE = "f"
    ROW_IDS = "r"
    """By stable ids, if the table has them."""
    KEY = "k"
    """By columns that the user named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTask:
    """The content of one task; `change` and `kind` as in `ChangeTask`."""

    change: ChangeType | None
    kind: ChangeSourceKind
    payload: Payload
    size_bytes: int
    rows: int | None = None

    @property
    def schema(self) -> bytes:
        """The columns of the rows."""
        return self.payload.schema

    @property
    def files(self) -> tuple[str, ...]:
        """URLs of the data files."""
        return self.payload.files


@dataclass(frozen=True, slots=True)
class _Version:
    """A manifest, its columns, and those of the emitted rows.

    Attributes:
        given: The columns of the rows, of this version or a later one.
        siblings: All columns of that version.
    """

    manifest: Manifest
    columns: Sequence[Column]
    given: Sequence[Column]
    siblings: Sequence[Column]


class LancePlanner:
    """Plans the tasks of one table.

    Args:
        columns: Returns which of a version's columns are read; None for all.
        key: Key columns by which a delete and an insert are paired to an update; empty for none.
    """

    def __init__(
        self,
        log: VersionLog,
        files: TableFiles,
        url: str,
        *,
        columns: Callable[[Iterable[str]], Sequence[str] | None],
        key: Sequence[str],
    ) -> None:
        self._log = log
        self._files = files
        self._url = url
        self._columns = columns
        self._key = tuple(key)

    def snapshot(self, manifest: Manifest) -> list[PlannedTask]:
        """Return a task for each fragment, in order."""
        version = self._version(manifest)
        kind = ChangeSourceKind.SNAPSHOT
        fragments = [manifest.parse(each) for each in manifest.fragments]
        self._files.check(manifest, fragments)
        return [
            _whole(ChangeType.INSERT, kind, self._rows(version, fragment)) for fragment in fragments
        ]

    async def commit(
        self, before: Manifest | None, after: Manifest, comparison: Comparison
    ) -> list[PlannedTask]:
        """Return the tasks of a commit: deletes, then updates in place, then inserts.

        Args:
            before: The version before; None for the first.

        Raises:
            TableError: Its changes cannot be determined.
        """
        found = self._difference(before, after)
        operation = Operation.UNKNOWN
        if found.may_be_rearranged:
            operation = await self._log.operation(after)
            if is_only_rearranged(found, operation):
                found = replace(found, removed=(), added=())
        parts = await self._parts(found, before, after)
        key = self._pairing(found, parts, before, after, comparison, operation)
        if key is None:
            return parts.apart()
        return parts.plan_comparison(key, encode_schema(self._schema(after)))

    async def net(self, before: Manifest | None, after: Manifest) -> list[PlannedTask]:
        """Return the tasks of the difference of two versions, as one step.

        Raises:
            TableError: The difference cannot be determined.
        """
        found = self._difference(before, after)
        parts = await self._parts(found, before, after, is_one_schema=True)
        key = self._key or ((ROW_ID,) if _have_row_ids(before, after) else ())
        first = 0 if before is None else before.version
        tasks = parts.plan_comparison(
            key, encode_schema(self._schema(after)), prefix=f"net-{first}."
        )
        return [replace(task, kind=ChangeSourceKind.NET) for task in tasks]

    def _difference(self, before: Manifest | None, after: Manifest) -> Difference:
        found = difference(before, after, self._log.columns(before), self._log.columns(after))
        self._files.check(after, [*found.added, *(each.after for each in found.retained)])
        if before is not None:
            self._files.check(before, [*found.removed, *(each.before for each in found.retained)])
        return found

    def _pairing(
        self,
        found: Difference,
        parts: _Parts,
        before: Manifest | None,
        after: Manifest,
        comparison: Comparison,
        operation: Operation,
    ) -> tuple[str, ...] | None:
        """Return the key for comparing rows, which may be empty; None: they are not compared."""
        is_few = len(parts.deletes) + len(parts.inserts) <= MAX_COMPARED_FRAGMENTS
        is_both = bool(parts.deletes and parts.inserts) and is_few
        if not is_both or self._log.columns(before) != self._log.columns(after):
            return None
        if comparison is Comparison.KEY:
            names = {each.name for each in self._log.columns(after)}
            return self._key if set(self._key) <= names else None
        if may_be_rearranged(found, operation):
            return ()
        is_new_rows = operation is Operation.OVERWRITE
        if comparison is Comparison.ROW_IDS and _have_row_ids(before, after) and not is_new_rows:
            return (ROW_ID,)
        return None

    async def _parts(
        self,
        found: Difference,
        before: Manifest | None,
        after: Manifest,
        *,
        is_one_schema: bool = False,
    ) -> _Parts:
        new = self._version(after)
        old = None
        if before is not None:
            columns = self._log.columns(before)
            is_same = columns == new.columns
            is_new = is_same or is_one_schema
            given = new.given if is_new else self._readable(columns)
            old = _Version(before, columns, given, new.columns if is_new else columns)
        parts = _Parts()
        if old is not None:
            parts.deletes += [
                _whole(ChangeType.DELETE, ChangeSourceKind.FILES, self._rows(old, fragment))
                for fragment in found.removed
            ]
            await self._plan_retained(found, old, new, parts)
        parts.inserts += [
            _whole(ChangeType.INSERT, ChangeSourceKind.FILES, self._rows(new, fragment))
            for fragment in found.added
        ]
        return parts

    async def _plan_retained(
        self, found: Difference, old: _Version, new: _Version, parts: _Parts
    ) -> None:
        """Plan the differences of fragments that are in both versions."""
        for retained in found.retained:
            names = {each.id: each.name for each in new.given}
            changed = tuple(names[each] for each in retained.changed if each in names)
            if changed:
                before = _Version(old.manifest, old.columns, new.given, new.columns)
                payload = ChangedColumns(
                    before=self._rows(before, retained.before),
                    after=self._rows(new, retained.after),
                    changed=changed,
                )
                size = retained.before.size_bytes + retained.after.size_bytes
                parts.updates.append(
                    PlannedTask(
                        change=None, kind=ChangeSourceKind.ROWS, payload=payload, size_bytes=size
                    )
                )
        differing = [each for each in found.retained if each.deletions_differ]
        were = await self._files.deleted_rows(
            [(old.manifest, each.before.deletions) for each in differing]
        )
        are = await self._files.deleted_rows(
            [(new.manifest, each.after.deletions) for each in differing]
        )
        for retained, was, now in zip(differing, were, are, strict=True):
            gone, back = np.setdiff1d(now, was, True), np.setdiff1d(was, now, True)
            if len(gone):
                rows = self._rows(old, retained.before, gone)
                parts.deletes.append(_whole(ChangeType.DELETE, ChangeSourceKind.VECTORS, rows))
            if len(back):
                rows = self._rows(new, retained.after, back)
                parts.inserts.append(_whole(ChangeType.INSERT, ChangeSourceKind.VECTORS, rows))

    def _rows(
        self, version: _Version, fragment: Fragment, offsets: Rows | None = None
    ) -> FragmentRows:
        manifest = version.manifest
        name = self._log.manifest_name(manifest.version)
        return FragmentRows(
            table=TableVersion(
                url=self._url,
                version=manifest.version,
                manifest=f"{self._url}/{VERSIONS_FOLDER}/{name}",
                identity=manifest.identity,
            ),
            fragment=fragment.id,
            files=tuple(self._files.data_url(manifest, file) for file in fragment.files),
            is_legacy=fragment.is_legacy,
            live_rows=fragment.live_rows,
            size_bytes=fragment.size_bytes,
            schema=encode_schema(columns_schema(version.given)),
            sources=find_sources(version.given, version.siblings, version.columns),
            has_blobs=any(each.is_blob for each in version.columns),
            offsets=None if offsets is None else encode_offsets(offsets),
        )

    def _version(self, manifest: Manifest) -> _Version:
        columns = self._log.columns(manifest)
        return _Version(manifest, columns, self._readable(columns), columns)

    def _readable(self, columns: Sequence[Column]) -> Sequence[Column]:
        """Return the columns of rows: all, except unreadable ones that are not requested.

        Raises:
            UnsupportedFeatureError: A requested one cannot be read.
        """
        columns_schema(columns, self._columns(each.name for each in columns))
        return [each for each in columns if each.type is not None]

    def _schema(self, manifest: Manifest) -> pa.Schema:
        return columns_schema(self._version(manifest).given)


class _Parts:
    """The tasks of one step by kind."""

    def __init__(self) -> None:
        self.deletes: list[PlannedTask] = []
        self.updates: list[PlannedTask] = []
        self.inserts: list[PlannedTask] = []

    def apart(self) -> list[PlannedTask]:
        """Return deletes, updates in place, inserts."""
        return [*self.deletes, *self.updates, *self.inserts]

    def plan_comparison(
        self, key: tuple[str, ...], schema: bytes, prefix: str = ""
    ) -> list[PlannedTask]:
        """Return one task that compares rows, with updates in place between its two sides."""
        updates = [
            replace(each, payload=replace(each.payload, prefix=prefix))
            for each in self.updates
            if isinstance(each.payload, ChangedColumns)
        ]
        if not self.deletes and not self.inserts:
            return updates
        removed, added = (
            tuple(each.payload for each in tasks if isinstance(each.payload, FragmentRows))
            for tasks in (self.deletes, self.inserts)
        )
        payload = ComparedFragments(
            removed=removed,
            added=added,
            schema=schema,
            updates=tuple(
                each.payload for each in updates if isinstance(each.payload, ChangedColumns)
            ),
            key=key,
            prefix=prefix,
        )
        size = sum(each.size_bytes for each in (*self.deletes, *updates, *self.inserts))
        task = PlannedTask(
            change=None, kind=ChangeSourceKind.ROWS, payload=payload, size_bytes=size
        )
        return [task]


def _whole(change: ChangeType, kind: ChangeSourceKind, rows: FragmentRows) -> PlannedTask:
    return PlannedTask(
        change=change, kind=kind, payload=rows, size_bytes=rows.requested_bytes, rows=rows.rows
    )


def _have_row_ids(before: Manifest | None, after: Manifest) -> bool:
    return before is not None and before.has_stable_row_ids and after.has_stable_row_ids
