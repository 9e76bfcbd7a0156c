"""Where groups keep their files: in a folder that no table's own checkpoint can be in.

Checkpoints of queries of one table are `<state>/spark/<table>`; names of tables begin with a letter
or a digit. Older releases kept groups in `<state>/spark/groups`, which is also the place of a table
of that name. What is groups' is moved from there, one rename after the other, the assignments last:
whoever dies on the way finds each group where it is, and the next start moves the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tailerd.errors import StorageError
from tailerd.private_files import make_private_folder
from tailerd.storage.posix_files import sync_folder

ASSIGNMENTS_FILE = "assignments.json"
CHECKPOINT_FOLDER = "checkpoint"
"""Of the query of a group, in the group's folder."""

_FOLDER = "_groups"
_OLD_FOLDER = "groups"
_GROUP = re.compile(r".+-\d{3,}")
_SET_ASIDE = "_{}.before-its-group"


def group_folder(state: Path, group: str) -> Path:
    """Return the folder of a group; `state` is `<state>/spark`."""
    return _where(state, group)


def assignments_file(state: Path) -> Path:
    """Return the file that says which table is in which group."""
    return _where(state, ASSIGNMENTS_FILE)


def move_old_groups(state: Path) -> None:
    """Take over what an older release left; blocking, nothing the second time.

    Raises:
        StorageError: The state folder cannot be read or written.
    """
    old, new = state / _OLD_FOLDER, state / _FOLDER
    with _told(f"{old} cannot be read"):
        names = list(_left_in(old, new))
    if not names:
        return
    with _told(f"{old} cannot be moved to {new}"):
        make_private_folder(new)
        # The new folder itself is durable before anything is in it.
        sync_folder(state)
        for name in names:
            (old / name).replace(new / name)
            sync_folder(new)
            sync_folder(old)
        if not any(old.iterdir()):
            old.rmdir()


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
    with _told(f"{checkpoint} cannot be renamed"):
        checkpoint.replace(aside)
        sync_folder(state)


@contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{what}: {error.strerror or error}.",
            hint="Look at the permissions of the state folder.",
        ) from error


def _where(state: Path, name: str) -> Path:
    """Return the place of a thing of groups; the old one while it is still there."""
    old, new = state / _OLD_FOLDER / name, state / _FOLDER / name
    return old if old.exists() and not new.exists() else new


def _left_in(old: Path, new: Path) -> Iterator[str]:
    """Yield what is groups' in the old folder; a checkpoint of a table's own stays there."""
    found = sorted(path.name for path in old.iterdir() if path.is_dir()) if old.is_dir() else []
    for name in (*(each for each in found if _GROUP.fullmatch(each)), ASSIGNMENTS_FILE):
        if (old / name).exists() and not (new / name).exists():
            yield name
