"""Archives, unpacked on every release of Python that tailerd runs on."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any


def unpack(archive: Path, folder: Path, *, rule: str = "tar") -> None:
    """Unpack into a folder; files keep their modification times.

    Args:
        rule: Python's extraction filter: "data" for what was fetched, "tar" for what is known.
            Python has them since 3.11.4, Debian 12 has 3.11.2: there the archive is trusted.
    """
    options: dict[str, Any] = {"filter": rule} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(archive) as opened:
        opened.extractall(folder, **options)
