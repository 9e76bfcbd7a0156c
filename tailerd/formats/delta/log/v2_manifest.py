"""Writes the manifest of a V2 checkpoint: all non-file actions, and its sidecars.

Protocol: PROTOCOL.md#v2-spec, #sidecar-file-information
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import msgspec

from tailerd.errors import LogChangedError
from tailerd.formats.delta.log.checkpoint_output import CheckpointOutput, WrittenRows
from tailerd.formats.delta.log.log_folder import LogFolder
from tailerd.formats.delta.log.parquet_rows import CheckpointFile
from tailerd.formats.delta.log.publication import publish, withdraw
from tailerd.formats.delta.protocol.actions import Sidecar
from tailerd.formats.delta.protocol.checkpoint import PROBES, other_actions
from tailerd.formats.delta.protocol.checkpoint_columns import CheckpointColumns, StateAction
from tailerd.formats.delta.protocol.checkpoint_form import CheckpointForm
from tailerd.formats.delta.protocol.commit_file import decode_lines
from tailerd.formats.delta.protocol.log_path import SIDECAR_FOLDER, LogFile, uuid_checkpoint_name
from tailerd.formats.delta.protocol.sidecar import sidecar_file

ManifestKind = Literal["json", "parquet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A manifest that was written.

    Attributes:
        name: Relative to `_delta_log`.
        actions: Number of its actions, without those in sidecars.
    """

    name: str
    size_bytes: int
    actions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestContents:
    """The content of a manifest.

    Attributes:
        published: The file that publishes the version.
        others: Non-file actions.
        reused: Sidecars of an earlier checkpoint, which a cleanup may delete meanwhile.
        new: Sidecars written for this one.
    """

    version: int
    published: LogFile
    others: Iterable[StateAction]
    reused: Sequence[LogFile]
    new: Sequence[LogFile]

    def actions(self) -> list[StateAction]:
        """Return its rows or lines."""
        found: list[StateAction] = [("checkpointMetadata", {"version": self.version})]
        found += self.others
        found += [("sidecar", _sidecar_body(file)) for file in (*self.reused, *self.new)]
        return found


async def write_manifest(
    log: LogFolder,
    contents: ManifestContents,
    new_uuid: Callable[[], uuid.UUID],
    *,
    kind: ManifestKind,
    form: CheckpointForm,
) -> Manifest:
    """Write a manifest under a unique name, after everything it references.

    Args:
        form: Of the checkpoint's file actions, for the empty columns of a Parquet manifest.

    Raises:
        LogChangedError: A reused sidecar was deleted meanwhile, or another table replaced this one;
            the manifest is withdrawn, and the new sidecars with it.
        StorageError: It cannot be written; the new sidecars are withdrawn, unless the manifest may
            exist and cannot be withdrawn.
    """
    actions = contents.actions()
    name = uuid_checkpoint_name(contents.version, new_uuid(), extension=kind)
    path = f"{log.path}/{name}"
    try:
        if kind == "json":
            body = b"".join(msgspec.json.encode({key: value}) + b"\n" for key, value in actions)
            put = partial(log.store.put, path, body, if_absent=True)
            await publish(log, path, contents.published, partial(_appear, log, contents, put))
            size_bytes = len(body)
        else:
            columns = CheckpointColumns(form, actions)
            async with CheckpointOutput(log.store, path, columns, WrittenRows()) as output:
                await output.write_others()
                appear = partial(_appear, log, contents, output.finish)
                await publish(log, path, contents.published, appear)
                size_bytes = output.size_bytes
        await _check_reused(log, contents)
    except BaseException as error:
        # The manifest may exist although its response was lost: delete sidecars only after it. If a
        # pending put is cancelled, the manifest may still appear later, so the sidecars stay.
        is_gone = await withdraw(log, path, reason=error)
        if is_gone and isinstance(error, Exception):
            await withdraw_sidecars(log, contents.new, error)
        raise
    return Manifest(name=name, size_bytes=size_bytes, actions=len(actions))


async def withdraw_sidecars(
    log: LogFolder, files: Sequence[LogFile], reason: BaseException
) -> None:
    """Delete sidecars that no manifest references, in bounded time. `reason` as in `withdraw`."""
    await withdraw(log, *(log.resolve_path(file) for file in files), reason=reason)


async def _appear(
    log: LogFolder, contents: ManifestContents, appear: Callable[[], Awaitable[None]]
) -> None:
    # Sidecars are checked again after publication. Check before it as well: a reader in between, or
    # after a crash of this process, must not find a manifest whose sidecars are known to be gone.
    await _check_reused(log, contents)
    await appear()


async def _check_reused(log: LogFolder, contents: ManifestContents) -> None:
    if not contents.reused:
        return
    folder = f"{log.path}/{SIDECAR_FOLDER}"
    found = {f"{SIDECAR_FOLDER}/{meta.name}" async for meta in log.store.list_from(folder)}
    if gone := sorted({file.name for file in contents.reused} - found):
        raise LogChangedError(
            f"A sidecar of the checkpoint before was deleted while the checkpoint of version"
            f" {contents.version} was written: {gone[0]} does not exist.",
            remedy="Run the command again.",
        )


def _sidecar_body(file: LogFile) -> dict[str, object]:
    return {
        "path": file.name.rpartition("/")[2],
        "sizeInBytes": file.size_bytes,
        "modificationTime": file.mtime_ms,
        "tags": {},
    }


async def named_sidecars(log: LogFolder, file: LogFile) -> list[LogFile]:
    """Return the sidecars that a checkpoint file references; none if it is not a manifest.

    Raises:
        CorruptLogError: The file is damaged.
        FileMissingError: It is missing.
        PathOutsideTableError: It references a sidecar outside the log.
    """
    if file.is_json:
        body = await log.body_slices(file)
        found = await asyncio.to_thread(_named_in_lines, file, body, log.memory_bytes)
    else:
        found = await asyncio.to_thread(_named_in_parquet, log, file)
    return [sidecar_file(sidecar, file.version) for sidecar in found]


def _named_in_lines(file: LogFile, body: Iterator[bytes], memory_bytes: int) -> list[Sidecar]:
    decoded = decode_lines(file.name, body, memory_bytes)
    return [line.sidecar for lines in decoded for line in lines if line.sidecar is not None]


def _named_in_parquet(log: LogFolder, file: LogFile) -> list[Sidecar]:
    with CheckpointFile.open(log, file) as rows:
        batches = rows.rows_with(("sidecar",), (PROBES["sidecar"],))
        lines = [line for batch in batches for line in other_actions(batch, file.name)]
    return [line.sidecar for line in lines if line.sidecar is not None]
