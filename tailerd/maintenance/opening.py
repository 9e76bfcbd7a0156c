"""Opens a table for maintenance, with the parts of its format that do it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from tailerd.clock import Clock
from tailerd.formats.detect import find_table
from tailerd.formats.maintenance import (
    AskFloor,
    Maintainer,
    MaintenancePolicies,
    TableMaintenance,
)
from tailerd.formats.part_request import PartRequest
from tailerd.formats.parts import require_part
from tailerd.formats.statistics import Statistics
from tailerd.maintenance.pins import PinBoard, with_pins
from tailerd.maintenance.programs import TableJobs, on_engine
from tailerd.registry import AUTO
from tailerd.state.ledger import LedgerLocation
from tailerd.storage.base import ObjectStore
from tailerd.storage.stores import Stores
from tailerd.storage.table_location import TableLocation, locate_table


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainedTable:
    """A table whose format has maintenance.

    Attributes:
        format: Name of its format.
        statistics: None if the format has none.
        jobs: Runs its jobs in a process; None to run them in this one.
    """

    request: PartRequest
    format: str
    maintainer: Maintainer
    statistics: Statistics | None
    jobs: TableJobs | None = None

    @property
    def location(self) -> TableLocation:
        """Where the table is."""
        return self.request.location

    def pins(self, clock: Clock) -> PinBoard:
        """Return the table's pins."""
        return PinBoard(self.location.store, self.location.root, clock=clock)

    def maintenance(
        self, policies: MaintenancePolicies, *, clock: Clock, pipelines: AskFloor
    ) -> TableMaintenance:
        """Return the maintenance of the table; its cleanups respect pins.

        Args:
            pipelines: Returns which versions pipelines still need.

        Raises:
            ConfigError: The policies are not for this format.
        """
        wait_for = policies.cleanup.wait_for_pins
        work = self.maintainer.open(
            self.request,
            policies,
            clock=clock,
            floor=with_pins(self.pins(clock), wait_for, pipelines),
            run_on_engine=on_engine(self.location.url, self.format, self.location.stores),
        )
        return work if self.jobs is None else self.jobs.wrap(work)


OpenMaintained = Callable[[], Awaitable[MaintainedTable]]
"""Opens a table; raises what `open_maintained` does."""


async def open_maintained(
    location: str,
    *,
    stores: Stores,
    table_format: str = AUTO,
    allowed: Iterable[str] = (),
    wrap_store: Callable[[ObjectStore], ObjectStore] | None = None,
    ledgers: Iterable[str] = (),
) -> MaintainedTable:
    """Open the table at a location for maintenance.

    Args:
        stores: How its files are reached.
        table_format: Name of its format; `auto` to detect it.
        allowed: Locations that symbolic links in its log may lead to, for reading.
        wrap_store: Puts a wrapper, such as one that counts requests, around its store.
        ledgers: Locations of the ledgers of all pipelines.

    Raises:
        UnsupportedFeatureError: Its format has no maintenance.
        NotATableError: There is no table.
        ConfigError: No store serves this location, or the format is unknown.
        StorageError: The table cannot be read.
    """
    found, at = await find_table(locate_table(location, allowed, stores=stores), table_format)
    return MaintainedTable(
        request=PartRequest(
            location=at.wrap(wrap_store),
            ledgers=tuple(LedgerLocation(each, is_read_only=True) for each in ledgers),
        ),
        format=found.name,
        maintainer=require_part(found.maintainer, found.name, "maintenance"),
        statistics=found.statistics,
    )
