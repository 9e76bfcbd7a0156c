"""Checks that a saved offset still belongs to this table, by identities saved with the offset."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.gap import Gap
from tailerd.changefeed.offset import Offset, Version
from tailerd.changefeed.pipeline_identity import UNKNOWN_PIPELINE, PipelineIdentity
from tailerd.changefeed.saved_offset import Beginning, OffsetStore, SavedOffset, SupportsIdentities
from tailerd.errors import (
    OffsetError,
    TableRecreatedError,
    TopicRecreatedError,
    TransformsChangedError,
)
from tailerd.formats.base import ChangeSource, TableIdentity
from tailerd.pipeline.claim import PipelineClaim, check_same
from tailerd.records.record_keys import check_key_types, key_types
from tailerd.remedies import CONFIG_FILE, reset_command
from tailerd.sinks.base import GapTaker, HasSchemas, HasTopics, Keyed, RecordsDeliveries, Sink

_MAX_SAVED_TOPICS = 500
"""Topics whose ids are saved with each offset, the newest; the pipeline's record has all."""


class PipelineOffsets:
    """Loads and saves the offset of one pipeline, with the identities of its table and topics.

    Attributes:
        epoch: Number of this start of the pipeline, once it has begun.
        reset_gap: The gap of a reset that no daemon has reported yet; empty if there is none.
    """

    def __init__(
        self,
        store: OffsetStore,
        table: str,
        changes: ChangeMode,
        *,
        identity: PipelineIdentity = UNKNOWN_PIPELINE,
        sink: Sink | None = None,
        claim: PipelineClaim | None = None,
        view: str = "",
    ) -> None:
        """Initialize; nothing is read yet.

        Args:
            store: Where offsets are kept.
            table: Configured name of the table.
            changes: The change mode that positions in offsets refer to.
            identity: The pipeline's; the sink supplies the cluster.
            sink: The one that delivers.
            claim: The pipeline's name in the state; None if no state records it.
            view: Digest of the view that is delivered.
        """
        self.epoch = 0
        self.reset_gap: Mapping[str, str] = {}
        self._store = store
        self._table = table
        self._changes = changes
        self._identity = identity
        self._sink = sink
        self._topics: HasTopics | None = None
        if isinstance(sink, HasTopics):
            self._topics = sink
        self._claim = claim
        self._view = view
        self._has_begun = False
        self._noted: tuple[Mapping[str, str], Mapping[str, str]] = {}, {}
        self._last: Offset | None = None
        self._beginning: Beginning | None = None
        self._key: Sequence[str] = ()
        if isinstance(sink, Keyed):
            self._key = sink.key
        self._key_types: Mapping[str, str] = {}
        self._checked_schema = ""

    @property
    def first(self) -> Offset | None:
        """The first offset, or the last one that a gap or a reset led to; None before `load`."""
        return None if self._beginning is None else self._beginning.offset

    async def load(self) -> SavedOffset | None:
        """Return the last saved offset, of any pipeline; later saves have at least its epoch."""
        saved = await self._store.load(self._table)
        if saved is not None:
            self.epoch = max(self.epoch, saved.epoch)
            self._last, self._beginning = saved.offset, saved.beginning
            self._key_types, self._checked_schema = saved.key_types, ""
        return saved

    async def load_delivered(self) -> Offset | None:
        """Return the offset up to which this pipeline delivered, as far as that is known.

        The sink may know more than the state: that of a state which was lost, or is an old copy.

        Raises:
            TailerdError: The cluster or the sink's location cannot be read.
        """
        identity, saved = await self.identity(), None
        with suppress(OffsetError):
            saved = await self.load()
        start = None if saved is None or saved.identity != identity else saved.offset
        if isinstance(self._sink, RecordsDeliveries):
            return await self._sink.find_delivered(start)
        return start

    async def load_former(self, identity: PipelineIdentity) -> SavedOffset | None:
        """Return the last saved offset of a pipeline that the state has recorded."""
        if isinstance(self._store, SupportsIdentities) and identity.cluster:
            return await self._store.load_former(identity)
        return await self.load()

    async def claim(self) -> bool:
        """Check that no other pipeline of this name is recorded; return whether this one is.

        Raises:
            PipelineReboundError: Another one is.
            TailerdError: The state cannot be read, or the cluster cannot be reached.
        """
        identity = await self.identity()
        known = None if self._claim is None else await self._claim.check(identity)
        self.reset_gap = {} if known is None else known.gap
        if known is not None and self._topics is not None:
            self._topics.expect(known.topics)
        if known is not None and isinstance(self._sink, HasSchemas):
            self._sink.learn_schemas(known.schemas)
        return known is not None

    async def resume(self, *, is_known: bool, source: ChangeSource) -> SavedOffset | None:
        """Return the saved offset, checked, under the epoch of this start; None for a new pipeline.

        Args:
            is_known: What `claim` returned.
            source: Of the table.

        Raises:
            PipelineReboundError, TableRecreatedError, TopicRecreatedError, OffsetError: It must not
                be resumed from.
            TailerdError: It cannot be read or written.
        """
        epoch = self.epoch
        saved = await self.load()
        if saved is None:
            if is_known and self._sink is not None and self._sink.offsets is not None:
                raise self._lost()
            self.epoch, self._has_begun = max(self.epoch, 1), True
            return None
        check_same(saved.identity, self._identity)
        if saved.view != self._view:
            raise TransformsChangedError(
                f"{self._table} delivered other columns, rows or values until now: columns, rename,"
                " where, mask, unchanged or commits have changed.",
                remedy=f"To deliver all rows again, {reset_command(self._table)}. To go on from"
                f" here with the new ones, run `tailerd offsets accept {shlex.quote(self._table)}"
                f" --config {CONFIG_FILE}`. Or set them back.",
            )
        # Before the sink is used: its offset and rows may be of another table.
        await check_identity(self._table, saved, self._changes, source)
        if self._topics is not None:
            self._topics.expect(saved.topics)
        if not self._has_begun or saved.epoch != epoch:
            raised = replace(saved, epoch=saved.epoch + 1)
            await self._store.save(self._table, raised)
            self.epoch, self._has_begun = raised.epoch, True
        return saved

    async def note(self) -> None:
        """Record the pipeline, which has an offset, its topics and its schemas in the state."""
        if self._claim is not None:
            self._noted = self._known_topics, self._known_schemas
            await self._claim.note(self._identity, *self._noted)

    async def note_changes(self) -> None:
        """Record topics and schemas that the sink uses for the first time."""
        if (self._known_topics, self._known_schemas) != self._noted:
            await self.note()

    async def make_saved(self, offset: Offset, source: ChangeSource) -> SavedOffset:
        """Return an offset with the identities to save with it.

        Raises:
            TableRecreatedError: It is an offset of another table than the source reads.
            SchemaChangedError: A key column has another type than in the first delivered rows.
        """
        identity = await source.identity(offset.last_version(source))
        if identity.table_id != offset.table_id and self._last is not None:
            # A table may get another id within its log, but then the log still has the earlier one.
            await _check_table(self._table, self._last, source)
        await self._check_key(offset.last_version(source), identity.schema_id, source)
        self._last = replace(offset, table_id=identity.table_id)
        self._beginning = self._beginning or Beginning(offset=self._last)
        return SavedOffset(
            offset=self._last,
            changes=self._changes,
            schema_id=identity.schema_id,
            identity=self._identity,
            epoch=self.epoch,
            topics=dict(islice(reversed(self._known_topics.items()), _MAX_SAVED_TOPICS)),
            beginning=self._beginning,
            key_types=self._key_types,
            view=self._view,
        )

    async def _check_key(self, version: Version, schema_id: str, source: ChangeSource) -> None:
        """Check the types of the key columns, once for each schema."""
        if not self._key or not schema_id or schema_id == self._checked_schema:
            return
        types = key_types(await source.schema_at(version), self._key)
        check_key_types(self._table, self._key_types, types)
        self._key_types = {**types, **self._key_types}
        self._checked_schema = schema_id

    async def save(self, offset: Offset, source: ChangeSource) -> None:
        """Save an offset.

        Raises:
            TableRecreatedError: It is an offset of another table than the source reads.
            TailerdError: It could not be saved.
        """
        await self._store.save(self._table, await self.make_saved(offset, source))

    async def save_after_gap(self, offset: Offset, source: ChangeSource) -> None:
        """Save the offset after a gap, where the rows begin that can be compared with the table.

        Raises:
            TailerdError: It could not be saved.
        """
        self._beginning = Beginning(offset=offset, has_earlier_rows=True)
        await self.save(offset, source)

    async def begin_at(self, offset: Offset, source: ChangeSource, gap: Gap | None = None) -> None:
        """Save an offset that an operator chose; topics are accepted as found at the next start.

        Args:
            gap: Recorded in the sink first: a crash in between leaves the offset before it.

        Raises:
            TailerdError: It could not be saved.
        """
        if isinstance(self._sink, RecordsDeliveries):
            await self._sink.accept(offset)
        await self.identity()
        if gap is not None and isinstance(self._sink, GapTaker):
            await self._sink.note_gap(gap)
        with suppress(OffsetError):
            # A damaged offset is replaced; a readable one shows the last epoch.
            await self.load()
        if self._beginning is not None and self._last is not None:
            self._beginning = self._beginning.after_reset(self._last, offset)
        # An operator chose to deliver again, where a key column may have another type.
        self._key_types, self._checked_schema = {}, ""
        await self._store.save(
            self._table, replace(await self.make_saved(offset, source), topics={})
        )

    async def accept_view(self) -> SavedOffset:
        """Save the present view with the offset, which stays; return it.

        Raises:
            OffsetError: No offset is saved yet.
            TailerdError: It cannot be read or saved.
        """
        await self.identity()
        saved = await self.load()
        if saved is None:
            raise OffsetError(f"No offset of {self._table} is saved yet.", remedy="Start it.")
        # The key may have other types under other masks, and rows before it another form.
        beginning = Beginning(offset=saved.offset, has_earlier_rows=True)
        accepted = replace(saved, view=self._view, key_types={}, beginning=beginning)
        await self._store.save(self._table, accepted)
        return accepted

    async def rebind(self, former: PipelineIdentity, store: OffsetStore) -> SavedOffset:
        """Save the offset of a former identity under the present one; return it.

        Args:
            former: The former identity of the pipeline.
            kept: The offsets of the state, where the former pipeline may have kept its own.

        Raises:
            OffsetError: It is neither among the sink's offsets nor in the state.
            TailerdError: It cannot be read or saved.
        """
        identity = await self.identity()
        saved = None
        if isinstance(self._store, SupportsIdentities):
            saved = await self._store.load_former(former)
        if saved is None:
            saved = await store.load(self._table)
        if saved is None:
            raise OffsetError(
                f"The offset of {former} is neither where the sink keeps offsets now nor in the"
                " state.",
                remedy="Copy the topic of offsets to the new cluster; or"
                f" {reset_command(self._table, 'VERSION')}.",
            )
        rebound = replace(saved, identity=identity, topics={}, epoch=saved.epoch + 1)
        await self._store.save(self._table, rebound)
        return rebound

    async def identity(self) -> PipelineIdentity:
        """Return the pipeline's identity, with the cluster that its sink is connected to.

        Raises:
            SinkError: The cluster cannot be reached.
        """
        if self._topics is not None:
            cluster = await self._topics.cluster_id()
            self._identity = replace(self._identity, cluster=cluster)
        return self._identity

    @property
    def _known_topics(self) -> dict[str, str]:
        return {} if self._topics is None else dict(self._topics.topics)

    @property
    def _known_schemas(self) -> Mapping[str, str]:
        if isinstance(self._sink, HasSchemas):
            return self._sink.schemas
        return {}

    def _lost(self) -> TopicRecreatedError:
        return TopicRecreatedError(
            f"The sink has no offset of {self._table} any more, although this state"
            " recorded one: the topic or folder with the offset was deleted, or is another one.",
            remedy=f"{reset_command(self._table)}; or give a version as --to if you know how far"
            " rows were delivered.",
        )


