"""Resolves the paths in a table's metadata to locations.

Metadata has absolute paths. A table that is read at another location than its writer's is a copy:
paths below the location in its metadata are taken relative to the table's folder.
"""

from __future__ import annotations

import re

from tailerd.errors import ConfigError, PathOutsideTableError
from tailerd.storage.stores import normal_url
from tailerd.storage.table_location import TableLocation

_LOCAL = re.compile(r"file:/+")
_HADOOP_S3 = re.compile(r"s3[an]://")


class TablePaths:
    """Resolves the paths of one table.

    Args:
        location: The table.
        folder: The table's own folder in its store.
        written_at: The location in its metadata.
    """

    def __init__(self, location: TableLocation, folder: str, written_at: str) -> None:
        self._location = location
        self._url = location.store.format_url(folder).rstrip("/")
        self._written_at = f"{_plain(written_at).rstrip('/')}/"
        self._known: dict[str, str] = {}

    def resolve(self, path: str) -> str:
        """Return the URL of a file.

        Raises:
            PathOutsideTableError: It is outside the table and every allowed location.
        """
        plain = _plain(path)
        if plain.startswith(self._written_at):
            inside = plain.removeprefix(self._written_at)
            if ".." not in inside.split("/"):
                return f"{self._url}/{inside}"
        return self._resolve_outside(path, plain)

    def _resolve_outside(self, path: str, plain: str) -> str:
        try:
            found = normal_url(plain)
        except ConfigError as error:
            raise self._outside(path) from error
        locations = (self._url, *self._location.allowed)
        if ".." in plain.split("/") or not any(found.startswith(f"{e}/") for e in locations):
            raise self._outside(path)
        return found

    def _outside(self, path: str) -> PathOutsideTableError:
        return PathOutsideTableError(
            f"The metadata of {self._location.name} names {path}, which is below neither the"
            f" table's folder nor the location in its metadata ({self._written_at.rstrip('/')}).",
            remedy="If this is intended, allow the path with --allow-path (or allowed_paths in the"
            " configuration).",
        )

    def store_path(self, path: str) -> str:
        """Return a metadata file's path in the table's store.

        Raises:
            PathOutsideTableError: As `resolve`.
        """
        return self._location.stores.locate(self.resolve(path))[1]


def _plain(path: str) -> str:
    """Return a path in one spelling: local ones without a scheme, Hadoop's names of S3 as S3."""
    if _LOCAL.match(path):
        return _LOCAL.sub("/", path, count=1)
    return _HADOOP_S3.sub("s3://", path, count=1) if _HADOOP_S3.match(path) else path
