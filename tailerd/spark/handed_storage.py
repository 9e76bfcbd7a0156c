"""The `storage` section that Spark's Java process was started with, and cannot be given anew.

Python sources of queries take it from Java's environment: a file would show secrets to others, and
so would Spark's settings.
"""

from __future__ import annotations

from collections.abc import Iterator

from tailerd.config import Config
from tailerd.config.reload import check_fixed
from tailerd.config.sections import is_in_bucket
from tailerd.errors import ConfigError
from tailerd.storage.s3.settings import S3Settings, hand_down_settings, settings_in_use

_handed: S3Settings | None = None


def hand_down_storage() -> None:
    """Let a Java process that is started now reach buckets as this process does."""
    global _handed
    hand_down_settings()
    _handed = settings_in_use()


def check_reload(before: Config, after: Config) -> None:
    """Refuse a configuration that changes what a running process cannot change.

    Raises:
        ConfigError: It does; the message names the fields.
    """
    check_fixed(before, after)
    if _handed is None or S3Settings.of_config(after.storage) == _handed:
        return
    if names := list(_in_buckets(after)):
        raise ConfigError(
            f"storage cannot change while tables in buckets run on Spark ({', '.join(names)}),"
            " because its processes have what they were started with, so nothing of the new file"
            " was taken.",
            hint="Set storage back, or restart the daemon.",
        )


def _in_buckets(config: Config) -> Iterator[str]:
    """Yield names of tables, and of patterns, in buckets that are delivered by Spark."""
    for name, table in config.tables.items():
        if table.has_sink and config.engine_of(name) == "spark" and is_in_bucket(table.path):
            yield name
    for name, group in config.discover.items():
        engine = group.template.engine or config.engine
        if group.template.has_sink and engine == "spark" and is_in_bucket(group.path):
            yield name
