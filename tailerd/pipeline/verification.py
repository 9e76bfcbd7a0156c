"""Verifies for an operator that the delivered records, replayed, equal the table row for row.

Delivered records are folded into a multiset of rows (an insert adds its row, a delete takes it
away) and compared with the snapshot of the version before the saved offset. Memory does not grow
with the table; only if something differs, some of the differing rows are kept as examples.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence, Set
from contextlib import aclosing
from dataclasses import dataclass, replace

from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT
from tailerd.changefeed.offset import BEFORE_ALL, Offset, Phase, Version
from tailerd.changefeed.row_multiset import Buckets, RowCounts, RowMultiset
from tailerd.changefeed.saved_offset import Beginning
from tailerd.errors import ConfigError, OffsetError
from tailerd.formats.base import ChangeSource, SupportsSkippedCommits
from tailerd.pipeline.change_stream import ChangeStream
from tailerd.records.base import ReadsBack
from tailerd.records.json import DecimalStyle, JsonEncoder
from tailerd.records.read_back import RowReader
from tailerd.registry import value_format as load_value_format
from tailerd.sinks.base import HoldsRows, Readable

EXAMPLES = 3
MAX_BUCKETS = 64
"""Number of differing buckets that are examined again: each has 1/65,536 of the rows."""

Rows = tuple[list[bytes], list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of the comparison.

    Attributes:
        version: The version whose snapshot was compared.
        start: Where the records begin; None where they begin with a snapshot.
        base: The version before, whose rows they were replayed on.
        is_equal: Whether both are the same, row for row; None if they cannot be compared.
        skipped_commits: Commits with row changes that the pipeline did not deliver. If there are
            any, nothing was compared. None if the log no longer has all commits.
        records: Number of change rows replayed.
        rows: Rows of the table.
        replayed: Rows that the replay leaves.
        missing, invented: Some rows of the table that the replay lacks, and vice versa.
        foreign: Columns in the records that the table does not have now.
    """

    version: Version
    start: Version | None
    base: Version | None
    is_equal: bool | None = None
    skipped_commits: int | None = 0
    records: int = 0
    rows: int = 0
    replayed: int = 0
    missing: tuple[str, ...] = ()
    invented: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()