async def check_identity(
    table: str, saved: SavedOffset, changes: ChangeMode, source: ChangeSource
) -> None:
    """Check that the table is still the one that the saved offset refers to.

    Raises:
        OffsetError: It counts in another change mode.
        TableRecreatedError: The table was replaced, or its log before the offset differs.
    """
    if saved.changes is not changes:
        raise OffsetError(
            f"The saved offset of {table} counts changes {saved.changes.value!r}, but the"
            f" configuration now says {changes.value!r}: positions differ.",
            remedy=f"Set changes back, or {reset_command(table)}.",
        )
    identity = await _check_table(table, saved.offset, source)
    if saved.schema_id and identity.schema_id and saved.schema_id != identity.schema_id:
        raise TableRecreatedError(
            f"Version {saved.offset.last_version(source)} of {source.name} has another schema than"
            f" when {table} delivered it, under the same table id: the log was rewritten or"
            " restored from a copy.",
            remedy=_begin_again(table),
        )


async def _check_table(table: str, offset: Offset, source: ChangeSource) -> TableIdentity:
    """Check that an offset is of the log that `source` reads; return the table's identity there.

    Raises:
        TableRecreatedError: It is not.
    """
    identity = await source.identity(offset.last_version(source))
    if identity.table_id != offset.table_id:
        raise TableRecreatedError(
            f"The saved offset of {table} belongs to table {offset.table_id}, and the log of"
            f" {source.name} now has table {identity.table_id} there: it was dropped and created"
            " again.",
            remedy=_begin_again(table),
        )
    return identity


def _begin_again(table: str) -> str:
    return (
        f"{reset_command(table)}. If another daemon delivers that table to the same location, give"
        " this one its own `name`."
    )
