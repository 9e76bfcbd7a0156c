"""Does a saved offset still mean this table? And what is saved with it, to tell later."""

from __future__ import annotations

from dataclasses import replace

from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.offset import Offset, Version
from tailerd.changefeed.saved_offset import OffsetStore, SavedOffset
from tailerd.errors import OffsetError, TableRecreatedError
from tailerd.sources.base import ChangeSource


async def save_offset(
    store: OffsetStore, table: str, offset: Offset, changes: ChangeMode, source: ChangeSource
) -> None:
    """Keep an offset together with the identity of what it counts.

    Raises:
        StorageError: It could not be saved.
    """
    await store.save(table, await identified(offset, changes, source))


async def identified(offset: Offset, changes: ChangeMode, source: ChangeSource) -> SavedOffset:
    """Return an offset together with the identity of what it counts."""
    identity = await source.identity(last_version(offset))
    named = replace(offset, table_id=identity.table_id)
    return SavedOffset(offset=named, changes=changes, schema_id=identity.schema_id)


async def check_identity(
    table: str, saved: SavedOffset, changes: ChangeMode, source: ChangeSource
) -> None:
    """Make sure that what is there now is what the saved offset counts.

    Raises:
        OffsetError: It counts in another change mode.
        TableRecreatedError: Another table is there, or the log before the offset is another.
    """
    if saved.changes is not changes:
        raise OffsetError(
            f"The saved offset of {table} counts changes {saved.changes.value!r}, but the"
            f" configuration now says {changes.value!r}: positions differ.",
            hint=f"Set changes back, or run `tailerd offsets reset {table} --to ...`.",
        )
    version = last_version(saved.offset)
    identity = await source.identity(version)
    reset = f"Run `tailerd offsets reset {table} --to snapshot`, or set on_gap."
    if identity.table_id != saved.offset.table_id:
        raise TableRecreatedError(
            f"The saved offset of {table} belongs to table {saved.offset.table_id}, and the log of"
            f" {source.name} now has table {identity.table_id} there: it was dropped and created"
            " again.",
            hint=reset,
        )
    if saved.schema_id and identity.schema_id and saved.schema_id != identity.schema_id:
        raise TableRecreatedError(
            f"Version {version} of {source.name} has another schema than when {table} delivered"
            " it, under the same table id: the log was rewritten or restored from a copy.",
            hint=reset,
        )


def last_version(end: Offset) -> Version:
    """Return the last version before `end` or partly before it; -1 before the first."""
    return end.last_version
