"""The file of rejected events: JSON lines, each durable before the offset moves past it."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from tailerd.errors import ConfigError, SinkError
from tailerd.pipeline_names import file_name
from tailerd.private_files import make_private_folder, open_private
from tailerd.sinks.http.endpoint import Answer
from tailerd.storage.posix_files import sync_folder

_FOLDER = "dead_letters"


def locate_dead_letters(configured: str | None, state: str, table: str) -> Path | None:
    """Return the file of a pipeline; None if there is no folder for it.

    Args:
        configured: `dead_letters` of the section.
        state: Location of the daemon's state, a folder or a URL.
        table: Name of the pipeline.
    """
    if configured is not None:
        return Path(configured).absolute()
    if not state or "://" in state:
        return None
    return Path(state).absolute() / _FOLDER / f"{file_name(table)}.jsonl"


class DeadLetterFile:
    """Appends rejected events. Blocking; several threads may use it."""

    def __init__(self, path: Path, table: str) -> None:
        self.path = path
        self._table = table
        self._busy = threading.Lock()

    def append(self, event: bytes, identity: str, answer: Answer, now: str) -> None:
        """Append one event durably.

        Args:
            event: The event as JSON.
            identity: Its id.
            answer: The answer that rejected it.
            now: The time, as text.

        Raises:
            SinkError: The file cannot be written.
        """
        about = {
            "table": self._table,
            "id": identity,
            "time": now,
            "status": answer.status,
            "answer": answer.text,
        }
        line = json.dumps(about).encode()[:-1] + b', "event": ' + event + b"}\n"
        try:
            with self._busy:
                self._write(line)
        except OSError as error:
            raise SinkError(
                f"The dead letters {self.path} cannot be written: {error.strerror}.",
                remedy="Free space, or give this user the right to write there.",
            ) from error

    def check(self) -> None:
        """Check whether the file can be written or created; change nothing.

        Raises:
            ConfigError: It cannot.
        """
        location = self.path
        while not location.exists() and location != location.parent:
            location = location.parent
        is_right = location.is_file() if location == self.path else location.is_dir()
        if not is_right or not os.access(location, os.W_OK):
            raise ConfigError(
                f"The dead letters {self.path} cannot be written, because {location} is not"
                " writable or not of the right kind.",
                remedy="Set `dead_letters` to a file that this user may write.",
                where="dead_letters",
            )

    def _write(self, line: bytes) -> None:
        if not self.path.parent.exists():
            # Only then: rights of a folder that others use stay.
            make_private_folder(self.path.parent)
        is_new = not self.path.exists()
        with open_private(self.path, "a+b") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                # A crash may have left a part of a line.
                line = line if file.read(1) == b"\n" else b"\n" + line
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync_folder(self.path.parent)
