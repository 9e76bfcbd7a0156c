"""The log of a configured table: its maintenance, and which versions pipelines still need."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tailerd.clock import SystemClock
from tailerd.config import Config
from tailerd.daemon.offsets import saved_offset
from tailerd.daemon.tables import delivered_folders, list_ledgers, log_folder
from tailerd.formats.maintenance import (
    AskFloor,
    MaintenancePolicies,
    RetentionFloor,
    TableMaintenance,
)
from tailerd.maintenance.needs import Reader, find_floor
from tailerd.maintenance.opening import MaintainedTable, open_maintained
from tailerd.maintenance.settings import make_policies
from tailerd.storage.folder_identity import FolderIdentity
from tailerd.storage.stores import Stores


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredMaintenance:
    """A table to maintain, and how.

    Attributes:
        format: Name of its format; `auto` to detect it.
        pipelines: Returns which versions pipelines still need.
        stores: How its files are reached.
        ledgers: Locations of the ledgers of all pipelines.
    """

    location: str
    format: str
    allowed_paths: Sequence[str]
    policies: MaintenancePolicies
    pipelines: AskFloor
    stores: Stores
    ledgers: tuple[str, ...] = ()

    async def open(self) -> tuple[MaintainedTable, TableMaintenance]:
        """Return the table, and its maintenance.

        Raises:
            UnsupportedFeatureError: Its format has no maintenance.
            NotATableError: There is no table.
            ConfigError: No store serves this location, or the format is unknown.
            StorageError: The table cannot be read.
        """
        table = await open_maintained(
            self.location,
            stores=self.stores,
            table_format=self.format,
            allowed=self.allowed_paths,
            ledgers=self.ledgers,
        )
        clock = SystemClock()
        return table, table.maintenance(self.policies, clock=clock, pipelines=self.pipelines)


def configure_maintenance(config: Config, name: str, stores: Stores) -> ConfiguredMaintenance:
    """Return the maintenance of a configured table; saved offsets of pipelines limit a cleanup.

    A saved offset that cannot be read raises an `OffsetError` when it is needed.
    """
    table = config.tables[name]
    section = table.maintenance
    return ConfiguredMaintenance(
        location=table.path,
        format=table.format,
        allowed_paths=table.allowed_paths,
        policies=MaintenancePolicies() if section is None else make_policies(section, config.spark),
        pipelines=partial(find_retention_floor, config, name),
        stores=stores,
        ledgers=list_ledgers(config),
    )


async def find_retention_floor(config: Config, name: str, table_id: str) -> RetentionFloor:
    """Return which versions pipelines of this log still need, by their saved offsets.

    Pipelines that reach the same folder by another path are included.
    """
    folder = log_folder(config.tables[name])
    log = await asyncio.to_thread(FolderIdentity.read, folder)
    readers = []
    for other, location in delivered_folders(config).items():
        identity = await asyncio.to_thread(FolderIdentity.read, location)
        if await asyncio.to_thread(log.is_same, identity) is False:
            # Reading its offset may need a broker.
            continue
        offset = await saved_offset(config, other)
        readers.append(
            Reader(name=other, folder=location)
            if offset is None
            else Reader(
                name=other, folder=location, version=offset.version, table_id=offset.table_id
            )
        )
    return await asyncio.to_thread(find_floor, readers, folder, table_id)
