"""Formats sizes, ages and durations for people."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SPANS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def size_text(size_bytes: float) -> str:
    """Return a number of bytes with a unit: `1.4 MiB`."""
    value, unit = float(size_bytes), 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def duration_text(seconds: float) -> str:
    """Return a duration with the two largest units: `2 h 5 min`, `12.5 s`."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    rest = round(seconds)
    for index, (span, unit) in enumerate(_SPANS):
        if rest < span:
            continue
        count, left = divmod(rest, int(span))
        below, name = (_SPANS[index + 1]) if index + 1 < len(_SPANS) else (1.0, "s")
        part = int(left // below)
        return f"{count} {unit} {part} {name}" if part else f"{count} {unit}"
    return f"{rest} s"
