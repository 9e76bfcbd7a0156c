"""Protocol and metadata at each version, as far as the log was read."""

from __future__ import annotations

import bisect

from tailerd.formats.delta.protocol.commit_file import Commit
from tailerd.formats.delta.protocol.snapshot import TableState


class TableStateHistory:
    """States of a contiguous range of versions, stored as the few versions where they changed."""

    def __init__(self) -> None:
        self._start = 0
        self._end = -1
        self._versions: list[int] = []
        self._states: list[TableState] = []

    def restart(self, version: int, state: TableState) -> None:
        """Discard everything except the state of `version`."""
        self._start = self._end = version
        self._versions, self._states = [version], [state]

    def knows(self, version: int) -> bool:
        """Return whether the state of `version` is known."""
        return self._start <= version <= self._end

    @property
    def newest(self) -> TableState | None:
        """The state of the newest known version; None before any is known."""
        return self._states[-1] if self._states else None

    @property
    def table_ids(self) -> set[str]:
        """Identities of the table in known versions: more than one if it was replaced."""
        return {state.metadata.id for state in self._states}

    def at(self, version: int) -> TableState:
        """Return the state of a known version."""
        return self._states[bisect.bisect_right(self._versions, version) - 1]

    def extend(self, commit: Commit) -> None:
        """Add the state of the version after the last known one."""
        if not self._states or commit.version != self._end + 1:
            return
        before = self._states[-1]
        after = before.after(commit)
        self._end = commit.version
        if after is not before:
            self._versions.append(commit.version)
            self._states.append(after)

    def forget_before(self, version: int) -> None:
        """Drop states that only versions before `version` need."""
        keep = bisect.bisect_right(self._versions, version) - 1
        if keep > 0:
            del self._versions[:keep]
            del self._states[:keep]
            self._start = max(self._start, self._versions[0])
