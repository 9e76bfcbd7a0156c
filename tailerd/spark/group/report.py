"""What the source tells the daemon besides offsets: how each table is, and which members it knows.

Spark passes on nothing of that while a query is idle, so it is a file beside the checkpoint,
replaced when something changed. It lasts nothing: a reader that misses one gets the next.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tailerd.errors import TailerdError
from tailerd.private_files import write_private

REPORT_FILE = "report.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a table is not planned at present.

    Attributes:
        data: The error, as `TailerdError.to_data`.
        attempt: How often it failed in a row.
        wait_seconds: Until the next try; None: there is none.
    """

    data: dict[str, object]
    attempt: int
    wait_seconds: float | None

    @classmethod
    def of(cls, error: TailerdError, attempt: int, wait_seconds: float | None) -> Problem:
        """Describe an error."""
        return cls(data=error.to_data(), attempt=attempt, wait_seconds=wait_seconds)

    def error(self) -> TailerdError:
        """Return the error that was described."""
        return TailerdError.from_data(self.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a table is and what waits for it.

    Attributes:
        version: The version its offset points at.
        head_version: The newest version of the table.
        versions: How many versions wait.
        oldest_ms: Commit time of the oldest version not delivered; None when there is none.
        retention_seconds: As the source says.
        delivered_version: The newest version of which everything is delivered; None where there is
            none.
    """

    version: int
    head_version: int
    versions: int
    oldest_ms: int | None
    retention_seconds: float | None
    delivered_version: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """One state of the source.

    Attributes:
        pid: The process that wrote it.
        members: Number of the members file it goes by.
        standings, problems: By table.
    """

    pid: int = 0
    members: int = -1
    standings: dict[str, Standing] = field(default_factory=dict)
    problems: dict[str, Problem] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Replace the file; blocking. What cannot be written is told by the next one."""
        draft = folder / f".{REPORT_FILE}.{os.getpid()}.tmp"
        write_private(draft, json.dumps(asdict(self)).encode())
        draft.replace(folder / REPORT_FILE)

    @classmethod
    def read(cls, folder: Path) -> SourceReport:
        """Read the file; an empty report where there is none, or none that can be read yet."""
        try:
            fields = json.loads((folder / REPORT_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return cls()
        return cls(
            pid=fields["pid"],
            members=fields["members"],
            standings={name: Standing(**each) for name, each in fields["standings"].items()},
            problems={name: Problem(**each) for name, each in fields["problems"].items()},
        )
