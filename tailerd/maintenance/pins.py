"""Pins: which versions of a log consumers outside of this daemon's pipelines still need.

A pin is a small file `_tailerd/pins/<name>.json` in the table's folder, where readers of tables and
Delta's VACUUM ignore it: `{"version": 12, "expires": "2026-12-01T00:00:00Z"}`. Write access there
permits pinning; every cleanup reads all pins first, and deletes nothing while one is unreadable.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from tailerd.clock import Clock
from tailerd.errors import FileMissingError, PinUnreadableError, StorageError, UsageError
from tailerd.formats.maintenance import AskFloor, RetentionFloor
from tailerd.storage.base import ObjectStore

PIN_FOLDER = "_tailerd/pins"
_SUFFIX = ".json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_Moment = Annotated[dt.datetime, msgspec.Meta(tz=True)]


class _File(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a pin's file; further fields are for its owner."""

    version: Annotated[int, msgspec.Meta(ge=0)]
    expires: _Moment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A version that a consumer still needs.

    Attributes:
        version: The first version whose commit its owner has yet to read.
        expires_ms: When it expires; None for never.
    """

    name: str
    version: int
    expires_ms: int | None = None


def printable(name: str) -> str:
    """Return a name that can be written anywhere: names of files are bytes, in UTF-8 or not."""
    return name.encode("utf-8", "backslashreplace").decode()


class PinBoard:
    """The pins of one table."""

    def __init__(self, store: ObjectStore, root: str, *, clock: Clock) -> None:
        self._store = store
        self._folder = f"{root}/{PIN_FOLDER}"
        self._clock = clock

    async def read(self) -> list[Pin]:
        """Return the pins that have not expired, by name.

        Raises:
            PinUnreadableError: A file is not a pin.
            StorageError: The folder cannot be read.
        """
        # Before they are read: a pin renewed while this machine is suspended has not expired.
        now_ms = self._clock.now_ms()
        names = [
            meta.name
            async for meta in self._store.list_from(self._folder)
            if meta.name.endswith(_SUFFIX) and not meta.name.startswith(".")
        ]
        pins = [pin for name in names if (pin := await self._read(name)) is not None]
        return [pin for pin in pins if pin.expires_ms is None or pin.expires_ms > now_ms]

    async def _read(self, name: str) -> Pin | None:
        path = f"{self._folder}/{name}"
        try:
            found = msgspec.json.decode(await self._store.get(path), type=_File)
        except FileMissingError:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise PinUnreadableError(
                f"{printable(path)} is not a valid pin: {error}.",
                remedy='Write {"version": 12} or {"version": 12, "expires":'
                ' "2026-12-01T00:00:00Z"},'
                " or remove the file.",
            ) from error
        expires_ms = None if found.expires is None else round(found.expires.timestamp() * 1000)
        return Pin(
            name=printable(name.removesuffix(_SUFFIX)), version=found.version, expires_ms=expires_ms
        )

    async def set(self, pin: Pin) -> None:
        """Write a pin, over an older one of its name.

        Raises:
            UsageError: The name is none.
            StorageError: It cannot be written.
        """
        expires = None
        if pin.expires_ms is not None:
            expires = dt.datetime.fromtimestamp(pin.expires_ms / 1000, dt.UTC)
        body = msgspec.json.encode(_File(version=pin.version, expires=expires))
        await self._store.put(self._path(pin.name), body)

    async def remove(self, name: str) -> bool:
        """Remove a pin; return whether there was one.

        Raises:
            UsageError: The name is invalid.
            StorageError: It cannot be removed.
        """
        path = self._path(name)
        try:
            await self._store.head(path)
        except FileMissingError:
            return False
        await self._store.delete(path)
        return True

    async def floor(self, wait_for: Sequence[str] = ()) -> RetentionFloor:
        """Return the floor of all pins; if it is not known, its obstacle says why.

        Args:
            wait_for: Names whose pins must exist.
        """
        try:
            pins = await self.read()
        except (PinUnreadableError, StorageError) as error:
            text = printable(f"Nothing is cleaned up: {error}")
            return RetentionFloor(obstacle=text, error_code=error.code)
        if absent := sorted(set(wait_for) - {pin.name for pin in pins}):
            return RetentionFloor(
                obstacle=f"Nothing is cleaned up before {absent[0]} has set its pin (`cleanup:"
                " wait_for_pins`).",
                error_code="pin_missing",
            )
        if not pins:
            return RetentionFloor()
        first = min(pins, key=lambda pin: pin.version)
        return RetentionFloor(from_version=first.version, by=f"the pin {first.name}")

    def _path(self, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is not a valid pin name: write up to 100 letters, digits, dots, dashes"
                " and underscores, the first of them a letter or digit."
            )
        return f"{self._folder}/{name}{_SUFFIX}"


def with_pins(board: PinBoard, wait_for: Sequence[str], pipelines: AskFloor) -> AskFloor:
    """Return a function that returns the floor of pins and pipelines together.

    Args:
        wait_for: Names whose pins must exist.
    """

    async def ask(table_id: str) -> RetentionFloor:
        pinned = await board.floor(wait_for)
        return pinned.and_also(await pipelines(table_id))

    return ask
