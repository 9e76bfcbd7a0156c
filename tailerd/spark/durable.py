"""Small JSON files that are there whole, or as they were before."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tailerd.errors import OffsetError, StorageError
from tailerd.private_files import make_private_folder
from tailerd.storage.posix_files import replace_private


def write_durably(path: Path, document: Mapping[str, object]) -> None:
    """Replace a file; when this returns, it survives a power cut. Blocking.

    Raises:
        StorageError: The folder cannot be written.
    """
    try:
        make_private_folder(path.parent)
        replace_durably(path, json.dumps(document))
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror or error}.",
            remedy="Look at the permissions of the state folder and at the free space.",
        ) from error


def replace_durably(path: Path, text: str) -> None:
    """Replace a file in a folder that is there, as `write_durably`.

    Raises:
        OSError: The folder cannot be written.
    """
    replace_private(path, text.encode())


def read_document(path: Path) -> dict[str, object]:
    """Return the content of such a file; empty when there is none.

    Raises:
        OffsetError: It is damaged.
        StorageError: It cannot be read.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise OffsetError(
            f"{path} is damaged: {error}.", remedy="Restore the state folder from a copy."
        ) from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}.") from error
    if not isinstance(document, dict):
        raise OffsetError(f"{path} is damaged: it holds no object.")
    return document
