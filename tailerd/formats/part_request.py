"""The request with which a format opens a table for maintenance, inspection and statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tailerd.errors import TailerdError
from tailerd.state.ledger import LedgerLocation
from tailerd.storage.table_location import TableLocation


def ignore_warning(_: TailerdError) -> None:
    """Ignore a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRequest:
    """How one of its format's parts opens a table.

    Attributes:
        location: The table.
        ledger: As in `OpenRequest`.
        ledgers: Those of every configured pipeline, whichever table it reads.
        options: As in `OpenRequest`.
        warn: Receives unexpected but safe findings, such as a checksum mismatch.
        is_strict: A contradiction in the log is an error, not a warning.
    """

    location: TableLocation
    ledger: LedgerLocation | None = None
    ledgers: tuple[LedgerLocation, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)
    warn: Callable[[TailerdError], None] = ignore_warning
    is_strict: bool = False
