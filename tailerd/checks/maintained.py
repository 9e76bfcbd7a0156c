"""The log of a configured table: what maintains it, and what pipelines still need of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tailerd.assembly.offsets import saved_offset
from tailerd.assembly.tables import delivered_folders, ledgers_of
from tailerd.clock import SystemClock
from tailerd.config import Config
from tailerd.formats.maintenance import (
    AskFloor,
    MaintenancePolicies,
    RetentionFloor,
    TableMaintenance,
)
from tailerd.maintenance.needs import Reader, floor_of
from tailerd.maintenance.opening import MaintainedTable, open_maintained
from tailerd.maintenance.settings import policies_of
from tailerd.pipeline.watched_folders import log_folder
from tailerd.storage.folder_identity import FolderIdentity
from tailerd.storage.stores import Stores


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedMaintenance:
    """A table to maintain, and how.

    Attributes:
        format: Name of its format; `auto` to look.
        pipelines: Asked for what pipelines have yet to read.
        stores: How its files are reached.
        ledgers: Places of the ledgers of all pipelines.
    """

    place: str
    format: str
    allowed_paths: Sequence[str]
    policies: MaintenancePolicies
    pipelines: AskFloor
    stores: Stores
    ledgers: tuple[str, ...] = ()

    async def open(self) -> tuple[MaintainedTable, TableMaintenance]:
        """Return the table, and what assessments it and does what is due.

        Raises:
            UnsupportedFeatureError: Its format has no maintenance.
            NotATableError: There is no table.
            ConfigError: No store serves this place, or the format is unknown.
            StorageError: It cannot be looked at.
        """
        table = await open_maintained(
            self.place,
            stores=self.stores,
            table_format=self.format,
            allowed=self.allowed_paths,
            ledgers=self.ledgers,
        )
        clock = SystemClock()
        return table, table.maintenance(self.policies, clock=clock, pipelines=self.pipelines)


def maintenance_of(config: Config, name: str, stores: Stores) -> WantedMaintenance:
    """Return the maintenance of a configured table; what is saved of pipelines bounds a cleanup.

    A saved offset that cannot be read is an `OffsetError` when it is asked for.
    """
    table = config.tables[name]
    section = table.maintenance
    return WantedMaintenance(
        place=table.path,
        format=table.format,
        allowed_paths=table.allowed_paths,
        policies=MaintenancePolicies() if section is None else policies_of(section, config.spark),
        pipelines=partial(needs_of_pipelines, config, name),
        stores=stores,
        ledgers=ledgers_of(config),
    )


async def needs_of_pipelines(config: Config, name: str, table_id: str) -> RetentionFloor:
    """Return what pipelines of this log want of it, as far as they have saved where they stand.

    A log that another name of its folder leads to is this log.
    """
    folder = log_folder(config.tables[name])
    log = await asyncio.to_thread(FolderIdentity.of, folder)
    readers = []
    for other, place in delivered_folders(config).items():
        identity = await asyncio.to_thread(FolderIdentity.of, place)
        if await asyncio.to_thread(log.is_same, identity) is False:
            # Asking for its offset may take a broker.
            continue
        offset = await saved_offset(config, other)
        readers.append(
            Reader(name=other, folder=place)
            if offset is None
            else Reader(name=other, folder=place, version=offset.version, table_id=offset.table_id)
        )
    return await asyncio.to_thread(floor_of, readers, folder, table_id)
