"""Who watches which folder: the daemon, or a process of Spark that is told by it."""

from __future__ import annotations

from typing import Any

from tailerd.config import Config
from tailerd.pipeline.watched_folders import relayed_folders, watched_folders

QUEUE = {"notifications": {"queue": "http://127.0.0.1:1/1/q"}}


def configured(top: dict[str, Any], **tables: dict[str, Any]) -> Config:
    sinks = {name: {"sink": {"kind": "file", "path": f"/out/{name}"}} for name in tables}
    return Config(tables={name: {**sinks[name], **each} for name, each in tables.items()}, **top)


def watched(config: Config) -> dict[str, bool]:
    """Return the folders, and whether they are looked at now and then."""
    return {each.folder: each.is_polled for each in watched_folders(config)}


def test_spark_watches_its_own_tables_but_for_what_a_queue_tells_of() -> None:
    tables: dict[str, dict[str, Any]] = {
        "disk": {"path": "/lake/disk"},
        "bucket": {"path": "s3://lake/bucket"},
        "arrow": {"path": "s3://lake/arrow", "engine": "arrow"},
    }
    without = configured({}, **tables)
    assert watched(without) == {"lake/arrow/_delta_log": True}
    assert relayed_folders(without) == {}
    told = configured(QUEUE, **tables)
    assert watched(told) == {"lake/bucket/_delta_log": True, "lake/arrow/_delta_log": True}
    assert relayed_folders(told) == {"bucket": "lake/bucket/_delta_log"}


def test_an_interval_of_a_table_on_spark_is_kept_once_and_by_spark() -> None:
    chosen = {"path": "s3://lake/t", "poll_interval": "5s"}
    assert watched(configured(QUEUE, t=chosen)) == {"lake/t/_delta_log": False}
    kept = {**chosen, "maintenance": {"checkpoint": {"every_commits": 10}}}
    assert watched(configured(QUEUE, t=kept)) == {"lake/t/_delta_log": True}
