"""Where a delivery loop ends that does not follow its table for ever. Pure."""

from __future__ import annotations

from dataclasses import replace

from tailerd.changefeed.offset import Offset, Phase, Version, Versions


def is_past(offset: Offset, target: Version | None) -> bool:
    """Tell whether all up to the target, if there is one, lies before an offset."""
    return target is not None and offset.phase is Phase.FOLLOW and offset.version > target


def clipped(end: Offset, target: Version | None, versions: Versions) -> Offset:
    """Return the end of a delivery that goes no further than the target."""
    if target is None or not is_past(end, target):
        return end
    return replace(end, version=versions.next_version(target), phase=Phase.FOLLOW, position=0)
