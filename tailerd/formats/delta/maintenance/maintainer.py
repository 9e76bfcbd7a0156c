"""The entry point of Delta's maintenance."""

from __future__ import annotations

from tailerd.clock import Clock
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.maintenance.distributed.checkpoint import DistributedCheckpoints
from tailerd.formats.delta.maintenance.distributed.request import (
    CheckpointAnswer,
    CheckpointRequest,
)
from tailerd.formats.delta.maintenance.jobs import DeltaMaintenance
from tailerd.formats.delta.maintenance.policies import Policies
from tailerd.formats.maintenance import (
    AskFloor,
    MaintenancePolicies,
    RunOnEngine,
    TaskExecutor,
    no_readers,
)
from tailerd.formats.part_request import PartRequest


class DeltaMaintainer:
    """The `Maintainer` of Delta tables."""

    def open(
        self,
        request: PartRequest,
        policies: MaintenancePolicies,
        *,
        clock: Clock,
        floor: AskFloor = no_readers,
        run_on_engine: RunOnEngine | None = None,
    ) -> DeltaMaintenance:
        """Return the maintenance of one table; makes no request yet.

        Raises:
            ConfigError: The policies are not valid for Delta.
        """
        location = request.location
        return DeltaMaintenance(
            LogReader(location.store, location.root, on_mismatch=request.warn, with_rows=True),
            Policies.from_section(policies),
            clock=clock,
            floor=floor,
            run_on_engine=run_on_engine,
        )

    async def run_request(self, request: PartRequest, job: bytes, executor: TaskExecutor) -> bytes:
        """Write a checkpoint of the newest version by an engine's tasks; return its result.

        Raises:
            TableError, StorageError: It cannot be written.
            EngineError: The engine failed.
        """
        location = request.location
        reader = LogReader(location.store, location.root, on_mismatch=request.warn)
        requested = CheckpointRequest.from_json(job)
        snapshot, _ = await reader.open_listed(with_files=False)
        result = await DistributedCheckpoints(executor, reader).write(snapshot, requested.manifest)
        return CheckpointAnswer.from_result(result).to_json()
