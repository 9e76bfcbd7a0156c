"""Parses the operation of a version's transaction. Pure.

Specification: "Conflict Resolution". It is used only to decide whether rows were only moved.
"""

from __future__ import annotations

import enum

from tailerd.formats.lance.protocol.wire import fields

TRANSACTIONS_FOLDER = "_transactions"


class Operation(enum.IntEnum):
    """Operations, by their number in the message."""

    UNKNOWN = 0
    APPEND = 100
    DELETE = 101
    OVERWRITE = 102
    CREATE_INDEX = 103
    REWRITE = 104
    MERGE = 105
    RESTORE = 106
    RESERVE_FRAGMENTS = 107
    UPDATE = 108
    PROJECT = 109
    UPDATE_CONFIG = 110
    DATA_REPLACEMENT = 111
    UPDATE_MEM_WAL_STATE = 112
    CLONE = 113
    UPDATE_BASES = 114
    DATA_OVERLAY = 115

    @property
    def word(self) -> str:
        """Its name, human-readable; empty if unknown."""
        return "" if self is Operation.UNKNOWN else self.name.lower().replace("_", " ")


def parse_operation(message: bytes) -> Operation:
    """Return the operation of a transaction.

    Raises:
        CorruptLogError: It is not a message.
    """
    known = {each.value for each in Operation}
    known_fields = [field_number for field_number, _ in fields(message) if field_number in known]
    return Operation(known_fields[-1]) if known_fields else Operation.UNKNOWN
