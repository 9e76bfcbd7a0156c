"""Messages between the daemon and the maintenance process: JSON, one line each."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args

import msgspec

from tailerd.errors import BugError
from tailerd.formats.maintenance import RetentionFloor
from tailerd.maintenance.table_maintainer import KeptTable
from tailerd.telemetry import events

LONGEST_LINE_BYTES = 64 * 1024 * 1024
"""A line holds at most the policies of all tables, a kilobyte or so each."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One line."""


class SetTables(_Message, frozen=True, kw_only=True):
    """Maintain exactly these tables; skip some for `held_seconds` from now.

    Attributes:
        storage: How files are reached, as `StoreSettings.to_json`; may hold secrets.
    """

    tables: dict[str, KeptTable]
    held_seconds: dict[str, float] = {}
    storage: dict[str, msgspec.Raw] = {}


class Ring(_Message, frozen=True, kw_only=True):
    """A table's folder may have changed."""

    table: str


class Maintain(_Message, frozen=True, kw_only=True):
    """An operator asks for a table's maintenance now."""

    table: str


class Answer(_Message, frozen=True, kw_only=True):
    """The answer to the `Ask` with that number."""

    number: int
    floor: RetentionFloor


class Stop(_Message, frozen=True, kw_only=True):
    """Begin no more jobs, and end after the running one."""


class Cancel(_Message, frozen=True, kw_only=True):
    """Cancel the running job, and end."""


class EventMessage(_Message, frozen=True, kw_only=True):
    """An event, by the name of its class."""

    kind: str
    fields: dict[str, msgspec.Raw]


class Requested(_Message, frozen=True, kw_only=True):
    """Requests to the storage since the last such message, by verb."""

    counts: dict[str, int]


class Ask(_Message, frozen=True, kw_only=True):
    """Request which versions of a log pipelines still need; `table_id` may be unknown."""

    number: int
    folder: str
    table_id: str


class TurnEnded(_Message, frozen=True, kw_only=True):
    """A table was completed: the process is alive."""

    table: str


class Failed(_Message, frozen=True, kw_only=True):
    """A table could not be maintained, with `is_once`.

    Attributes:
        error: As `TailerdError.to_data`.
    """

    error: dict[str, object]


ToKeeper = SetTables | Ring | Maintain | Answer | Stop | Cancel
FromKeeper = EventMessage | Requested | Ask | TurnEnded | Failed

_ENCODER = msgspec.json.Encoder()
_TO_KEEPER: msgspec.json.Decoder[ToKeeper] = msgspec.json.Decoder(ToKeeper)
_FROM_KEEPER: msgspec.json.Decoder[FromKeeper] = msgspec.json.Decoder(FromKeeper)
_EVENTS = {kind.__name__: kind for kind in get_args(events.Event)}


def line_of(message: ToKeeper | FromKeeper) -> bytes:
    """Return a message as a line."""
    return _ENCODER.encode(message) + b"\n"


def to_keeper(line: bytes) -> ToKeeper:
    """Read a line of the daemon.

    Raises:
        BugError: It is not a message.
    """
    try:
        return _TO_KEEPER.decode(line)
    except msgspec.MsgspecError as error:
        raise BugError(f"The daemon sent {line[:200]!r}: {error}.") from error


def from_keeper(line: bytes) -> FromKeeper:
    """Read a line of the maintenance process.

    Raises:
        BugError: It is not a message.
    """
    try:
        return _FROM_KEEPER.decode(line)
    except msgspec.MsgspecError as error:
        raise BugError(f"The maintenance process sent {line[:200]!r}: {error}.") from error


def event_message(event: events.Event) -> EventMessage:
    """Return the message of an event."""
    values = {each.name: getattr(event, each.name) for each in fields(event)}
    return EventMessage(
        kind=type(event).__name__,
        fields={name: msgspec.Raw(_ENCODER.encode(value)) for name, value in values.items()},
    )


def event_of(message: EventMessage) -> events.Event:
    """Return the event of a message.

    Raises:
        BugError: There is no such event.
    """
    kind = _EVENTS.get(message.kind)
    if kind is None:
        raise BugError(f"The maintenance process sent an unknown event {message.kind}.")
    try:
        event: events.Event = msgspec.json.decode(_ENCODER.encode(message.fields), type=kind)
    except msgspec.MsgspecError as error:
        raise BugError(
            f"The maintenance process sent an invalid {message.kind}: {error}."
        ) from error
    return event
