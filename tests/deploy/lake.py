"""Folders that a deployment mounts: tables, delivered files, state and the configuration."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import deltalake
import yaml

from tailerd.formats.detect import find_demo
from tailerd.formats.parts import DemoTable
from tests.deploy.engine import USER
from tests.waiting import PATIENCE_SECONDS

CONFIG = "/etc/tailerd/tailerd.yaml"


class Lake:
    """The folders `lake`, `changes` and `state`, whose owner is the image's user."""

    def __init__(self, folder: Path) -> None:
        """Make the folders."""
        self.folder = folder
        for name in ("lake", "changes", "state"):
            self.make_folder(name)

    def make_folder(self, name: str) -> Path:
        """Make a folder that the image's user may write to."""
        path = self.folder / name
        path.mkdir(parents=True)
        os.chown(path, USER, USER)
        return path

    def make_table(self, name: str, changes: int = 5) -> DemoTable:
        """Make a demo table in `lake`, with some commits after its first."""
        table = find_demo().table(self.folder / "lake" / name, 7)
        table.create()
        for _ in range(changes):
            table.change()
        for path in (table.folder, *table.folder.rglob("*")):
            os.chown(path, USER, USER)
        return table

    def await_delivery(self, name: str, command: list[str]) -> None:
        """Wait until the pipeline of a table has delivered each row of its newest version once.

        Args:
            name: Of the table and its pipeline.
            command: Words before `tailerd` that run it next to the daemon, or as it did.

        Raises:
            AssertionError: The delivered rows are not those of the table.
        """
        version = deltalake.DeltaTable(self.folder / "lake" / name).version()
        words = [*command, "tailerd", "verify", name, "--config", CONFIG, "--json"]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            done = subprocess.run(
                words, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
            )
            verdict = json.loads(done.stdout) if done.returncode in (0, 1) and done.stdout else {}
            if verdict.get("version") == version or time.monotonic() > deadline:
                assert verdict.get("version") == version, done.stdout + done.stderr
                assert verdict["is_equal"], verdict
                return
            time.sleep(0.5)

    def configure(self, port: int, **sections: Any) -> dict[Path, str]:
        """Write the configuration; return the volumes of a container that runs it."""
        config = {"engine": "arrow", "state": "state", "http": {"listen": f"127.0.0.1:{port}"}}
        path = self.folder / "tailerd.yaml"
        path.write_text(yaml.safe_dump({**config, **sections}))
        return {
            self.folder / "lake": "/lake:ro",
            self.folder / "changes": "/changes",
            self.folder / "state": "/var/lib/tailerd",
            path: "/etc/tailerd/tailerd.yaml:ro",
        }


def table_section(name: str, **sink: Any) -> dict[str, Any]:
    """Return the section of a table in /lake; its sink is files in /changes by default."""
    sink = sink or {"kind": "file", "path": f"/changes/{name}"}
    return {"path": f"/lake/{name}", "from": "snapshot", "sink": sink}


def kafka_sink(bootstrap: str, topic: str, **more: Any) -> dict[str, Any]:
    """Return the section of a Kafka sink that delivers exactly once."""
    sink = {"kind": "kafka", "bootstrap_servers": [bootstrap], "topic": topic}
    return {**sink, "key": ["order_id"], "delivery": "exactly-once", **more}
