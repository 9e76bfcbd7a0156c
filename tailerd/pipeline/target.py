"""The last version of a journey that ends, and where offsets are relative to it."""

from __future__ import annotations

from dataclasses import replace

from tailerd.changefeed.offset import Offset, Phase, Version


def is_past(offset: Offset, target: Version | None) -> bool:
    """Tell whether everything up to the target lies before an offset."""
    return target is not None and offset.phase is Phase.FOLLOW and offset.version > target


def clipped(end: Offset, target: Version | None) -> Offset:
    """Return the end of a step that goes no further than the target."""
    if target is None or not is_past(end, target):
        return end
    return replace(end, version=Version(target + 1), phase=Phase.FOLLOW, position=0)
