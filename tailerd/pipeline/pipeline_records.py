"""Records the pipeline of each table's name in the state: its identity and its topics.

Offsets may be in Kafka, in the state, or in Spark's checkpoints. Only these records distinguish a
pipeline whose sink place was changed from a new one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from tailerd.changefeed.pipeline_identity import PipelineIdentity
from tailerd.changefeed.saved_offset import texts_of
from tailerd.errors import AccessDeniedError, OffsetError, StorageError
from tailerd.pipeline.fenced_files import FencedFile
from tailerd.private_files import make_private_folder
from tailerd.storage.posix_files import replace_private
from tailerd.threads import in_thread

FORMAT = 1
PIPELINES_FOLDER = "pipelines"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRecord:
    """The state's record of a pipeline that has an offset.

    Attributes:
        identity: As of its last start, reset or rebinding.
        topics: Kafka's ids of its topics, including the offsets topic; as of its last start.
        start: Where it begins if it has no offset; empty: as the configuration says.
        schemas: The registered schemas that its sink knows, by subject.
    """

    identity: PipelineIdentity
    topics: Mapping[str, str] = field(default_factory=dict)
    start: str = ""
    schemas: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the stable text form, one line."""
        return json.dumps({"format": FORMAT, **asdict(self)})

    @classmethod
    def from_json(cls, text: str | bytes, place: str) -> PipelineRecord:
        """Read what `to_json` wrote in `place`.

        Raises:
            OffsetError: It is damaged, or another release wrote it.
        """
        try:
            fields = json.loads(text)
            if fields["format"] != FORMAT:
                raise ValueError(f"format {fields['format']!r} is of another release")
            return cls(
                identity=PipelineIdentity(**texts_of(fields["identity"])),
                topics=texts_of(fields["topics"]),
                start=str(fields["start"]),
                schemas=texts_of(fields["schemas"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise OffsetError(
                f"The pipeline record {place} is damaged: {error!r}.",
                remedy="Restore it from a copy, or reset the pipeline with `tailerd offsets"
                " reset`.",
            ) from error


class PipelineRecords(Protocol):
    """Keeps one record for each pipeline, by its configured name. One process writes them."""

    async def load(self, pipeline: str) -> PipelineRecord | None:
        """Return the last saved record, None if there is none; `OffsetError`, `StorageError`."""
        ...

    async def save(self, pipeline: str, record: PipelineRecord) -> None:
        """Save a record durably; `StorageError`."""
        ...


class FilePipelineRecords:
    """One JSON file for each pipeline, replaced atomically."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def load(self, pipeline: str) -> PipelineRecord | None:
        """Read the pipeline's file.

        Raises:
            OffsetError: It is damaged.
            StorageError: It cannot be read.
        """
        return await in_thread(self._load, pipeline)

    async def save(self, pipeline: str, record: PipelineRecord) -> None:
        """Replace the pipeline's file.

        Raises:
            StorageError: The folder cannot be written; the former record is still there.
        """
        await in_thread(self._save, pipeline, record)

    def _load(self, pipeline: str) -> PipelineRecord | None:
        path = self._folder / f"{pipeline}.json"
        try:
            return PipelineRecord.from_json(path.read_bytes(), str(path))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _refused(path, "read", error) from error

    def _save(self, pipeline: str, record: PipelineRecord) -> None:
        path = self._folder / f"{pipeline}.json"
        try:
            make_private_folder(self._folder)
            replace_private(path, record.to_json().encode())
        except OSError as error:
            raise _refused(path, "written", error) from error


class BucketPipelineRecords:
    """One file for each pipeline in an object store.

    Args:
        file: Returns the file of a pipeline.
    """

    def __init__(self, file: Callable[[str], FencedFile]) -> None:
        self._file = file

    async def load(self, pipeline: str) -> PipelineRecord | None:
        """Read the pipeline's file.

        Raises:
            OffsetError: It is damaged.
            StateInUseError: Another process has taken the state over.
            StorageError: The bucket cannot be read.
        """
        file = self._file(pipeline)
        body = await file.load()
        return None if body is None else PipelineRecord.from_json(body, file.url)

    async def save(self, pipeline: str, record: PipelineRecord) -> None:
        """Replace the pipeline's file.

        Raises:
            StateInUseError: Another process has taken the state over.
            StorageError: The bucket cannot be written.
        """
        await self._file(pipeline).save(record.to_json().encode())


def _refused(path: Path, verb: str, error: OSError) -> StorageError:
    kind = AccessDeniedError if isinstance(error, PermissionError) else StorageError
    return kind(
        f"The pipeline record {path} cannot be {verb}: {error.strerror}.",
        remedy="Free space, or give this user the right to it.",
    )
