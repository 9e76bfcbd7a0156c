"""The non-file actions of a state, as written.

Protocol: PROTOCOL.md#action-reconciliation
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from tailerd.errors import BugError, LogChangedError
from tailerd.formats.delta.protocol.actions import UNREADABLE, Metadata, Protocol
from tailerd.formats.delta.protocol.full_actions import FullLine, JsonObject
from tailerd.formats.delta.protocol.snapshot import Snapshot

StateAction = tuple[str, JsonObject]
"""Name and body of an action."""


class OtherActions:
    """Reconciles protocol, metadata, transactions and domains; later actions replace earlier ones.

    Unknown fields are kept.
    """

    def __init__(self) -> None:
        self._protocol: JsonObject = {}
        self._metadata: JsonObject = {}
        self._transactions: dict[str, JsonObject] = {}
        self._domains: dict[str, JsonObject] = {}

    def take(self, kind: str, body: JsonObject) -> None:
        """Apply the next action, in the order of the log."""
        match kind:
            case "protocol":
                self._protocol = body
            case "metaData":
                self._metadata = body
            case "txn":
                self._transactions[str(body["appId"])] = body
            case "domainMetadata":
                self._domains[str(body["domain"])] = body
            case _:
                raise BugError(f"{kind} is not an action of a state.")

    def take_lines(self, lines: Iterable[FullLine]) -> None:
        """Apply the non-file actions of lines."""
        for line in lines:
            if (other := line.other) is not None:
                self.take(*other)

    def of_checkpoint(self, transactions_after_ms: int | None = None) -> Iterator[StateAction]:
        """Yield the actions for a checkpoint, without removed domains and expired transactions.

        Args:
            transactions_after_ms: Transactions last updated at or before this time expired; None
                keeps all, and those without a time are always kept.
        """
        yield "protocol", self._protocol
        yield "metaData", self._metadata
        for transaction in self._transactions.values():
            time = transaction.get("lastUpdated")
            if transactions_after_ms is None or time is None or time > transactions_after_ms:
                yield "txn", transaction
        for domain in self._domains.values():
            if not domain.get("removed"):
                yield "domainMetadata", domain

    def check_is(self, snapshot: Snapshot) -> None:
        """Compare with a snapshot of the same version that was replayed independently.

        Raises:
            LogChangedError: They differ, so the log changed in between.
        """
        try:
            same = (
                msgspec.convert(_no_nulls(self._protocol), Protocol) == snapshot.state.protocol
                and msgspec.convert(_no_nulls(self._metadata), Metadata) == snapshot.state.metadata
                and self._transactions.keys() == snapshot.transactions.keys()
                and {name for name, body in self._domains.items() if not body.get("removed")}
                == snapshot.domain_metadata.keys()
            )
        except UNREADABLE:
            same = False
        if not same:
            raise LogChangedError(
                f"The log of version {snapshot.version} was read twice with different results: it"
                " changed in between.",
                remedy="Run the command again.",
            )


def applications_of(actions: Iterable[StateAction]) -> frozenset[str]:
    """Return the applications whose transactions are among the actions."""
    return frozenset(str(body["appId"]) for kind, body in actions if kind == "txn")


def _no_nulls(body: JsonObject) -> JsonObject:
    return {key: value for key, value in body.items() if value is not None}
