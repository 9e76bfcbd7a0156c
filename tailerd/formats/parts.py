"""The parts of a table format that a format may leave out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from tailerd.errors import UnsupportedFeatureError
from tailerd.formats.inspection import Inspector
from tailerd.formats.maintenance import Maintainer
from tailerd.formats.statistics import Statistics
from tailerd.storage.table_location import TableLocation

if TYPE_CHECKING:
    # Processes that read rows must not load the configuration models.
    from tailerd.config.maintenance import MaintenanceConfig

_Part = TypeVar("_Part")
_SEED = 7


class DemoTable(Protocol):
    """A small table with a writer that keeps changing it. Blocking."""

    @property
    def folder(self) -> Path:
        """Where it is."""
        ...

    def create(self) -> None:
        """Make the table, with a few rows."""
        ...

    def change(self) -> str:
        """Commit one more version; return a description of the change."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """A format's demo table.

    Attributes:
        table: Returns a table to be created in a folder, which must not contain one yet; the same
            seed yields the same changes.
        maintenance: The section `maintenance` of a demo table; None for none.
    """

    table: Callable[[Path, int], DemoTable]
    maintenance: Mapping[str, object] | None = None


def make_demo_table(demo: Demo, folder: Path, changes: int = 5) -> None:
    """Create a demo table with a few changes; blocking.

    Args:
        folder: Where; it is created.
        changes: Commits after the first.
    """
    table = demo.table(folder, _SEED)
    table.create()
    for _ in range(changes):
        table.change()


class OptionalParts(Protocol):
    """Parts that are None unless a format has them; formats load them on first access."""

    @property
    def inspector(self) -> Inspector | None:
        """Shows versions, files and commits: `tailerd inspect` and `history`."""
        return None

    @property
    def maintainer(self) -> Maintainer | None:
        """Keeps logs short: section `maintenance` and `tailerd maintain`."""
        return None

    @property
    def maintenance_config(self) -> type[MaintenanceConfig] | None:
        """The model of its section `maintenance`, with the format's own fields."""
        return None

    @property
    def statistics(self) -> Statistics | None:
        """Measures tables: table metrics and their forecast."""
        return None

    @property
    def demo(self) -> Demo | None:
        """Creates a table to try out: `tailerd demo`."""
        return None

    async def is_group(self, location: TableLocation) -> bool:
        """Return whether a location is not a table but a group of the tables in its folder.

        Raises:
            StorageError: The location cannot be read.
        """
        return False


def require_part(part: _Part | None, table_format: str, capability: str) -> _Part:
    """Return a part of a format.

    Args:
        table_format: The format's name.
        capability: The purpose of the part, as a noun.

    Raises:
        UnsupportedFeatureError: The format does not have it.
    """
    if part is None:
        raise UnsupportedFeatureError(
            f"Tables of the format {table_format} have no {capability} in this release.",
            remedy="Their changes can still be read.",
        )
    return part
