"""Reads which sidecars a checkpoint's manifest references, without reading the sidecars."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from tailerd.formats.delta.log.log_folder import LogFolder
from tailerd.formats.delta.log.parquet_rows import CheckpointFile
from tailerd.formats.delta.protocol.actions import Sidecar
from tailerd.formats.delta.protocol.checkpoint import PROBES, other_actions
from tailerd.formats.delta.protocol.commit_file import decode_lines
from tailerd.formats.delta.protocol.log_path import LogFile
from tailerd.formats.delta.protocol.sidecar import sidecar_file


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
    with CheckpointFile.of(log, file) as rows:
        batches = rows.rows_with(("sidecar",), (PROBES["sidecar"],))
        lines = [line for batch in batches for line in other_actions(batch, file.name)]
    return [line.sidecar for line in lines if line.sidecar is not None]
