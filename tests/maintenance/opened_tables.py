"""Policies as the daemon passes them on, and tables as the maintenance process opens them."""

from __future__ import annotations

import json

from tailerd.formats.delta.maintenance.maintainer import DeltaMaintainer
from tailerd.formats.delta.maintenance.policies import Policies
from tailerd.formats.delta.stats.table_growth import open_growth
from tailerd.formats.maintenance import MaintenancePolicies
from tailerd.formats.part_request import PartRequest
from tailerd.maintenance.opening import MaintainedTable
from tailerd.storage.base import ObjectStore
from tailerd.storage.stores import Stores
from tailerd.storage.table_location import TableLocation


def convert_policies(policies: Policies) -> MaintenancePolicies:
    """Return policies as the section `maintenance` would have said them."""
    checkpoint, compaction = policies.checkpoint, policies.log_compaction
    section = {
        "checkpoint": {
            "every_commits": checkpoint.every_commits,
            "every_bytes": checkpoint.every_bytes,
            "every_age": checkpoint.every_seconds,
            "max_replay": checkpoint.max_replay_seconds,
            "min_interval": checkpoint.min_interval_seconds,
            "quiet": checkpoint.quiet_seconds,
            "manifest": checkpoint.manifest,
        }
        if checkpoint.is_enabled
        else None,
        "log_compaction": None
        if compaction.every_commits is None
        else {"every_commits": compaction.every_commits},
        "checksum": policies.checksum.is_enabled,
    }
    found = MaintenancePolicies(
        jobs=json.dumps(section),
        cleanup=policies.cleanup,
        pauses=policies.pauses,
        engine=policies.engine,
    )
    assert Policies.from_section(found) == policies
    return found


def maintained(store: ObjectStore, root: str) -> MaintainedTable:
    """Return a Delta table in any store, as it is found where it is maintained."""
    return MaintainedTable(
        request=PartRequest(
            location=TableLocation(store=store, root=root, url=root, name=root, stores=Stores())
        ),
        format="delta",
        maintainer=DeltaMaintainer(),
        statistics=open_growth,
    )