class Verification:
    """Compares one pipeline's records with its table. `run` once."""

    def __init__(
        self,
        source: ChangeSource,
        sink: Readable,
        offset: Offset,
        beginning: Beginning,
        *,
        on_progress: Callable[[int], None],
        widened: Set[str] = frozenset(),
    ) -> None:
        """Initialize.

        Args:
            source: The table.
            sink: The delivered records.
            offset: Saved by the pipeline; records after it are left out.
            beginning: Where its records begin. Rows that existed before are read from the table.
            on_progress: Called with the number of rows looked at so far.
            widened: Columns in which floats became doubles.

        Raises:
            OffsetError: The first snapshot is still being delivered, or nothing is yet.
        """
        if offset.phase is Phase.SNAPSHOT:
            raise OffsetError(
                f"The first snapshot (version {offset.version}) is still being delivered, so there"
                " is nothing to compare yet.",
                remedy="Try again when `tailerd status` shows the pipeline as following.",
            )
        self._version = source.version_before(offset.version)
        if self._version == BEFORE_ALL:
            raise OffsetError("No version is delivered yet.", remedy="Try again later.")
        self._source = source
        self._sink = sink
        self._delivered = beginning.offset, offset
        self._table_id = offset.table_id
        self._is_mirror = isinstance(sink, HoldsRows) and sink.is_mirror
        self._start = None if self._is_mirror else _first_commit(beginning.offset, source)
        # Rows of a snapshot may have a lower version than it: commits of TileDB that come late.
        is_from_start = self._start is None and not beginning.has_earlier_rows
        self._from_version = BEFORE_ALL if is_from_start else beginning.offset.version
        self._on_progress = on_progress
        self._widened = widened
        self._seen = 0

    async def run(self) -> Verdict:
        """Compare.

        Raises:
            TailerdError: The table or the sink cannot be read; a version needed is gone.
        """
        skipped: int | None = 0
        if isinstance(self._source, SupportsSkippedCommits):
            skipped = await self._source.count_skipped(*self._delivered)
        start = self._start
        verdict = Verdict(
            version=self._version,
            start=start,
            base=None if start is None else self._source.version_before(start),
            skipped_commits=skipped,
        )
        if skipped:
            return verdict
        reader = await self._reader(self._sink.value_format)
        replayed, table = RowMultiset(), RowMultiset()
        records = 0
        async for rows, signs in self._read_delivered(reader):
            records += len(rows)
            replayed.add(rows, signs)
        async for rows, signs in self._base():
            replayed.add(rows, signs)
        async for rows, signs in self._snapshot(self._version):
            table.add(rows, signs)
        differing = table.differing(replayed)
        missing, invented = await self._differences(reader, differing[:MAX_BUCKETS])
        is_equal: bool | None = not len(differing)
        if not is_equal and skipped is None:
            is_equal = None
        return replace(
            verdict,
            records=records,
            rows=table.total,
            replayed=replayed.total,
            is_equal=is_equal,
            missing=missing,
            invented=invented,
            foreign=tuple(sorted(reader.foreign)),
        )

    async def _differences(
        self, reader: RowReader, buckets: Buckets
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if not len(buckets):
            return (), ()
        counts = RowCounts(buckets)
        async for rows, signs in self._read_delivered(reader):
            counts.add(rows, signs)
        async for rows, signs in self._base():
            counts.add(rows, signs)
        async for rows, signs in self._snapshot(self._version):
            counts.add(rows, [-sign for sign in signs])
        missing = sorted(row for row, count in counts.counts.items() if count < 0)
        invented = sorted(row for row, count in counts.counts.items() if count > 0)
        return _show_rows(missing), _show_rows(invented)

    async def _read_delivered(self, reader: RowReader) -> AsyncIterator[Rows]:
        async with aclosing(self._sink.read_back()) as records:
            async for values in records:
                rows, signs, versions = await asyncio.to_thread(reader.read, values)
                self._report(len(versions))
                if self._is_mirror:
                    self._check_offset(versions)
                    yield rows, signs
                    continue
                keep = [
                    index
                    for index, version in enumerate(versions)
                    if self._from_version <= version <= self._version
                ]
                yield [rows[index] for index in keep], [signs[index] for index in keep]

    def _check_offset(self, versions: Sequence[int]) -> None:
        if set(versions) - {self._delivered[1].version}:
            raise OffsetError(
                "The pipeline has delivered more commits meanwhile, and a mirror has only the last"
                " state.",
                remedy="Pause the pipeline with `tailerd pause NAME`, or try again.",
            )

    def _report(self, rows: int) -> None:
        self._seen += rows
        self._on_progress(self._seen)

    async def _reader(self, form: str) -> RowReader:
        value_format = load_value_format(form)
        if not isinstance(value_format, ReadsBack):
            raise ConfigError(
                f"Values of the format {form} cannot be read back, so they cannot be compared.",
                remedy="Verify pipelines whose values are json, debezium, avro, protobuf or"
                " json_schema.",
            )
        schema = await self._source.arrow_schema()
        return RowReader(
            schema,
            form,
            value_format.changes_in,
            self._widened,
            empty_is_null=self._sink.empty_is_null,
        )

    async def _base(self) -> AsyncIterator[Rows]:
        if self._start is not None:
            async for rows in self._snapshot(self._source.version_before(self._start)):
                yield rows

    async def _snapshot(self, version: Version) -> AsyncIterator[Rows]:
        reader = await self._reader("json")
        encoder = JsonEncoder(decimals=_decimals(self._sink))
        table_id = self._table_id
        if version != self._version:
            # Older versions of a replaced table have another id.
            table_id = (await self._source.identity(version)).table_id
        begin = Offset(table_id=table_id, version=version, phase=Phase.SNAPSHOT)
        stream = ChangeStream(
            self._source, begin, begin.after_version(self._source), limit=DEFAULT_BATCH_LIMIT
        )
        async with aclosing(stream.batches()) as batches:
            async for batch in batches:
                lines = await asyncio.to_thread(encoder.encode_lines, batch)
                rows, signs, versions = await asyncio.to_thread(reader.read, lines.splitlines())
                self._report(len(versions))
                yield rows, signs


def _first_commit(begin: Offset, source: ChangeSource) -> Version | None:
    """Return the first delivered commit; None if there were no rows before the first records."""
    is_whole = begin.phase is Phase.SNAPSHOT or source.version_before(begin.version) == BEFORE_ALL
    return None if is_whole else begin.version


def _show_rows(rows: Sequence[bytes]) -> tuple[str, ...]:
    return tuple(row.decode() for row in rows[:EXAMPLES])


def _decimals(sink: Readable) -> DecimalStyle:
    return "number" if sink.has_decimal_numbers else "string"
