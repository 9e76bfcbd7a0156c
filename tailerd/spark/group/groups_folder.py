"""Where groups keep their files: in a folder that no table's own checkpoint can be in.

Checkpoints of queries of one table are `<state>/spark/<table>`; names of tables begin with a letter
or a digit.
"""

from __future__ import annotations

from pathlib import Path

from tailerd.errors import StorageError
from tailerd.storage.posix_files import sync_folder

_ASSIGNMENTS_FILE = "assignments.json"
CHECKPOINT_FOLDER = "checkpoint"
"""Of the query of a group, in the group's folder."""

_FOLDER = "_groups"
_SET_ASIDE = "_{}.before-its-group"


def group_folder(state: Path, group: str) -> Path:
    """Return the folder of a group; `state` is `<state>/spark`."""
    return state / _FOLDER / group


def assignments_file(state: Path) -> Path:
    """Return the file that says which table is in which group."""
    return state / _FOLDER / _ASSIGNMENTS_FILE


def set_aside(state: Path, name: str) -> None:
    """Keep a table's own checkpoint under a name that no table has; blocking.

    Raises:
        StorageError: The state folder cannot be written.
    """
    checkpoint = state / name
    if not checkpoint.is_dir():
        return
    aside, number = state / _SET_ASIDE.format(name), 2
    while aside.exists():
        aside, number = state / f"{_SET_ASIDE.format(name)}-{number}", number + 1
    try:
        checkpoint.replace(aside)
        sync_folder(state)
    except OSError as error:
        raise StorageError(
            f"{checkpoint} cannot be renamed: {error.strerror or error}.",
            hint="Look at the permissions of the state folder.",
        ) from error
