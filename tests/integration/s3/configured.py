"""Configurations of daemons on tables in buckets, and what their file sinks hold."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from tests.integration.daemon.running import address, page, read_log
from tests.s3.servers import ACCESS_KEY, SECRET_KEY, S3Server
from tests.waiting import PATIENCE_SECONDS

STATIC_KEYS = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}


def write_tables_config(
    folder: Path,
    server: S3Server,
    tables: dict[str, str],
    *,
    endpoint: str = "",
    keys: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    **top: Any,
) -> Path:
    """Write a configuration with a file sink for each table, all of them looked at often.

    Args:
        tables: Their locations by name.
        endpoint: Where buckets are asked for; the server's own by default.
        keys: More of the section `storage`; static keys by default.
        options: More of each table.
        top: More of the whole.
    """
    storage: dict[str, Any] = {"endpoint": endpoint or server.endpoint, "region": "us-east-1"}
    config: dict[str, Any] = {
        "engine": "arrow",
        "state": str(folder / "state"),
        "table_metrics": False,
        "http": {"listen": "127.0.0.1:0"},
        "storage": storage | (STATIC_KEYS if keys is None else keys),
        "tables": {
            name: {
                "path": location,
                "from": "0",
                "poll_interval": "200ms",
                "sink": {"kind": "file", "path": str(folder / "out" / name)},
                **(options or {}),
            }
            for name, location in tables.items()
        },
        **top,
    }
    path = folder / "tailerd.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def delivered(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the change rows that a table's sink holds, without the commits' times."""
    rows: list[dict[str, Any]] = []
    for path in sorted((folder / "out" / name).rglob("*.jsonl")):
        try:
            lines = path.read_text().splitlines()
        except FileNotFoundError:
            # Replaced by a restart between the look and the read.
            return delivered(folder, name)
        rows += [json.loads(line) for line in lines]
    for row in rows:
        del row["_commit_timestamp"]
    return rows


def all_that_is_shown(config: Path, process: subprocess.Popen[str]) -> str:
    """Return what a daemon with a listener shows or keeps: its log, its pages, the words of all its
    processes, its state."""
    tables = [each["table"] for each in json.loads(page(config, "/status"))["tables"]]
    names = ["/", "/status", "/metrics", *(f"/tables/{table}" for table in tables)]
    with urllib.request.urlopen(address(config) + "/events", timeout=PATIENCE_SECONDS) as stream:
        events = stream.read1().decode()
    words = [_words(pid) for pid in _with_descendants(process.pid)]
    kept = [
        path.read_bytes().decode("latin-1")
        for path in (config.parent / "state").rglob("*")
        if path.is_file()
    ]
    shown = [read_log(config), events, *(page(config, name) for name in names)]
    return "\n".join([*shown, *words, *kept])


def _with_descendants(pid: int) -> list[int]:
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        # Threads and processes end while they are looked at.
        with suppress(FileNotFoundError, ProcessLookupError):
            for child in (task / "children").read_text().split():
                children += _with_descendants(int(child))
    return [pid, *children]


def _words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
