"""Publishes a file of the log, and withdraws it if the log is no longer the one it was made from.

Writing a checkpoint may take minutes. If the table is dropped and another one replaces it
meanwhile, the checkpoint would turn the new table into the old one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from tailerd.errors import FileMissingError, LogChangedError, StorageError, TailerdError
from tailerd.formats.delta.log.log_folder import LogFolder
from tailerd.formats.delta.protocol.log_path import LogFile
from tailerd.storage.base import delete_all

WITHDRAW_SECONDS = 30.0


async def publish(
    log: LogFolder, path: str, published: LogFile, appear: Callable[[], Awaitable[None]]
) -> None:
    """Publish a file; withdraw it if the log changes meanwhile.

    Args:
        path: The file's, in the store.
        published: As in `check_unchanged`; checked right before and once after.
        appear: Publishes the file atomically; its errors are passed through.

    Raises:
        LogChangedError: As `check_unchanged`.
        StorageError: The log cannot be checked; the file is withdrawn.
    """
    await check_unchanged(log, published)
    await appear()
    try:
        await check_unchanged(log, published)
    except BaseException as error:
        await withdraw(log, path, reason=error)
        raise


async def check_unchanged(log: LogFolder, published: LogFile) -> None:
    """Make sure that a version is still the one that was read.

    Args:
        published: The file that publishes it, as listed.

    Raises:
        LogChangedError: It is missing, or was replaced.
        StorageError: It cannot be checked.
    """
    try:
        found = await log.store.head(log.resolve_path(published))
    except FileMissingError:
        found = None
    if found is None or (found.size_bytes, found.mtime_ms) != (
        published.size_bytes,
        published.mtime_ms,
    ):
        raise LogChangedError(
            f"No file was published for version {published.end_version} of {log.url}, because"
            f" {published.name} is no longer the file that was read: the table was dropped, or"
            " replaced by another.",
            remedy="Run the command again.",
        )


async def withdraw(log: LogFolder, *paths: str, reason: BaseException) -> bool:
    """Delete files that must not stay, in bounded time; return whether they are gone.

    Args:
        reason: The error being raised. A failed deletion is added to its message, instead of
            replacing it by another error.
    """
    try:
        async with asyncio.timeout(WITHDRAW_SECONDS):
            await delete_all(log.store, paths)
    except TimeoutError:
        _add(reason, log, paths, f"The storage did not answer within {WITHDRAW_SECONDS:g} seconds.")
    except StorageError as error:
        _add(reason, log, paths, str(error))
    else:
        return True
    return False


def _add(reason: BaseException, log: LogFolder, paths: Sequence[str], why: str) -> None:
    more = f" and {len(paths) - 1} more" * (len(paths) > 1)
    urls = tuple(map(log.store.format_url, paths))
    text = f"Also, {urls[0]}{more} may still exist and could not be deleted:"
    if not isinstance(reason, TailerdError):
        reason.add_note(f"{text} {why}")
    elif not set(urls).issubset(reason.leftovers):
        reason.leftovers = (*reason.leftovers, *urls)
        reason.message += f" {text} {why}"
        reason.raw_remedy = f"{reason.raw_remedy} Delete the remaining files.".strip()
