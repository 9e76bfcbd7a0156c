"""The configuration a command was given, and this process set up to reach what it names."""

from __future__ import annotations

from pathlib import Path

from tailerd.config import Discovery, load_config
from tailerd.formats.table_search import discover_tables
from tailerd.storage.s3.settings import S3Settings, use_settings


def read_config(path: Path, *, engine: str | None = None) -> Discovery:
    """Read a configuration file, find its tables, and reach buckets as it says from now on.

    Args:
        path: A YAML file.
        engine: Runs every table, whatever the file says; None leaves it to that.

    Raises:
        ConfigError: Anything about it is wrong.
        StorageError: A bucket cannot be looked through for tables.
    """
    config = load_config(path, engine=engine)
    use_settings(S3Settings.of_config(config.storage))
    return discover_tables(config)
