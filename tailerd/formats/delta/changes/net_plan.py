"""Keeps the plan of a net change across restarts while it is delivered.

Its two versions may be removed from the log while their difference is delivered. The plan names the
data files that only one of them has, so that only these files must still exist.

Protocol: PROTOCOL.md#metadata-cleanup
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from tailerd.changefeed.change_task import TaskGroup
from tailerd.changefeed.offset import Offset
from tailerd.formats.delta.changes.snapshot_files import Spool
from tailerd.formats.delta.protocol.data_file import DataFile, TableSchema
from tailerd.formats.delta.protocol.data_path import DataPaths
from tailerd.formats.delta.protocol.rewritten_files import (
    RewrittenFiles,
    rewritten_files,
    with_files,
)

FORMAT = 1
_NO_SCHEMA = TableSchema("")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetPlan:
    """One difference of two versions.

    Attributes:
        group: Has its one task; none if no row differs.
        schema: Of the rows.
    """

    group: TaskGroup
    schema: TableSchema


class _StoredPlan(msgspec.Struct, kw_only=True):
    """The serialised form, with the schema of many files only once.

    Attributes:
        group: Its task has no payload.
        payload: Its files have no schemas.
        removed_schema: Of the removed files; the added ones have that of the rows.
    """

    format: int
    group: TaskGroup
    schema: TableSchema
    payload: RewrittenFiles | None
    removed_schema: TableSchema


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_StoredPlan)


class NetPlanFile:
    """Stores the plan of one pipeline's step next to its snapshots' file lists.

    Args:
        spool: Stores it; None: a plan can be rebuilt only while the log has its versions.
        paths: Of the table: a stored plan must not name a file outside it.
    """

    def __init__(self, spool: Spool | None, paths: DataPaths) -> None:
        self._spool = spool
        self._paths = paths

    async def find(self, start: Offset, end: Offset) -> NetPlan | None:
        """Return the plan of [start, end); None if none was saved, or it is damaged.

        Raises:
            StorageError: It cannot be read at present.
            PathOutsideTableError: It names a file that the table may not reference.
        """
        if self._spool is None:
            return None
        body = await self._spool.find_plan(_name(start, end))
        try:
            stored = None if body is None else _decoder.decode(body)
        except (msgspec.MsgspecError, ValueError):
            # The step is planned again, if the log still has both versions.
            return None
        if stored is None or stored.format != FORMAT:
            return None
        if (stored.group.start, stored.group.end) != (start, end):
            return None
        return NetPlan(group=self._group(stored), schema=stored.schema)

    async def keep(self, plan: NetPlan) -> None:
        """Save a plan; earlier ones are removed when their step is delivered.

        Raises:
            StorageError, StateInUseError: It cannot be written.
        """
        if self._spool is None:
            return
        removed = [file for task in plan.group.tasks for file in rewritten_files(task).removed]
        bare = [with_files(task, _without_schema) for task in plan.group.tasks]
        stored = _StoredPlan(
            format=FORMAT,
            group=replace(plan.group, tasks=tuple(replace(task, payload=None) for task in bare)),
            schema=plan.schema,
            payload=rewritten_files(bare[0]) if bare else None,
            removed_schema=removed[0].schema if removed else _NO_SCHEMA,
        )
        name = _name(plan.group.start, plan.group.end)
        await self._spool.write_plan(name, _encoder.encode(stored))

    def _group(self, stored: _StoredPlan) -> TaskGroup:
        payload = stored.payload
        if payload is None:
            return stored.group
        for location in _locations(payload):
            self._paths.resolve(location.replace("%", "%25"))
        removed, added = (
            tuple(replace(file, schema=schema) for file in files)
            for files, schema in (
                (payload.removed, stored.removed_schema),
                (payload.added, stored.schema),
            )
        )
        found = replace(payload, removed=removed, added=added)
        tasks = tuple(replace(task, payload=found) for task in stored.group.tasks)
        return replace(stored.group, tasks=tasks)


def _name(start: Offset, end: Offset) -> str:
    return f"net-{start.version}-{end.version}.plan"


def _without_schema(file: DataFile) -> DataFile:
    return replace(file, schema=_NO_SCHEMA)


def _locations(payload: RewrittenFiles) -> Iterator[str]:
    for file in (*payload.removed, *payload.added):
        yield file.url
        for vector in (file.rows.include, file.rows.exclude):
            if vector is not None and vector.url:
                yield vector.url
