"""Record a gap in a folder of change files, and move a replaced table's files aside."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from tailerd.changefeed.gap import Gap
from tailerd.sinks.file.owner import FolderOwner
from tailerd.sinks.file.parts import close_durably, open_temporary
from tailerd.storage.posix_files import sync_folder


def write_gap_record(path: Path, gap: Gap, owner: FolderOwner, mode: int | None = None) -> None:
    """Write a durable record of the versions missing before the next files; raises `OSError`."""
    content = {
        "table": gap.table,
        "reason": gap.reason,
        "from": json.loads(gap.start.to_json()),
        "to": json.loads(gap.end.to_json()),
    }
    with open_temporary(owner.temporary(path), mode) as file:
        file.write(json.dumps(content, indent=2).encode() + b"\n")
        close_durably(file)
    owner.publish(path)
    sync_folder(path.parent)


def set_aside(folder: Path, files: Iterable[Path], gap: Gap) -> None:
    """Move files of another history into a separate folder; a repeated call continues.

    Raises `OSError`. Files are moved in the given order.
    """
    start = gap.start
    digest = hashlib.sha256(start.table_id.encode()).hexdigest()[:8]
    aside = folder / f"replaced-{start.version:020d}-{start.position:020d}-{digest}"
    aside.mkdir(exist_ok=True)
    for path in files:
        target, number = aside / path.name, 1
        while target.exists():
            # The same history was replaced before at the same offset; nothing is overwritten.
            number += 1
            target = aside / f"{path.name}.{number}"
        path.rename(target)
    sync_folder(aside)
    sync_folder(folder)
