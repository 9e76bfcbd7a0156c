"""States as tests use them: owned without a lock, or leased by any process."""

from __future__ import annotations

from pathlib import Path

from tailerd.clock import Clock, SystemClock
from tailerd.state.base import ScratchLocation
from tailerd.state.leased_files import LeasedFiles, make_lease
from tailerd.state.locked_files import LockedFiles
from tailerd.state.state import State
from tailerd.storage.base import ObjectStore
from tailerd.storage.lease import LEASE_SECONDS, Holder
from tailerd.storage.local import LocalStore


class OwnedFiles(LockedFiles):
    """The files of a folder that only the test uses."""

    @property
    def token(self) -> int:
        return 0

    async def require_ownership(self) -> int:
        return 0


def leased_state(
    store: ObjectStore,
    root: str,
    clock: Clock | None = None,
    *,
    holder: str = "",
    seconds: float = LEASE_SECONDS,
) -> State:
    """Return the view of a process of another machine, named `holder`; by default of this one."""
    process = Holder(machine=holder, pid=1, name=holder) if holder else None
    lease = make_lease(store, root, clock=clock or SystemClock(), seconds=seconds, holder=process)
    return State(LeasedFiles(store, root, lease))


def owned_scratch(folder: Path) -> ScratchLocation:
    """Return a folder that only the test uses, for a snapshot's file list."""
    return scratch_in(LocalStore(is_private=True), str(folder), folder)


def scratch_in(store: ObjectStore, prefix: str, folder: Path) -> ScratchLocation:
    """Return a location in a store that only the test uses; `folder` is its cache."""

    async def require_ownership() -> int:
        return 0

    return ScratchLocation(
        store=store, prefix=prefix, folder=folder, require_ownership=require_ownership
    )


def owned_state(folder: Path) -> State:
    return State(OwnedFiles(folder))
