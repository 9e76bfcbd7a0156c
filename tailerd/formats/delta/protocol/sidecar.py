"""Sidecars of V2 checkpoints: where their files are.

Protocol: PROTOCOL.md#sidecar-files, #sidecar-file-information
"""

from __future__ import annotations

from urllib.parse import unquote

from tailerd.errors import KEEP_CHECKPOINT, PathOutsideTableError
from tailerd.formats.delta.protocol.actions import Sidecar
from tailerd.formats.delta.protocol.log_path import SIDECAR_FOLDER, LogFile, LogFileKind


def sidecar_file(sidecar: Sidecar, version: int) -> LogFile:
    """Return the log file a `sidecar` action names.

    Sidecars always lie in the table's own `_sidecars` folder; an absolute path counts by its last
    part, as writers may spell it either way.

    Raises:
        PathOutsideTableError: The name tries to leave the folder.
    """
    name = unquote(sidecar.path).rpartition("/")[2]
    if name in ("", ".", ".."):
        raise PathOutsideTableError(
            f"The checkpoint of version {version} names the sidecar {sidecar.path!r}, which is no"
            f" file in {SIDECAR_FOLDER}.",
            remedy=f"The checkpoint is damaged. {KEEP_CHECKPOINT}",
        )
    return LogFile(
        name=f"{SIDECAR_FOLDER}/{name}",
        kind=LogFileKind.SIDECAR,
        version=version,
        end_version=version,
        size_bytes=sidecar.size_in_bytes,
        mtime_ms=sidecar.modification_time,
    )
