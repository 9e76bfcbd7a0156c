"""`tailerd maintain --pin`: what other consumers of a table have yet to read is kept for them."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tailerd.formats.delta.log.log_reader import LogReader
    from tailerd.maintenance.pins import Pin


def pin_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of pins: `pin`, `pin_for`, `unpin`."""
    for option in reversed(
        (
            click.option(
                "--pin",
                metavar="NAME=VERSION",
                help="Keep VERSION and what follows for NAME, which reads on from there: cleanups"
                " of every tailerd respect it. Again with a later version moves it.",
            ),
            click.option(
                "--for", "pin_for", metavar="DURATION", help="Let the pin expire, such as 7d."
            ),
            click.option("--unpin", metavar="NAME", help="Remove the pin of NAME."),
        )
    ):
        function = option(function)
    return function


@dataclass(frozen=True, slots=True, kw_only=True)
class PinChange:
    """What the options ask for."""

    pin: str | None
    pin_for: str | None
    unpin: str | None


async def change_pins(reader: LogReader, change: PinChange) -> list[Pin]:
    """Set or remove a pin; return those that there are then.

    Raises:
        UsageError: The options do not fit, or the version does not exist yet.
        MissingVersionError: What should be kept is gone already.
        PinUnreadableError, StorageError: Pins cannot be read or written.
    """
    from tailerd.clock import SystemClock
    from tailerd.errors import UsageError
    from tailerd.maintenance.pins import PinBoard

    clock = SystemClock()
    board = PinBoard(reader.store, reader.root, clock=clock)
    if change.pin_for is not None and change.pin is None:
        raise UsageError("--for says how long a pin lasts, so it needs --pin NAME=VERSION.")
    if change.unpin is not None and not await board.remove(change.unpin):
        raise UsageError(f"There is no pin {change.unpin}, so none was removed.")
    if change.pin is not None:
        wanted = _parsed(change.pin, change.pin_for, clock.now_ms())
        await _check_exists(reader, wanted)
        await board.set(wanted)
        # A cleanup that did not know of it may have been at work.
        await _check_exists(reader, wanted)
    return await board.read()


def _parsed(text: str, pin_for: str | None, now_ms: int) -> Pin:
    from tailerd.config.values import parse_duration
    from tailerd.errors import UsageError
    from tailerd.maintenance.pins import Pin

    name, _, version = text.partition("=")
    if not (version.isascii() and version.isdecimal()):
        raise UsageError(f"--pin is {text!r}: write NAME=VERSION, such as nightly-export=120.")
    expires_ms = None
    if pin_for is not None:
        try:
            seconds = parse_duration(pin_for)
        except ValueError as error:
            raise UsageError(f"--for is {pin_for!r}: {error}.") from error
        assert isinstance(seconds, float)
        expires_ms = now_ms + round(seconds * 1000)
    return Pin(name=name, version=int(version), expires_ms=expires_ms)


async def _check_exists(reader: LogReader, pin: Pin) -> None:
    from tailerd.errors import MissingVersionError, UsageError

    listing = await reader.list_log(0)
    head = listing.head_version
    if head is None or pin.version > head + 1:
        raise UsageError(
            f"Version {pin.version} cannot be pinned: the table is at version {head}, so the next"
            f" that {pin.name} can read is at most {-1 if head is None else head} + 1."
        )
    oldest = 0 if 0 in listing.commits else min(listing.checkpoints, default=head)
    # A commit is read together with the version before it.
    if max(0, pin.version - 1) < oldest:
        raise MissingVersionError(
            f"Version {pin.version} can no longer be read from where {pin.name} stands: the oldest"
            f" version in the log is {oldest}.",
            hint=f"Begin anew with a snapshot, and pin {oldest + 1} or later.",
        )


async def shown_pins(reader: LogReader) -> list[str]:
    """Return a line for each pin, or one that says why they cannot be read."""
    from tailerd.clock import SystemClock
    from tailerd.errors import PinUnreadableError
    from tailerd.maintenance.pins import PinBoard

    try:
        pins = await PinBoard(reader.store, reader.root, clock=SystemClock()).read()
    except PinUnreadableError as error:
        return [f"pins: {error}"]
    return list(pin_texts(pins))


def pin_texts(pins: list[Pin]) -> Iterator[str]:
    """Yield a line for each pin."""
    for pin in pins:
        until = "" if pin.expires_ms is None else f" until {_moment(pin.expires_ms)}"
        yield f"pinned: version {pin.version} and later, for {pin.name}{until}."


def pin_json(pin: Pin) -> str:
    """Return a pin as one JSON object."""
    return json.dumps({"pin": pin.name, "version": pin.version, "expires_ms": pin.expires_ms})


def _moment(time_ms: int) -> str:
    return dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC).isoformat(timespec="seconds")
