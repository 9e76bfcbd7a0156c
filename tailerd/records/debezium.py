"""Encode Debezium's JSON envelope: `before`, `after`, `source`, `op` and the timestamps."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailerd import __version__
from tailerd.changefeed.change_batch import ChangeBatch, value_rows
from tailerd.changefeed.change_task import ChangeSourceKind
from tailerd.records.debezium_tables import describe_table
from tailerd.records.event_ids import newest_ids
from tailerd.records.json import DecimalStyle, is_small
from tailerd.records.json_columns import NULL, ColumnTexts, join_pieces, object_pieces
from tailerd.records.json_leaves import escaped_texts
from tailerd.records.json_rows import object_texts
from tailerd.records.json_text import quote_text, timestamp_text
from tailerd.records.record_parts import encode_in_parts, lines_in_parts
from tailerd.records.schema_changes import SchemaChange
from tailerd.records.update_pairs import NO_ROW, ChangePart, RowChanges, pair_rows


class DebeziumEncoder:
    """Writes changes like Debezium's JSON converter without schemas.

    `op` is `c` for an insert, `d` for a delete, `u` for an update with paired images, `r` for rows
    of a snapshot. `update_pairs` defines the pairing; unpaired images become `d` and `c`, as in
    Debezium's update of a primary key. So there may be fewer records than rows. Deletes come first;
    otherwise records are in the order of the rows.

    Args:
        name: Logical name of the server (`topic.prefix`).
        table: The table's name.
        db, schema: Names above the table; may be empty.
        table_id: `metaData.id`; omitted if empty.
        key: Columns that identify a row.
        decimals: As for `JsonEncoder`.
    """

    def __init__(
        self,
        *,
        name: str,
        table: str,
        db: str = "",
        schema: str = "",
        table_id: str = "",
        key: Sequence[str] = (),
        decimals: DecimalStyle = "string",
    ) -> None:
        self._names = (name, db, schema, table, table_id)
        self._key = tuple(key)
        self._quote_decimals = decimals == "string"

    def encode(self, batch: ChangeBatch, *, now_us: int | None = None) -> pa.Array:
        """Return one envelope per change.

        Args:
            batch: Rows of one commit; images are paired within it.
            now_us: Processing time, microseconds since the epoch, for the outer `ts_*`; None uses
                the commit's timestamp.

        Raises:
            ConfigError: A key column is not among the table's columns.
        """
        return self.encode_changes(batch, pair_rows(batch, self._key), now_us=now_us)

    def encode_changes(
        self,
        batch: ChangeBatch,
        changes: RowChanges,
        *,
        now_us: int | None = None,
        opening: str = "",
        closing: str = "",
    ) -> pa.Array:
        """Return one envelope per change, between `opening` and `closing`."""
        part = ChangePart(batch, changes)
        return encode_in_parts(part, lambda piece: self._texts(piece, now_us, closing, opening))

    def encode_lines(self, batch: ChangeBatch, *, now_us: int | None = None) -> bytes:
        r"""Return the envelopes as lines, each ended by `\n`."""
        part = ChangePart(batch, pair_rows(batch, self._key))
        return lines_in_parts(part, lambda piece: self._texts(piece, now_us, "\n"))

    def encode_schema(self, change: SchemaChange, *, now_us: int | None = None) -> str:
        """Return the value of a record of Debezium's schema change topic; `changes` is our own."""
        _, db, schema, table, _ = self._names
        source = self._source(change.version, change.timestamp_us, change.change_source)
        members = {
            "databaseName": db,
            "schemaName": schema or None,
            "ddl": None,
            "tableChanges": [describe_table(change, (db, schema, table), self._key)],
            "changes": [each.to_json() for each in change.changes],
        }
        times = _times(change.timestamp_us if now_us is None else now_us)
        text = json.dumps(members, ensure_ascii=False, separators=(",", ":"))
        return f'{{"source":{source},{times},{text[1:]}'

    def _texts(self, part: ChangePart, now_us: int | None, end: str, opening: str = "") -> pa.Array:
        batch, changes = part.batch, part.changes
        objects = self._objects(batch)
        now = batch.timestamp_us if now_us is None else now_us
        tail = f'",{_times(now)}}}{end}'
        pieces: list[str | ColumnTexts] = [
            opening + '{"before":',
            _images(objects, changes.before),
            ',"after":',
            _images(objects, changes.after),
            *self._source_pieces(part),
            ',"op":"',
            _operations(batch, changes),
            tail,
        ]
        return join_pieces(pieces, len(changes.before))

    def _objects(self, batch: ChangeBatch) -> pa.Array:
        rows = value_rows(batch.rows)
        fields = list(rows.schema)
        quote = self._quote_decimals
        if is_small(batch):
            bodies = object_texts(rows.columns, fields, rows.num_rows, quote_decimals=quote)
            return pa.array([f"{{{body}}}" for body in bodies], pa.string())
        pieces = object_pieces(rows.columns, fields, quote_decimals=quote)
        return join_pieces(["{", *pieces, "}"], rows.num_rows)

    def _source_pieces(self, part: ChangePart) -> list[str | ColumnTexts]:
        batch = part.batch
        source = self._source(batch.version, batch.timestamp_us, batch.change_source)
        constant = f',"source":{source}'
        ids = newest_ids(part.batch, part.changes.before, part.changes.after)
        if ids is None:
            return [constant]
        return [constant[:-1] + ',"sequence":"', ColumnTexts(array=escaped_texts(ids)), '"}']

    def _source(self, version: int, timestamp_us: int, kind: ChangeSourceKind) -> str:
        name, db, schema, table, table_id = map(quote_text, self._names)
        is_snapshot = kind is ChangeSourceKind.SNAPSHOT
        members = [
            f'"version":{quote_text(__version__)}',
            '"connector":"tailerd"',
            f'"name":{name}',
            _times(timestamp_us),
            f'"snapshot":"{"true" if is_snapshot else "false"}"',
            f'"db":{db}',
            f'"schema":{schema}',
            f'"table":{table}',
            *([f'"table_id":{table_id}'] if self._names[4] else []),
            f'"commit_version":{version}',
            f'"commit_timestamp":"{timestamp_text(timestamp_us)}"',
            f'"change_source":"{kind.value}"',
        ]
        return "{" + ",".join(members) + "}"


def _times(micros: int) -> str:
    return f'"ts_ms":{micros // 1000},"ts_us":{micros},"ts_ns":{micros * 1000}'


def _images(objects: pa.Array, rows: np.ndarray) -> str | ColumnTexts:
    """Return the objects of the given rows; a constant if no change has such an image."""
    is_missing = rows == NO_ROW
    if is_missing.all():
        return NULL
    if not is_missing.any() and len(rows) == len(objects) and bool((np.diff(rows) == 1).all()):
        return ColumnTexts(array=objects)
    return ColumnTexts(array=objects.take(pa.array(rows, mask=is_missing)))


def _operations(batch: ChangeBatch, changes: RowChanges) -> str | ColumnTexts:
    """Return `op` of each change; a constant if all are equal."""
    if batch.change_source is ChangeSourceKind.SNAPSHOT:
        return "r"
    has_before, has_after = changes.before != NO_ROW, changes.after != NO_ROW
    if not has_before.any():
        return "c"
    if not has_after.any():
        return "d"
    if (has_before & has_after).all():
        return "u"
    alone = pc.if_else(pa.array(has_before), "d", "c")
    return ColumnTexts(array=pc.if_else(pa.array(has_before & has_after), "u", alone))
