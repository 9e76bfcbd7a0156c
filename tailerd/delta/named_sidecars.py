"""Which sidecars a checkpoint's manifest names, read without the sidecars."""

from __future__ import annotations

import asyncio

from tailerd.delta.log_folder import LogFolder
from tailerd.delta.parquet_rows import CheckpointFile
from tailerd.delta.protocol.actions import Sidecar
from tailerd.delta.protocol.checkpoint import PROBES, other_actions
from tailerd.delta.protocol.commit_file import decode_lines, slices
from tailerd.delta.protocol.log_path import LogFile
from tailerd.delta.protocol.sidecar import sidecar_file


async def named_sidecars(log: LogFolder, file: LogFile) -> list[LogFile]:
    """Return the sidecars that a file of a checkpoint names; none for one that is no manifest.

    Raises:
        CorruptLogError: The file is damaged.
        FileMissingError: It is gone.
        PathOutsideTableError: It names a sidecar that lies elsewhere.
    """
    if file.is_json:
        body = await log.store.get(log.path_of(file))
        found = await asyncio.to_thread(_named_in_lines, file, body)
    else:
        found = await asyncio.to_thread(_named_in_parquet, log, file)
    return [sidecar_file(sidecar, file.version) for sidecar in found]


def _named_in_lines(file: LogFile, body: bytes) -> list[Sidecar]:
    decoded = decode_lines(file.name, slices(body))
    return [line.sidecar for lines in decoded for line in lines if line.sidecar is not None]


def _named_in_parquet(log: LogFolder, file: LogFile) -> list[Sidecar]:
    with CheckpointFile(log.store.open_input(log.path_of(file)), file.name) as rows:
        batches = rows.rows_with(("sidecar",), (PROBES["sidecar"],))
        lines = [line for batch in batches for line in other_actions(batch, file.name)]
    return [line.sidecar for line in lines if line.sidecar is not None]
