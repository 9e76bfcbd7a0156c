"""The processes that a process started, and those that these did."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that lives.

    Attributes:
        name: Of its program, cut after 15 characters.
        command: Its arguments, with spaces between them.
    """

    pid: int
    parent: int
    name: str
    command: str


def processes_below(pid: int, name: str = "") -> list[Process]:
    """Return the processes below one, at any depth, whose program's name begins so."""
    every = {found.pid: found for path in Path("/proc").glob("[0-9]*") if (found := _read(path))}

    def is_below(process: Process) -> bool:
        at: Process | None = process
        while at is not None and at.parent != pid:
            at = every.get(at.parent)
        return at is not None

    below = [process for _, process in sorted(every.items()) if is_below(process)]
    return [process for process in below if process.name.startswith(name)]


def pids_below(pid: int, name: str) -> list[int]:
    """Return the numbers of the processes that `processes_below` tells of."""
    return [process.pid for process in processes_below(pid, name)]


def _read(folder: Path) -> Process | None:
    try:
        # The name is in brackets and may have some itself.
        name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
        command = (folder / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, parent, *_ = rest.split()
    if state == "Z":
        return None
    text = command.replace(b"\0", b" ").decode(errors="replace")
    return Process(pid=int(folder.name), parent=int(parent), name=name, command=text)
