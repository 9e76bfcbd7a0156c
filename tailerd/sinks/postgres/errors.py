"""Map errors of the driver to those of tailerd, without their secrets."""

from __future__ import annotations

import psycopg

from tailerd.errors import SinkError, SinkRefusedError

_RETRIED_CLASSES = frozenset({"08", "25", "40", "53", "54", "55", "57", "58", "XX"})
"""Classes of SQLSTATE that may pass: connections, conflicts, resources, locks, shutdown, IO."""
_DEPENDENTS = "2BP01"
_REMEDIES = {
    _DEPENDENTS: "Set `snapshot: truncate`, which keeps the table and what depends on it.",
    "28000": "Correct `dsn`, or the server's pg_hba.conf.",
    "28P01": "Correct `password`, or the user in `dsn`.",
    "3D000": "Correct the database in `dsn`, or create it.",
    "3F000": "Create the schema, or correct `table`.",
    "42501": "Grant the right to the user: CREATE on the schema, TEMPORARY on the database, and"
    " ownership of the target.",
    "53100": "Free space on the server's disk; the delivery is repeated.",
}


def map_error(error: psycopg.Error, address: str) -> SinkError:
    """Return our error for one of the driver.

    Args:
        error: Raised by a statement or a connection.
        address: Host, database and table, for the message.
    """
    state = error.sqlstate or ""
    # Errors of connections have no parts, and may have several lines: one for each address.
    text = " ".join((error.diag.message_primary or str(error)).split()).rstrip(".")
    # Others may contain rows.
    detail = error.diag.message_detail if state == _DEPENDENTS else None
    message = f"PostgreSQL at {address} refused a statement: {text}."
    if not state:
        # Without a state it was not the server that raised it.
        message = f"The connection to PostgreSQL at {address} failed: {text}."
    if detail:
        message += f" {' '.join(detail.split()).rstrip('.')}."
    if state:
        message += f" (SQLSTATE {state})"
    is_retried = not state or state[:2] in _RETRIED_CLASSES
    kind = SinkError if is_retried else SinkRefusedError
    return kind(message, remedy=_REMEDIES.get(state, ""))
