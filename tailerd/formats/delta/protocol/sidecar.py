"""Resolves the files of sidecars of V2 checkpoints.

Protocol: PROTOCOL.md#sidecar-files, #sidecar-file-information
"""

from __future__ import annotations

from urllib.parse import unquote

from tailerd.errors import KEEP_CHECKPOINT, PathOutsideTableError
from tailerd.formats.delta.protocol.actions import Sidecar
from tailerd.formats.delta.protocol.log_path import SIDECAR_FOLDER, LogFile, LogFileKind


def sidecar_file(sidecar: Sidecar, version: int) -> LogFile:
    """Return the log file that a `sidecar` action references.

    Sidecars are always in the table's own `_sidecars` folder; of an absolute path only the last
    part is used, because writers use both forms.

    Raises:
        PathOutsideTableError: The name would leave the folder.
    """
    name = unquote(sidecar.path).rpartition("/")[2]
    if name in ("", ".", ".."):
        raise PathOutsideTableError(
            f"The checkpoint of version {version} names the sidecar {sidecar.path!r}, which is not"
            f" a file in {SIDECAR_FOLDER}.",
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
