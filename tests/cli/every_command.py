"""Every command that reads a table, one after the other over the same one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.cli.commands import Commands
from tests.integration.daemon.running import file_table, write_config


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    command: tuple[str, ...]
    status: int
    output: str
    errors: str

    def is_served_or_refused(self) -> bool:
        """Tell whether the command did its work, or refused the table with one error."""
        reported = [line for line in self.errors.splitlines() if line.startswith("error[")]
        is_refused = self.status == 3 and len(reported) == 1 and "Traceback" not in self.errors
        return "[bug]" not in self.errors and (self.status == 0 or is_refused)


def every_command(command: Commands, table: Path, folder: Path) -> Iterator[Ended]:
    """Run each on a table; what they write lies in `folder`, anew for each call."""
    location = folder / f"run{len(list(folder.glob('run*')))}"
    location.mkdir()
    config = write_config(location, orders=file_table(table, location / "out"))
    is_refused = False
    for arguments in (
        *(("tail", table, "--once", "--from", "snapshot", "--format", name) for name in _FORMATS),
        ("tail", table, "--once", "--from", "0", "--format", "jsonl"),
        ("inspect", table),
        ("inspect", table, "--json"),
        ("inspect", table, "--files"),
        ("history", table),
        ("history", table, "--json"),
        ("validate", config),
        ("run", "--config", config, "--once"),
        ("verify", "orders", "--config", config),
        ("maintain", table),
        ("maintain", table, "--apply"),
    ):
        if is_refused and arguments[0] == "verify":
            # Nothing was delivered.
            continue
        ran = command(*arguments)
        is_refused = ran.status != 0
        yield Ended(tuple(map(str, arguments)), ran.status, ran.output, ran.errors)


_FORMATS = ("table", "jsonl", "debezium", "arrow")
