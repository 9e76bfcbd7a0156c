"""Places outside a table that the user lets its log name files in."""

from __future__ import annotations

from collections.abc import Iterable

from tailerd.errors import ConfigError
from tailerd.storage.stores import normal_url


def allowed_places(places: Iterable[str]) -> tuple[str, ...]:
    """Return configured places, in any form a table's place may have, as `DataPaths` compares them.

    Raises:
        ConfigError: One is empty, or of a scheme that is not served.
    """
    return tuple(_compared(place) for place in places)


def _compared(place: str) -> str:
    if not place:
        raise ConfigError(
            "A place that the log may name files in (--allow-path, allowed_paths) is empty.",
            remedy="Give a folder or a URL, or leave it out.",
        )
    # Only of the root anything is left to strip.
    return normal_url(place).rstrip("/")
