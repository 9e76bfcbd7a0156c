"""Tables of any format through `tailerd run`, into files."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from tests.integration.daemon.running import run_to_end

Change = tuple[object, ...]
"""Kind, `id` and version of a row."""


def delivered(folder: Path) -> list[dict[str, object]]:
    """All rows, also those that a gap set aside."""
    while True:
        files = sorted(folder.rglob("*.jsonl"))
        try:
            return [json.loads(line) for file in files for line in file.read_text().splitlines()]
        except FileNotFoundError:
            # A daemon that starts again removes what is not in its offset.
            continue


def changes(found: list[dict[str, object]]) -> Counter[Change]:
    return Counter((row["_change_type"], row["id"], row["_commit_version"]) for row in found)


def run_once(config: Path, status: int = 0) -> str:
    """Deliver what there is; return what was logged."""
    done = run_to_end("run", "--config", config, "--once")
    assert done.returncode == status, done.stderr
    return done.stderr
