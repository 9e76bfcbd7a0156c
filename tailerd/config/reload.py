"""What of a configuration may change while a process runs with it."""

from __future__ import annotations

from tailerd.config.models import Config
from tailerd.errors import ConfigError

_FIXED = ("state", "http", "web", "spark", "memory", "table_metrics")


def check_fixed(before: Config, after: Config) -> None:
    """Refuse a configuration that changes what a running process cannot change.

    Raises:
        ConfigError: It does; the message names the fields.
    """
    changed = [name for name in _FIXED if getattr(before, name) != getattr(after, name)]
    if changed:
        raise ConfigError(
            f"{', '.join(changed)} cannot change while the daemon runs, so nothing of the new file"
            " was taken.",
            remedy="Set it back, or restart the daemon.",
        )
