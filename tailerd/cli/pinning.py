"""`tailerd maintain --pin`: keeps the versions that other consumers of a table still need."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from tailerd.changefeed.offset import Version

if TYPE_CHECKING:
    from tailerd.formats.maintenance import TableMaintenance
    from tailerd.maintenance.pins import Pin, PinBoard


def pin_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of pins to a command: the fields of `PinChange`."""
    for option in reversed(
        (
            click.option(
                "--pin",
                metavar="NAME=VERSION",
                help="Keep VERSION and all later ones for the reader NAME: cleanups of every"
                " tailerd respect the pin. Repeat with a later version to move it.",
            ),
            click.option(
                "--for", "pin_for", metavar="DURATION", help="Pin lifetime, for example 7d."
            ),
            click.option("--unpin", metavar="NAME", help="Remove the pin of NAME."),
        )
    ):
        function = option(function)
    return function


@dataclass(frozen=True, slots=True, kw_only=True)
class PinChange:
    """The change of pins that the options request."""

    pin: str | None
    pin_for: str | None
    unpin: str | None

    @property
    def is_wanted(self) -> bool:
        """Whether any of them was given."""
        return any(each is not None for each in (self.pin, self.pin_for, self.unpin))


async def change_pins(board: PinBoard, work: TableMaintenance, change: PinChange) -> list[Pin]:
    """Set or remove a pin; return the pins after that.

    Raises:
        UsageError: The options do not fit, or the version does not exist yet.
        MissingVersionError: The version to keep is gone already.
        PinUnreadableError, StorageError: Pins cannot be read or written.
    """
    from tailerd.clock import SystemClock
    from tailerd.errors import UsageError

    if change.pin_for is not None and change.pin is None:
        raise UsageError("--for says how long a pin lasts, so it needs --pin NAME=VERSION.")
    if change.unpin is not None and not await board.remove(change.unpin):
        raise UsageError(f"There is no pin {change.unpin}, so none was removed.")
    if change.pin is not None:
        wanted = _parsed(change.pin, change.pin_for, SystemClock().now_ms())
        await work.check_readable_from(Version(wanted.version), wanted.name)
        await board.set(wanted)
        # A cleanup that had read the pins before may have been running.
        await work.check_readable_from(Version(wanted.version), wanted.name)
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


async def shown_pins(board: PinBoard) -> list[str]:
    """Return a line for each pin, or one that says why they cannot be read."""
    from tailerd.errors import PinUnreadableError

    try:
        pins = await board.read()
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
