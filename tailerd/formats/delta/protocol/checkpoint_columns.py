"""The columns of a checkpoint file, and its rows of non-file actions.

Protocol: PROTOCOL.md#checkpoint-schema, #checkpoint-metadata, #sidecar-file-information
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from tailerd.errors import BugError, CorruptLogError, LogChangedError
from tailerd.formats.delta.protocol.actions import UNREADABLE, Metadata, Protocol
from tailerd.formats.delta.protocol.checkpoint import PROBES
from tailerd.formats.delta.protocol.checkpoint_form import (
    OTHER_TYPES,
    TEXT_MAP,
    CheckpointForm,
    Types,
    inferred_type,
    merged_type,
)
from tailerd.formats.delta.protocol.full_actions import FullLine, JsonObject
from tailerd.formats.delta.protocol.snapshot import Snapshot

_V2_TYPES: dict[str, Types] = {
    "checkpointMetadata": {"version": pa.int64(), "tags": TEXT_MAP},
    "sidecar": {
        "path": pa.string(),
        "sizeInBytes": pa.int64(),
        "modificationTime": pa.int64(),
        "tags": TEXT_MAP,
    },
}

STATISTICS = (
    "add.path",
    "add.stats",
    "add.stats_parsed.numRecords",
    "remove.path",
    *PROBES.values(),
)
"""Leaves that show whether a row group has rows of a kind, and whether it may be copied."""

DICTIONARIES = tuple(
    f"{kind}.partitionValues.key_value.{part}"
    for kind in ("add", "remove")
    for part in ("key", "value")
)
"""Leaves whose values repeat."""


class CheckpointColumns:
    """The schema of one checkpoint file, and batches of it.

    Args:
        form: Of the file actions.
        others: All other actions of the file; None for a file without them.
        has_files: Whether the file has columns of file actions.
    """

    def __init__(
        self, form: CheckpointForm, others: Sequence[StateAction] | None, *, has_files: bool = True
    ) -> None:
        columns: dict[str, pa.DataType] = {}
        if has_files:
            columns |= {"add": form.add_type, "remove": form.remove_type}
        self._others = list(others or ())
        if others is not None:
            kinds = dict(OTHER_TYPES)
            if any(kind in _V2_TYPES for kind, _ in self._others):
                kinds |= _V2_TYPES
            columns |= {kind: self._make_type(kind, types) for kind, types in kinds.items()}
        self.schema = pa.schema(columns)

    def _make_type(self, kind: str, known: Types) -> pa.StructType:
        members = dict(known)
        for body in self._bodies(kind):
            for name, value in body.items():
                if name not in known and value is not None:
                    members[name] = merged_type(members.get(name), inferred_type(value))
        return pa.struct(list(members.items()))

    def _bodies(self, kind: str) -> Iterable[dict[str, Any]]:
        return (body for name, body in self._others if name == kind)

    def others_batch(self) -> pa.RecordBatch:
        """Return the non-file actions, one per row.

        Raises:
            CorruptLogError: One does not have the shape of its kind.
        """
        columns = []
        for column in self.schema:
            bodies = [body if kind == column.name else None for kind, body in self._others]
            try:
                columns.append(pa.array(bodies, column.type))
            except (pa.ArrowException, TypeError, OverflowError) as error:
                raise CorruptLogError(
                    f"A {column.name} action does not fit a checkpoint: {error}.",
                    remedy="The writer of that log entry is broken; no checkpoint is written.",
                ) from error
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def blank_batch(self, rows: int) -> pa.RecordBatch:
        """Return `add` actions in which only `dataChange` is set, to false."""
        kind = self.schema.field("add").type
        members = [
            pa.repeat(False, rows) if item.name == "dataChange" else pa.nulls(rows, item.type)
            for item in kind
        ]
        return self.files_batch("add", pa.StructArray.from_arrays(members, fields=list(kind)))

    def files_batch(self, kind: str, column: pa.StructArray) -> pa.RecordBatch:
        """Return `add` or `remove` actions, one per row."""
        columns = [
            column if item.name == kind else pa.nulls(len(column), item.type)
            for item in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


# Protocol: PROTOCOL.md#action-reconciliation

StateAction = tuple[str, JsonObject]
"""Name and body of an action."""


class OtherActions:
    """Reconciles protocol, metadata, transactions and domains; later actions replace earlier ones.

    Unknown fields are kept.
    """

    def __init__(self) -> None:
        self._protocol: JsonObject = {}
        self._metadata: JsonObject = {}
        self._transactions: dict[str, JsonObject] = {}
        self._domains: dict[str, JsonObject] = {}

    def take(self, kind: str, body: JsonObject) -> None:
        """Apply the next action, in the order of the log."""
        match kind:
            case "protocol":
                self._protocol = body
            case "metaData":
                self._metadata = body
            case "txn":
                self._transactions[str(body["appId"])] = body
            case "domainMetadata":
                self._domains[str(body["domain"])] = body
            case _:
                raise BugError(f"{kind} is not an action of a state.")

    def take_lines(self, lines: Iterable[FullLine]) -> None:
        """Apply the non-file actions of lines."""
        for line in lines:
            if (other := line.other) is not None:
                self.take(*other)

    def select_for_checkpoint(
        self, transactions_after_ms: int | None = None
    ) -> Iterator[StateAction]:
        """Yield the actions for a checkpoint, without removed domains and expired transactions.

        Args:
            transactions_after_ms: Transactions last updated at or before this time expired; None
                keeps all, and those without a time are always kept.
        """
        yield "protocol", self._protocol
        yield "metaData", self._metadata
        for transaction in self._transactions.values():
            time = transaction.get("lastUpdated")
            if transactions_after_ms is None or time is None or time > transactions_after_ms:
                yield "txn", transaction
        for domain in self._domains.values():
            if not domain.get("removed"):
                yield "domainMetadata", domain

    def check_is(self, snapshot: Snapshot) -> None:
        """Compare with a snapshot of the same version that was replayed independently.

        Raises:
            LogChangedError: They differ, so the log changed in between.
        """
        try:
            same = (
                msgspec.convert(_no_nulls(self._protocol), Protocol) == snapshot.state.protocol
                and msgspec.convert(_no_nulls(self._metadata), Metadata) == snapshot.state.metadata
                and self._transactions.keys() == snapshot.transactions.keys()
                and {name for name, body in self._domains.items() if not body.get("removed")}
                == snapshot.domain_metadata.keys()
            )
        except UNREADABLE:
            same = False
        if not same:
            raise LogChangedError(
                f"The log of version {snapshot.version} was read twice with different results: it"
                " changed in between.",
                remedy="Run the command again.",
            )


def collect_applications(actions: Iterable[StateAction]) -> frozenset[str]:
    """Return the applications whose transactions are among the actions."""
    return frozenset(str(body["appId"]) for kind, body in actions if kind == "txn")


def _no_nulls(body: JsonObject) -> JsonObject:
    return {key: value for key, value in body.items() if value is not None}
