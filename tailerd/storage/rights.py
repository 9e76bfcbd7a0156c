"""What a user may do with a table in a bucket, or a state there, found out by doing it."""

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
"""One name: where nothing may be deleted, one file stays however often it is asked."""


async def missing_rights(
    store: ObjectStore, root: str, log: str, *, is_written: bool
) -> dict[str, AccessDeniedError | ConditionalPutUnsupportedError]:
    """Return what is refused, by name: `list`, `get`, `put`, `conditional put`, `delete`.

    Args:
        root, log: The table's place and its log's, in the store; or those of a state and its lease.
        is_written: Whether the log is maintained: then an empty file beside it is written and
            deleted.

    Raises:
        StorageError: Something else is wrong.
    """
    missing: dict[str, AccessDeniedError | ConditionalPutUnsupportedError] = {}
    # Where nothing is listed, any name will do.
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
        # Asked for and not refused.
        pass
    except AccessDeniedError as error:
        missing["get"] = error
    if is_written:
        missing |= await _missing_writes(store, f"{root}/{_PROBE}")
    return missing


async def missing_for_sweep(store: ObjectStore, log: str) -> dict[str, AccessDeniedError]:
    """Return `list uploads` where a cleanup may not look for what writers that died left.

    All else of a cleanup is done without it.

    Raises:
        StorageError: Something else is wrong.
    """
    try:
        if isinstance(store, OutputStore):
            # Nothing is so old: they are only looked for.
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
        # Without it there is no condition to try, and nothing to delete.
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
