"""Archives, unpacked on every release of Python that tailerd runs on."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any


def unpack(archive: Path, folder: Path) -> None:
    """Unpack into a folder, nothing outside of it; files keep their modification times."""
    # Python has this argument since 3.11.4; Debian 12 has 3.11.2.
    options: dict[str, Any] = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
    with tarfile.open(archive) as opened:
        opened.extractall(folder, **options)
