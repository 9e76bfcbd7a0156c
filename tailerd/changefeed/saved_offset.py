"""The state of a pipeline that is saved between two runs, and the store for it.

It contains the offset and its context: the pipeline, the table's id, the schema of
the version before it, the ids of the topics that were written, and the change mode, because
positions count the tasks of one mode. A saved offset guarantees that all before it is delivered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, runtime_checkable

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.offset import Offset, Phase
from tailerd.changefeed.pipeline_identity import UNKNOWN_PIPELINE, PipelineIdentity
from tailerd.errors import OffsetError

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Where the rows begin whose replay is the table.

    Attributes:
        offset: The first offset that was saved, or the last one that a gap or a reset led to.
        has_earlier_rows: Rows from before a gap or a reset may exist; a replay leaves them out.
    """

    offset: Offset
    has_earlier_rows: bool = False

    def after_reset(self, before: Offset, to: Offset) -> Beginning:
        """Return the beginning after an operator moved the offset from `before` to `to`."""
        first = self.offset
        # The snapshot of a version includes its commit, so it comes after the start of the commit.
        is_kept = (
            to.table_id == before.table_id
            and to.phase is Phase.FOLLOW
            and not before.is_before(to)
            and first.version + (first.phase is Phase.SNAPSHOT) <= to.version
        )
        return self if is_kept else Beginning(offset=to, has_earlier_rows=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedOffset:
    """The saved state of one pipeline.

    Attributes:
        offset: Everything before it is delivered.
        changes: The change mode in which its position was counted.
        schema_id: `TableIdentity.schema_id` of the last version before the offset; empty if it was
            not known.
        identity: The pipeline that saved it.
        epoch: Incremented at each start of the pipeline, from 1; 0 before the first start.
        topics: Kafka's id of each topic that was written; a topic that was deleted and created
            again has another one.
        beginning: Where the delivered rows begin, for `verify`.
        key_types: Types of the key columns when the first rows were delivered, as text.
        view: Digest of the view of the table that is delivered; empty for the table itself.
    """

    offset: Offset
    changes: ChangeMode
    schema_id: str = ""
    identity: PipelineIdentity = UNKNOWN_PIPELINE
    epoch: int = 0
    topics: Mapping[str, str] = field(default_factory=dict)
    beginning: Beginning | None = None
    key_types: Mapping[str, str] = field(default_factory=dict)
    view: str = ""

    def to_json(self) -> str:
        """Return the stable text form, one line."""
        begins = self.beginning
        return json.dumps(
            {
                "format": FORMAT,
                "pipeline": asdict(self.identity),
                "epoch": self.epoch,
                "table_id": self.offset.table_id,
                "schema_id": self.schema_id,
                "changes": self.changes.value,
                "offset": json.loads(self.offset.to_json()),
                "topics": dict(self.topics),
                "begins": None if begins is None else json.loads(begins.offset.to_json()),
                "has_earlier_rows": begins is not None and begins.has_earlier_rows,
                "key_types": dict(self.key_types),
                "view": self.view,
            }
        )

    @classmethod
    def from_json(cls, text: str | bytes, *, location: str, fix: str) -> SavedOffset:
        """Read what `to_json` wrote.

        Args:
            text: The stored text.
            location: Where it was found, for errors: `The offset file /state/offsets/orders.json`.
            fix: Remedy for a damaged one, for errors.

        Raises:
            OffsetError: It is damaged, or another release wrote it.
        """
        try:
            fields = json.loads(text)
            found = fields["format"]
            if found == FORMAT:
                return cls._from_fields(fields)
        except (
            *(ValueError, KeyError, TypeError, AttributeError),
            *(OverflowError, RecursionError),
        ) as error:
            raise OffsetError(
                f"{location} is damaged: {error!r}. It may have been cut off or edited.", remedy=fix
            ) from error
        except OffsetError as error:
            raise error.restate(f"{location}: {error.message}", remedy=fix) from error
        raise OffsetError(
            f"{location} has format {found!r}, this release reads {FORMAT}, because another tailerd"
            " wrote it.",
            remedy=f"Run that release. {fix}",
        )

    @classmethod
    def _from_fields(cls, fields: Mapping[str, Any]) -> SavedOffset:
        begins = fields["begins"]
        return cls(
            offset=Offset.from_json(json.dumps(fields["offset"])),
            changes=ChangeMode(fields["changes"]),
            schema_id=str(fields["schema_id"]),
            identity=PipelineIdentity(**require_texts(fields["pipeline"])),
            epoch=int(fields["epoch"]),
            topics=require_texts(fields["topics"]),
            beginning=begins
            and Beginning(
                offset=Offset.from_json(json.dumps(begins)),
                has_earlier_rows=bool(fields["has_earlier_rows"]),
            ),
            key_types=require_texts(fields["key_types"]),
            view=str(fields["view"]),
        )


class OffsetStore(Protocol):
    """Keeps one `SavedOffset` for each pipeline, by its configured name.

    Raises `OffsetError` for damaged content, and the errors of the location otherwise. One process
    uses a store at a time; calls for different pipelines may run concurrently.
    """

    async def load(self, pipeline: str) -> SavedOffset | None:
        """Return the last saved offset; None if there was none yet."""
        ...

    async def save(self, pipeline: str, saved: SavedOffset) -> None:
        """Save durably: after a crash `load` returns `saved`, or the value saved before it."""
        ...


@runtime_checkable
class SupportsIdentities(Protocol):
    """A store shared by several daemons, with offsets keyed by full identity. Optional."""

    async def load_former(self, identity: PipelineIdentity) -> SavedOffset | None:
        """Return the last offset saved under another identity; None if there is none."""
        ...


def require_texts(fields: Mapping[str, object]) -> dict[str, str]:
    """Return the values of a JSON object as texts; `AttributeError` if it is not an object."""
    return {str(name): str(text) for name, text in fields.items()}
