"""A user's rights to a table or a state in a bucket, determined by trying each operation."""

from __future__ import annotations

from tailerd.errors import (
    AccessDeniedError,
    ConditionalPutUnsupportedError,
    FileExistsAlreadyError,
    FileMissingError,
)
from tailerd.storage.base import ObjectStore
from tailerd.storage.output import OutputStore

_PROBE = "_tailerd/.tailerd-probe-rights"
"""A fixed name: where nothing may be deleted, at most one file stays, however often this runs."""


async def missing_rights(
    store: ObjectStore, root: str, log: str, *, is_written: bool
) -> dict[str, AccessDeniedError | ConditionalPutUnsupportedError]:
    """Return denied operations by name: `list`, `get`, `put`, `conditional put`, `delete`.

    Args:
        root, log: Paths of the table and its log, in the store; or those of a state and its lease.
        is_written: Whether the log is maintained: then an empty file is written next to it and
            deleted.

    Raises:
        StorageError: Another error occurred.
    """
    missing: dict[str, AccessDeniedError | ConditionalPutUnsupportedError] = {}
    # Where listing is denied or finds nothing, any name will do.
    file = f"{log}/_last_checkpoint"
    try:
        async for meta in store.list_from(log):
            file = meta.path
            break
    except AccessDeniedError as error:
        missing["list"] = error
    try:
        await store.get(file, 0, 1)
    except FileMissingError:
        # The request was not denied.
        pass
    except AccessDeniedError as error:
        missing["get"] = error
    if is_written:
        missing |= await _missing_writes(store, f"{root}/{_PROBE}")
    return missing


async def missing_for_sweep(store: ObjectStore, log: str) -> dict[str, AccessDeniedError]:
    """Return `list uploads` where a cleanup may not list unfinished uploads of dead writers.

    The rest of a cleanup works without that right.

    Raises:
        StorageError: Another error occurred.
    """
    try:
        if isinstance(store, OutputStore):
            # Nothing is that old, so this only lists.
            await store.sweep(log, 0)
    except AccessDeniedError as error:
        return {"list uploads": error}
    return {}


async def _missing_writes(
    store: ObjectStore, probe: str
) -> dict[str, AccessDeniedError | ConditionalPutUnsupportedError]:
    missing: dict[str, AccessDeniedError | ConditionalPutUnsupportedError] = {}
    try:
        await store.put(probe, b"")
    except AccessDeniedError as error:
        # Without it there is no condition to test and nothing to delete.
        return {"put": error}
    try:
        await store.put(probe, b"", if_absent=True)
    except FileExistsAlreadyError:
        pass
    except (AccessDeniedError, ConditionalPutUnsupportedError) as error:
        missing["conditional put"] = error
    try:
        await store.delete(probe)
    except AccessDeniedError as error:
        missing["delete"] = error
    return missing
