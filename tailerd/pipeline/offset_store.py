"""Where pipelines keep their offsets between two runs.

With the offset goes what it belongs to: the table's id (in the offset), the schema of the version
before it, and the change mode, because positions count the tasks of one mode. What is saved is a
promise: all before it is delivered.

Formats of the file: 1 lacks `schema_id`; 2 is written.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.offset import Offset
from tailerd.errors import AccessDeniedError, OffsetError, StorageError
from tailerd.sinks.threads import in_thread

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


class OffsetStore(Protocol):
    """Keeps one `SavedOffset` for each pipeline, by its configured name.

    Errors: `OffsetError` for what is stored, `StorageError` for the place. One process uses a store
    at a time; calls for different pipelines may run at once.
    """

    async def load(self, pipeline: str) -> SavedOffset | None:
        """Return what was last saved, None when nothing ever was."""
        ...

    async def save(self, pipeline: str, saved: SavedOffset) -> None:
        """Keep `saved` durably: after a crash `load` returns it, or what was saved before."""
        ...


class MemoryOffsetStore:
    """Forgets everything when the process ends; for tests and for `tail`."""

    def __init__(self) -> None:
        self._saved: dict[str, SavedOffset] = {}

    async def load(self, pipeline: str) -> SavedOffset | None:
        """Return what was last saved."""
        return self._saved.get(pipeline)

    async def save(self, pipeline: str, saved: SavedOffset) -> None:
        """Keep it in memory."""
        self._saved[pipeline] = saved


class FileOffsetStore:
    """One JSON file for each pipeline, replaced atomically; the one before is kept beside it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def load(self, pipeline: str) -> SavedOffset | None:
        """Read the pipeline's file.

        Raises:
            OffsetError: It is damaged, or a newer release wrote it.
            StorageError: It cannot be read.
        """
        return await asyncio.to_thread(self._load, pipeline)

    async def save(self, pipeline: str, saved: SavedOffset) -> None:
        """Replace the pipeline's file.

        Raises:
            StorageError: The folder cannot be written; what was saved before is still there.
        """
        # Waits when cancelled: a save that goes on alone would run beside the next one.
        await in_thread(self._save, pipeline, saved)

    def path(self, pipeline: str) -> Path:
        """Return the file of a pipeline."""
        return self._folder / f"{pipeline}.json"

    def _load(self, pipeline: str) -> SavedOffset | None:
        path = self.path(pipeline)
        try:
            return _parse(path, path.read_bytes(), pipeline)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _refused(f"The offset file {path} cannot be read", error) from error

    def _save(self, pipeline: str, saved: SavedOffset) -> None:
        path = self.path(pipeline)
        content = {
            "format": FORMAT,
            "pipeline": pipeline,
            "table_id": saved.offset.table_id,
            "schema_id": saved.schema_id,
            "changes": saved.changes.value,
            "offset": json.loads(saved.offset.to_json()),
        }
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with temporary.open("w", encoding="utf-8") as file:
                json.dump(content, file)
                file.flush()
                os.fsync(file.fileno())
            _keep_previous(path)
            temporary.replace(path)
            _sync_folder(self._folder)
        except OSError as error:
            raise _refused(f"The offset of {pipeline} cannot be saved in {path}", error) from error


def _parse(path: Path, text: bytes, pipeline: str) -> SavedOffset:
    reset = (
        f"Reset it with `tailerd offsets reset {pipeline} --to ...`, or restore"
        f" {path.name}.previous."
    )
    try:
        fields = json.loads(text)
        written_format = fields["format"]
        if written_format not in _READABLE:
            raise OffsetError(
                f"The offset file {path} has format {written_format!r}, this release reads"
                f" up to {FORMAT}, because a newer tailerd wrote it.",
                hint=f"Run the newer release. {reset}",
            )
        return SavedOffset(
            offset=Offset.from_json(json.dumps(fields["offset"])),
            changes=ChangeMode(fields["changes"]),
            schema_id=str(fields["schema_id"]) if written_format > 1 else "",
        )
    except (ValueError, KeyError, TypeError) as error:
        raise OffsetError(
            f"The offset file {path} is damaged: {error!r}. It may have been cut off or edited.",
            hint=reset,
        ) from error
    except OffsetError as error:
        if str(path) in error.message:
            raise
        raise OffsetError(f"In the offset file {path}: {error.message}", hint=reset) from error


def _refused(what: str, error: OSError) -> StorageError:
    kind = AccessDeniedError if isinstance(error, PermissionError) else StorageError
    return kind(f"{what}: {error.strerror}.", hint="Free space, or give this user the right to it.")


def _keep_previous(path: Path) -> None:
    """Keep the file that is about to be replaced, for a person to go back to."""
    if path.exists():
        temporary = path.with_name(f".{path.name}.previous.tmp")
        temporary.write_bytes(path.read_bytes())
        temporary.replace(path.with_name(f"{path.name}.previous"))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
