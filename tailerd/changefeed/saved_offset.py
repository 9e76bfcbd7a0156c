"""What is kept of a pipeline between two runs, wherever it is kept.

With the offset goes what it belongs to: the table's id (in the offset), the schema of the version
before it, and the change mode, because positions count the tasks of one mode. What is saved is a
promise: all before it is delivered.

Formats of the text: 1 lacks `schema_id`; 2 is written.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Protocol

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.offset import Offset
from tailerd.errors import OffsetError

FORMAT = 2
_READABLE = (1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedOffset:
    """What a store keeps of one pipeline.

    Attributes:
        offset: Everything before it is delivered.
        changes: The change mode it was counted in.
        schema_id: `TableIdentity.schema_id` of the last version before the offset; empty when it
            was not known.
    """

    offset: Offset
    changes: ChangeMode
    schema_id: str = ""

    def to_json(self, pipeline: str) -> str:
        """Return the stable text form, one line, with the name of the pipeline for people."""
        return json.dumps(
            {
                "format": FORMAT,
                "pipeline": pipeline,
                "table_id": self.offset.table_id,
                "schema_id": self.schema_id,
                "changes": self.changes.value,
                "offset": json.loads(self.offset.to_json()),
            }
        )

    @classmethod
    def from_json(cls, text: str | bytes, *, place: str, fix: str) -> SavedOffset:
        """Read what `to_json` wrote.

        Args:
            text: The stored text.
            place: Where it was found, for errors: `The offset file /state/offsets/orders.json`.
            fix: What mends a damaged one.

        Raises:
            OffsetError: It is damaged, or a newer release wrote it.
        """
        try:
            fields = json.loads(text)
            written_format = fields["format"]
            if written_format not in _READABLE:
                raise OffsetError(
                    f"{place} has format {written_format!r}, this release reads up to {FORMAT},"
                    " because a newer tailerd wrote it.",
                    hint=f"Run the newer release. {fix}",
                )
            return cls(
                offset=Offset.from_json(json.dumps(fields["offset"])),
                changes=ChangeMode(fields["changes"]),
                schema_id=str(fields["schema_id"]) if written_format > 1 else "",
            )
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise OffsetError(
                f"{place} is damaged: {error!r}. It may have been cut off or edited.", hint=fix
            ) from error
        except OffsetError as error:
            if place in error.message:
                raise
            raise OffsetError(f"{place}: {error.message}", hint=fix) from error


class OffsetStore(Protocol):
    """Keeps one `SavedOffset` for each pipeline, by its configured name.

    Errors: `OffsetError` for what is stored, those of the place for the rest. One process uses a
    store at a time; calls for different pipelines may run at once.
    """

    async def load(self, pipeline: str) -> SavedOffset | None:
        """Return what was last saved, None when nothing ever was."""
        ...

    async def save(self, pipeline: str, saved: SavedOffset) -> None:
        """Keep `saved` durably: after a crash `load` returns it, or what was saved before."""
        ...
