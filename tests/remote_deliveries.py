"""Deliveries that another process writes, as an engine has it, with a thread for the process."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable
from dataclasses import replace

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.saved_offset import SavedOffset
from tailerd.sinks.base import RemoteDelivery, RowWriter
from tests.contracts.test_sink import offset

Run = Callable[[RowWriter], Awaitable[object]]


def written_by(*batches: ChangeBatch) -> Run:
    """Return what gives rows to the writer as it comes out at the other end."""

    async def run(writer: RowWriter) -> object:
        there: RowWriter = pickle.loads(pickle.dumps(writer))
        written = await asyncio.to_thread(there, iter(batches))
        return pickle.loads(pickle.dumps(written))

    return run


def remote_delivery(version: int, *batches: ChangeBatch) -> RemoteDelivery:
    """Return a delivery of one version."""
    end = offset(version + 1)
    return RemoteDelivery(
        table="orders",
        start=offset(version),
        end=end,
        saved=SavedOffset(offset=end, changes=ChangeMode.AUTO),
        run=written_by(*batches),
    )


def with_run(delivery: RemoteDelivery, run: Run) -> RemoteDelivery:
    """Return the delivery, done by something else."""
    return replace(delivery, run=run)
