"""Resolves the files that actions reference, and checks that the table may reference them.

Protocol: PROTOCOL.md#add-file-and-remove-file (path), #deletion-vector-descriptor-schema
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from urllib.parse import unquote

from tailerd.errors import CorruptLogError, PathOutsideTableError
from tailerd.formats.delta.protocol.actions import DeletionVectorDescriptor
from tailerd.formats.delta.protocol.data_file import DeletionVector
from tailerd.formats.delta.protocol.deletion_vector import relative_file_path

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:/")
"""Distinguishes URLs from paths, as in `locate`: a partition column may be named `a:b`."""

MAX_PATH_CHARACTERS = 64 * 1024
"""Far above the limit of file systems and buckets, including escapes."""


@dataclass(frozen=True, slots=True)
class DataPaths:
    """Resolves paths of one table.

    Attributes:
        root: The table's location, decoded: an absolute path or a URL, without a trailing slash.
        allowed: Further positions for files (shallow clones), in the same form; an empty one allows
            all local files.
    """

    root: str
    allowed: tuple[str, ...] = ()
    _folders: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Note how the positions of files begin: all paths of a log are compared with it."""
        folders = tuple(f"{folder}/" for folder in (self.root, *self.allowed))
        object.__setattr__(self, "_folders", folders)

    def resolve(self, path: str) -> str:
        """Return the absolute location of a path in the log, which is percent-decoded exactly once.

        Raises:
            PathOutsideTableError: It is outside the table and every allowed location.
            CorruptLogError: It is not a valid file name.
        """
        if len(path) > MAX_PATH_CHARACTERS:
            raise CorruptLogError(
                f"The log names a file with {len(path)} characters ({path[:40]}...), and no"
                " storage has names that long.",
                remedy="The writer is broken: restore the log entry from a backup.",
            )
        decoded = unquote(path, errors="surrogateescape") if "%" in path else path
        if "\0" in decoded:
            raise CorruptLogError(
                f"The log names the file {path!r}, and a file name cannot contain NUL.",
                remedy="The writer is broken: restore the log entry from a backup.",
            )
        if _SCHEME.match(path) or path.startswith("/"):
            location = _plain(decoded)
        else:
            location = f"{self.root}/{decoded}"
        # A name may contain ".."; most do not, and need not be cut into pieces.
        if ".." in location and ".." in location.split("/"):
            location = _normal(location)
        if not location.startswith(self._folders):
            raise PathOutsideTableError(
                f"The log names the file {path!r}, which is outside the table at {self.root},"
                " so it is not read.",
                remedy=(
                    "If it is a shallow clone, allow the path with --allow-path (or allowed_paths"
                    f" in the configuration), for example {posixpath.dirname(location)}."
                ),
            )
        return location

    def vector(self, descriptor: DeletionVectorDescriptor) -> DeletionVector:
        """Return a deletion vector with its file's location.

        Raises:
            PathOutsideTableError: As `resolve`.
            CorruptLogError: The storage type is not u, p or i, or as `resolve`.
        """
        text = descriptor.path_or_inline_dv
        match descriptor.storage_type:
            case "u":
                url = f"{self.root}/{relative_file_path(text)}"
                if ".." in url.split("/") or "\0" in url:
                    url = self.resolve(relative_file_path(text))
            case "p":
                url = self.resolve(text)
            case "i":
                url = ""
            case other:
                raise CorruptLogError(
                    f"A deletion vector has the storage type {other!r}; known are u, p and i.",
                    remedy="Use a newer tailerd, or restore the log entry from a backup.",
                )
        return DeletionVector(
            storage_type=descriptor.storage_type,
            path_or_inline=text,
            offset=descriptor.offset,
            size_bytes=descriptor.size_in_bytes,
            cardinality=descriptor.cardinality,
            url=url,
        )


def _plain(location: str) -> str:
    """Return the normal form of an absolute location: local files as a path, the rest as a URL.

    Hadoop's schemes for S3 (`s3a`, `s3n`) are equivalent to `s3`.
    """
    if location.startswith(("s3a://", "s3n://")):
        location = f"s3{location[3:]}"
    if location.startswith("file:"):
        location = "/" + location.removeprefix("file:").lstrip("/")
    return location.rstrip("/") if location != "/" else location


def _normal(location: str) -> str:
    scheme = _SCHEME.match(location)
    if scheme is None:
        return posixpath.normpath(location)
    head, _, tail = location.partition("://")
    return f"{head}://{posixpath.normpath(tail)}"
