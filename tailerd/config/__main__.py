"""`python -m tailerd.config FOLDER` writes the generated documents into a folder."""

from __future__ import annotations

import sys
from pathlib import Path

from tailerd.config.documents import documents


def main(folder: Path) -> None:
    """Write every document."""
    for name, text in documents().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "config"))
