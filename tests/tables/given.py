"""Where the tables written by others are."""

from __future__ import annotations

import os
from pathlib import Path

_BESIDE = Path(__file__).resolve().parents[3] / "shared/tables/given.tar.gz"


def locate_given_tables() -> Path:
    """Return their archive, or the folder where it is unpacked; it need not be there."""
    return Path(os.environ.get("TAILERD_TABLES") or _BESIDE)
