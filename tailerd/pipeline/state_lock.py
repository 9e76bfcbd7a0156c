"""One daemon for one state folder: two would move each other's offsets."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tailerd.errors import ConfigError, StateInUseError
from tailerd.private_files import make_private_folder, open_private

LOCK_NAME = "tailerd.lock"


@contextmanager
def state_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of the state folder while inside; create the folder if it is missing.

    The lock ends with the process, also when the process is killed.

    Raises:
        StateInUseError: Another process holds it.
        ConfigError: The folder cannot be written.
    """
    path = folder / LOCK_NAME
    try:
        # An existing folder keeps its permissions: the files in it are private anyway.
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            make_private_folder(folder)
        file = open_private(path, "a+b")
    except OSError as error:
        raise ConfigError(
            f"The state folder {folder} cannot be used: {error.strerror}.",
            remedy="Set `state` to a folder this user can write.",
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StateInUseError(
                f"The state folder {folder} is in use by {_holder(path)}.",
                remedy="Stop that one, or set `state` to another folder.",
            ) from error
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
        file.flush()
        yield


def _holder(path: Path) -> str:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        return f"process {fields['pid']} on {fields['host']}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        # The holder is about to write its name.
        return "another process"
