"""The reaction of a pipeline to incomplete tables, and the check that detects them."""

from __future__ import annotations

import enum
from concurrent.futures import Executor
from contextlib import aclosing

from tailerd.backoff import Attempts
from tailerd.changefeed.limits import BatchLimit
from tailerd.changefeed.offset import Offset, Phase
from tailerd.errors import (
    InvalidDeletionVectorError,
    MissingDataFileError,
    MissingVersionError,
    TableRecreatedError,
    TailerdError,
    UnreadableDataFileError,
)
from tailerd.formats.base import ChangeSource
from tailerd.pipeline.change_stream import ChangeStream
from tailerd.pipeline.memory_budget import TableMemory


class OnGap(enum.StrEnum):
    """Where to continue when the next version or its files are gone, or the table was replaced.

    Two of the values are words of `ChangeSource.initial_offset`. With `net` the offset stays, and
    the versions up to the head are delivered as one net change.
    """

    STOP = "stop"
    SNAPSHOT = "snapshot"
    LATEST = "latest"
    NET = "net"


class OnCorruptCommit(enum.StrEnum):
    """What to do with a commit whose rows cannot be read."""

    STOP = "stop"
    SKIP_AND_RECORD = "skip-and-record"


GAP_ERRORS = (MissingVersionError, TableRecreatedError)
"""Errors that mean a gap. So does `MissingDataFileError`, if the table no longer has the file."""

CORRUPT_COMMIT_ERRORS = (MissingDataFileError, UnreadableDataFileError, InvalidDeletionVectorError)
"""Errors that mean a commit whose rows cannot be read."""


def give_up(error: TailerdError, attempts: Attempts) -> TailerdError:
    """Return why a pipeline ends: `error`, and that retrying it did not help."""
    if attempts.seconds_left or not error.retryable:
        return error
    seconds = attempts.policy.max_seconds
    return error.restate(f"{error.message} No attempt succeeded in {seconds:g} s.")


class CommitCheck:
    """Reads the commits of one delivery loop, in order, before any row of them is delivered.

    So every commit is read twice, but only if damaged commits are left out. Snapshots are not
    checked.
    """

    def __init__(
        self,
        source: ChangeSource,
        *,
        limit: BatchLimit,
        executor: Executor | None,
        memory: TableMemory | None,
    ) -> None:
        self._source = source
        self._limit = limit
        self._executor = executor
        self._memory = memory
        self._checked: Offset | None = None

    async def reach(self, start: Offset, end: Offset) -> tuple[Offset, TailerdError | None]:
        """Return how far from `start` every commit can be read completely, `end` at most.

        Returns:
            (end, None), or the start of the first damaged commit and its error. If a commit is
            delivered in parts, all are checked with the first.

        Raises:
            TailerdError: An error that does not concern one commit.
        """
        if start.phase is Phase.SNAPSHOT:
            after = start.after_version(self._source)
            return (after if after.is_before(end) else end), None
        whole = end if end.position == 0 else end.after_version(self._source)
        if self._checked is not None and not self._checked.is_before(whole):
            return end, None
        if await self._error_in(start, whole) is not None:
            here = start
            while here.is_before(whole):
                error = await self._error_in(here, here.after_version(self._source))
                if error is not None:
                    return here, error
                here = here.after_version(self._source)
        self._checked = whole
        return end, None

    async def _error_in(self, start: Offset, end: Offset) -> TailerdError | None:
        stream = ChangeStream(
            self._source,
            start,
            end,
            limit=self._limit,
            executor=self._executor,
            memory=self._memory,
        )
        try:
            async with aclosing(stream.batches()) as batches:
                async for _ in batches:
                    pass
        except CORRUPT_COMMIT_ERRORS as error:
            return error
        return None
