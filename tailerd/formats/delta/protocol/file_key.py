"""Identity of a logical file: 64 bits of (path, deletion-vector id).

Different spellings of one path are the same file: the path is percent-decoded, an absolute path
below the table is made relative, and Hadoop's schemes for S3 (`s3a`, `s3n`) are treated as `s3`.
The hash is stable across processes and releases, so it can be part of a saved offset.

Protocol: PROTOCOL.md#add-file-and-remove-file (primary key of a logical file)
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

KeyArray = npt.NDArray[np.uint64]
SEPARATOR = b"\0"


def normal_path(path: str, root_url: str = "") -> bytes:
    """Return the decoded form of a path in the log, relative if it is below `root_url`.

    Args:
        path: As in the log: a URI, relative or absolute.
        root_url: The table's location as a decoded URL or absolute path, without a trailing slash.
    """
    decoded = unquote_to_bytes(path) if "%" in path else path.encode()
    if path.startswith(("s3a://", "s3n://")):
        decoded = b"s3" + decoded[3:]
    if root_url and (":" in path or path.startswith("/")):
        for prefix in _spellings(root_url):
            if decoded.startswith(prefix):
                return decoded[len(prefix) :]
    return decoded


def _spellings(root_url: str) -> list[bytes]:
    root = root_url.removeprefix("file://").removeprefix("file:")
    if root != root_url or root.startswith("/"):
        forms = [f"{root}/", f"file://{root}/", f"file:{root}/"]
    else:
        forms = [f"{root_url}/"]
    return [form.encode() for form in forms]


def file_key(path: str, vector_id: str | None, root_url: str = "") -> int:
    """Return the key of one logical file."""
    plain = "%" not in path and ":" not in path and path[:1] != "/"
    name = path.encode() if plain else normal_path(path, root_url)
    if vector_id is None:
        return xxh3_64_intdigest(name)
    return xxh3_64_intdigest(name + SEPARATOR + vector_id.encode())


def hash_names(names: Sequence[bytes]) -> KeyArray:
    """Hash names that are already normalised; shape (n,)."""
    return np.fromiter(map(xxh3_64_intdigest, names), np.uint64, count=len(names))
