"""Which folders the daemon watches: those of all tables but the streams that Spark runs itself."""

from __future__ import annotations

from typing import Any

from tailerd.config import Config
from tailerd.daemon.tables import watched_folders

QUEUE = {"notifications": {"queue": "http://127.0.0.1:1/1/q"}}
STREAM = {"kind": "stream", "format": "console"}


def configured(top: dict[str, Any], **tables: dict[str, Any]) -> Config:
    sinks = {name: {"sink": {"kind": "file", "path": f"/out/{name}"}} for name in tables}
    return Config(tables={name: {**sinks[name], **each} for name, each in tables.items()}, **top)


def watched(config: Config) -> dict[str, float | None]:
    """Return the folders, and how often somebody chose that they are looked at."""
    return {each.folder: each.poll_interval for each in watched_folders(config)}


def test_tables_are_watched_whatever_delivers_them() -> None:
    tables: dict[str, dict[str, Any]] = {
        "disk": {"path": "/lake/disk"},
        "bucket": {"path": "s3://lake/bucket", "poll_interval": "5s"},
        "arrow": {"path": "s3://lake/arrow", "engine": "arrow"},
    }
    folders = {
        "/lake/disk/_delta_log": None,
        "lake/bucket/_delta_log": 5.0,
        "lake/arrow/_delta_log": None,
    }
    assert watched(configured({}, **tables)) == folders
    assert watched(configured(QUEUE, **tables)) == folders


def test_a_stream_of_spark_watches_its_table_itself_unless_it_is_maintained() -> None:
    stream = {"path": "s3://lake/t", "engine": "spark", "sink": STREAM}
    assert watched(configured(QUEUE, t=stream)) == {}
    kept = {**stream, "maintenance": {"checkpoint": {"every_commits": 10}}}
    assert watched(configured(QUEUE, t=kept)) == {"lake/t/_delta_log": None}
