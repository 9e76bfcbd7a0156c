"""Tables named by a catalog: `iceberg://CATALOG/NAMESPACE.TABLE`.

The catalog is one of pyiceberg's own configuration (`.pyiceberg.yaml`, or variables of the
environment such as `PYICEBERG_CATALOG__PROD__URI`). It returns the current metadata file; tailerd
reads all files itself, with its own stores.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import BinaryIO, ClassVar

from tailerd.errors import (
    ConfigError,
    FileMissingError,
    MissingExtraError,
    NotATableError,
    StorageError,
    TailerdError,
    UnsupportedFeatureError,
)
from tailerd.formats.iceberg.metadata import parse_metadata
from tailerd.storage.base import FileMeta, NeedsNoSettings, NoSettings, ObjectStore
from tailerd.storage.table_location import TableLocation, locate_table

SCHEME = "iceberg"


class CatalogStore(ObjectStore):
    """The location of tables of catalogs before the catalog resolves it; has no files."""

    scheme = SCHEME
    is_remote = True
    is_local_folder = False

    def format_url(self, path: str) -> str:
        """Return `iceberg://CATALOG/NAMESPACE.TABLE`."""
        return f"{SCHEME}://{path}"

    async def list_from(self, folder: str, start_after: str = "") -> AsyncIterator[FileMeta]:
        """List nothing."""
        files: Sequence[FileMeta] = ()
        for file in files:
            yield file

    async def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Raise `FileMissingError`."""
        raise self._missing(path)

    async def fetch(
        self, path: str, start: int = 0, length: int | None = None
    ) -> tuple[FileMeta, bytes]:
        """Raise `FileMissingError`."""
        raise self._missing(path)

    async def get_many(self, paths: Sequence[str]) -> list[bytes]:
        """Raise `FileMissingError` if any file is requested."""
        return [await self.get(path) for path in paths]

    async def head(self, path: str) -> FileMeta:
        """Raise `FileMissingError`."""
        raise self._missing(path)

    async def put(self, path: str, data: bytes, *, if_absent: bool = False) -> None:
        """Raise `StorageError`: nothing is written to a catalog."""
        raise StorageError(
            f"{self.format_url(path)} is a table of a catalog, and no folder to write files to.",
            remedy="Name a folder, or a bucket's URL.",
        )

    async def delete(self, path: str) -> None:
        """Do nothing: there are no files."""

    def open_input(self, path: str) -> BinaryIO:
        """Raise `FileMissingError`."""
        raise self._missing(path)

    def _missing(self, path: str) -> FileMissingError:
        return FileMissingError(f"{self.format_url(path)} is a table of a catalog, not a file.")


class CatalogStoreProvider(NeedsNoSettings):
    """Serves `iceberg://`; a `storage.base.StoreProvider`."""

    name: ClassVar[str] = SCHEME
    is_remote: ClassVar[bool] = True

    def __init__(self, settings: NoSettings) -> None:
        """Connect to nothing."""

    def locate(self, url: str, host: str, path: str) -> tuple[ObjectStore, str]:
        """Return the store and `CATALOG/NAMESPACE.TABLE`.

        Raises:
            ConfigError: The catalog or the table is not named.
        """
        table = path.strip("/")
        if not host or "." not in table.strip(".") or "/" in table:
            raise ConfigError(
                f"{url} does not name a table of a catalog.",
                remedy=f"Write {SCHEME}://CATALOG/NAMESPACE.TABLE.",
            )
        return CatalogStore(), f"{host}/{table}"


def is_in_catalog(location: TableLocation) -> bool:
    """Return whether a location is a table of a catalog."""
    return location.store.scheme == SCHEME


async def find_pointer(location: TableLocation) -> str:
    """Return the URL of the current metadata file of a catalog's table.

    Raises:
        NotATableError: The catalog has no such table.
        ConfigError: There is no such catalog.
        StorageError: The catalog cannot be reached.
        MissingExtraError: pyiceberg is not installed.
    """
    catalog, _, table = location.root.partition("/")
    return await asyncio.to_thread(_ask_catalog, catalog, table)


def _ask_catalog(name: str, table: str) -> str:
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError as error:
        raise MissingExtraError(
            f"Catalogs are asked with pyiceberg, which cannot be loaded: {error}.",
            remedy="Install it: pip install 'tailerd[iceberg]'.",
        ) from error
    try:
        return str(load_catalog(name).load_table(table).metadata_location)
    except Exception as error:  # noqa: BLE001
        # Each kind of catalog has a client with errors of its own. Messages of pyiceberg and these
        # clients may contain passwords and tokens of the configuration.
        raise _explain(error, name, table) from None


def _explain(error: Exception, name: str, table: str) -> TailerdError:
    """Return an error without values of the catalog's configuration."""
    from pyiceberg.exceptions import (
        NoSuchNamespaceError,
        NoSuchTableError,
        NotInstalledError,
        ValidationError,
    )

    match error:
        case NoSuchTableError() | NoSuchNamespaceError():
            return NotATableError(
                f"The catalog {name} has no table {table}.", remedy="Check the spelling."
            )
        case NotInstalledError():
            return MissingExtraError(
                f"The catalog {name} needs a library of pyiceberg that is not installed.",
                remedy="Install pyiceberg with the extra of this kind of catalog, such as"
                " pip install 'pyiceberg[sql-sqlite]', glue or hive.",
            )
        case ValidationError():
            return UnsupportedFeatureError(
                f"pyiceberg cannot read the metadata of {table}: it has a type or a feature that"
                " its release does not support, such as a variant column.",
                remedy="Name the table by its folder instead.",
            )
        case ValueError():
            return ConfigError(
                f"The catalog {name} is not configured for pyiceberg ({type(error).__name__}).",
                remedy="Add it to .pyiceberg.yaml in your home folder, or set variables such as"
                f" PYICEBERG_CATALOG__{name.upper()}__URI.",
            )
    return StorageError(
        f"The catalog {name} did not answer for the table {table} ({type(error).__name__}).",
        remedy="Check that it runs, and its section in .pyiceberg.yaml.",
    )


async def resolve_catalog(location: TableLocation, memory_bytes: int) -> TableLocation:
    """Return where a catalog's table is, by the location in its metadata.

    Raises:
        TableError, StorageError, ConfigError: As `find_pointer`, or the metadata cannot be read.
    """
    pointer = await find_pointer(location)
    store, path = location.stores.locate(pointer)
    try:
        content = await store.get(path)
    except FileMissingError as error:
        raise NotATableError(
            f"The metadata file {pointer}, which the catalog names for {location.name}, does not"
            " exist.",
            remedy="Restore it, or correct the table's entry in the catalog.",
        ) from error
    parsed = await asyncio.to_thread(parse_metadata, content, pointer, memory_bytes)
    found = locate_table(parsed.location, location.allowed, stores=location.stores)
    return replace(found, name=location.name)
