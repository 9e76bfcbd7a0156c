"""A daemon as a process on the Arrow engine, with tables that keep changing."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from tailerd.formats.delta.demo import DemoTable
from tailerd.formats.delta.protocol.log_path import LOG_FOLDER, commit_name
from tests.integration.daemon.running import address, daemon

NAMES = ("orders", "payments", "refunds")
TOKEN = "a-token-for-the-page"


@dataclass(frozen=True)
class Living:
    """The daemon's address, its tables, and the folder of the table that is missing."""

    url: str
    tables: dict[str, DemoTable]
    missing: Path


@contextmanager
def living_daemon(
    folder: Path,
    *,
    has_writer: bool = True,
    has_missing: bool = True,
    is_writing_all: bool = False,
    **http: object,
) -> Iterator[Living]:
    """Run it; `http` overrides its section.

    The first table is left to the test, unless `is_writing_all`.
    """
    tables = {name: DemoTable(folder / name, seed) for seed, name in enumerate(NAMES)}
    for table in tables.values():
        table.create()
    # Its log is ten days long, and the daemon has just started.
    first = folder / "refunds" / LOG_FOLDER / commit_name(0)
    os.utime(first, (time.time() - 10 * 86_400,) * 2)
    config = folder / "tailerd.yaml"
    # A test asks for a checkpoint; otherwise there is none.
    every_commits = 20 if is_writing_all else 1000
    sections = {
        name: {
            "path": str(folder / name),
            "from": "snapshot",
            "sink": {"kind": "file", "path": str(folder / "out" / name)},
            "maintenance": {"checkpoint": {"every_commits": every_commits}},
            "freshness": {"within": "1m", "target": 99},
        }
        for name in NAMES
    }
    if has_missing:
        sections["missing"] = {
            name: value for name, value in sections[NAMES[0]].items() if name != "maintenance"
        } | {
            "path": str(folder / "missing"),
            "sink": {"kind": "file", "path": str(folder / "out/missing")},
        }
    text = {
        "engine": "arrow",
        "state": str(folder / "state"),
        "http": {"listen": "127.0.0.1:0", **http},
        "web": {"rows": 5, "mask": ["Customer"], "storage_price": 2000, "currency": "EUR"},
        "tables": sections,
    }
    config.write_text(yaml.safe_dump(text, sort_keys=False))
    ending = threading.Event()

    def write() -> None:
        while not ending.wait(0.7):
            for name in NAMES[0 if is_writing_all else 1 :]:
                tables[name].change()

    writer = threading.Thread(target=write)
    with daemon(config):
        url = address(config)
        if has_writer:
            writer.start()
        try:
            yield Living(url, tables, folder / "missing")
        finally:
            ending.set()
            if has_writer:
                writer.join()
