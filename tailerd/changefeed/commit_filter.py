"""Which commits are not delivered, by what their writers recorded. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFilter:
    """Commits that are skipped: those that have one of these.

    Attributes:
        operations: Names of operations, compared without case.
        application_ids: Ids of writers that number their transactions (Delta's `txn`).
        user_metadata: The text that a writer attached; empty for none.
    """

    operations: frozenset[str] = frozenset()
    application_ids: frozenset[str] = frozenset()
    user_metadata: str = ""

    @property
    def facts(self) -> list[str]:
        """Names of the facts of commits that it needs."""
        return [name for name in self.__dataclass_fields__ if getattr(self, name)]

    def digest(self) -> str:
        """Return a text that changes with the meaning."""
        parts = [sorted(self.operations), sorted(self.application_ids), self.user_metadata]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def skips(self, operation: str, applications: Collection[str], user_metadata: str) -> bool:
        """Return whether a commit is skipped."""
        operations = {name.casefold() for name in self.operations}
        return (
            operation.casefold() in operations
            or not self.application_ids.isdisjoint(applications)
            or bool(self.user_metadata and self.user_metadata == user_metadata)
        )
