"""Records the pipeline of each table's name in the state: its identity and its topics.

Offsets may be in Kafka, in the state, or in Spark's checkpoints. Only these records distinguish a
pipeline whose sink moved from a new one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from tailerd.changefeed.pipeline_identity import PipelineIdentity
from tailerd.changefeed.saved_offset import require_texts
from tailerd.errors import OffsetError
from tailerd.pipeline_names import file_name
from tailerd.state.base import StateFiles

FORMAT = 1
_FOLDER = "pipelines"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRecord:
    """The state's record of a pipeline that has an offset.

    Attributes:
        identity: As of its last start, reset or rebinding.
        topics: Kafka's ids of its topics, including the offsets topic; as of its last start.
        start: Where it begins if it has no offset; empty: as the configuration says.
        schemas: The registered schemas that its sink knows, by subject.
        gap: The gap that a reset left while no daemon ran, until one reports it: the fields of
            `GapMet` without the pipeline; empty if there is none.
    """

    identity: PipelineIdentity
    topics: Mapping[str, str] = field(default_factory=dict)
    start: str = ""
    schemas: Mapping[str, str] = field(default_factory=dict)
    gap: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the stable text form, one line."""
        return json.dumps({"format": FORMAT, **asdict(self)})

    @classmethod
    def from_json(cls, text: str | bytes, location: str) -> PipelineRecord:
        """Read what `to_json` wrote in `location`.

        Raises:
            OffsetError: It is damaged, or another release wrote it.
        """
        try:
            fields = json.loads(text)
            if fields["format"] != FORMAT:
                raise ValueError(f"format {fields['format']!r} is of another release")
            return cls(
                identity=PipelineIdentity(**require_texts(fields["identity"])),
                topics=require_texts(fields["topics"]),
                start=str(fields["start"]),
                schemas=require_texts(fields["schemas"]),
                gap=require_texts(fields.get("gap", {})),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise OffsetError(
                f"The pipeline record {location} is damaged: {error!r}.",
                remedy="Restore it from a copy, or reset the pipeline with `tailerd offsets"
                " reset`.",
            ) from error


class PipelineRecords:
    """One record for each pipeline, by its configured name."""

    def __init__(self, files: StateFiles) -> None:
        self._files = files

    async def load(self, pipeline: str) -> PipelineRecord | None:
        """Return the last saved record; None if there is none.

        Raises:
            OffsetError: It is damaged.
            StateInUseError, StorageError: As `StateFiles.load`.
        """
        return await self._files.load(f"{_FOLDER}/{file_name(pipeline)}", PipelineRecord.from_json)

    async def save(self, pipeline: str, record: PipelineRecord) -> None:
        """Save a record durably.

        Raises:
            StateInUseError: Another process has taken over the state.
            StorageError: It cannot be written; the former record is still there.
        """
        await self._files.require_ownership()
        await self._files.save(f"{_FOLDER}/{file_name(pipeline)}", record.to_json().encode())
