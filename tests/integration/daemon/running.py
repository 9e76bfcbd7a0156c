"""`tailerd run` as a real process, and what its file sink holds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.tables.builder import TableBuilder
from tests.waiting import PATIENCE_SECONDS, eventually

TAILERD = [sys.executable, "-c", "from tailerd.cli import main; main()"]


def write_config(folder: Path, **tables: dict[str, object]) -> Path:
    """Write an Arrow-engine configuration with its state beside it."""
    path = folder / "tailerd.yaml"
    config = {
        "engine": "arrow",
        "state": str(folder / "state"),
        "http": {"listen": "127.0.0.1:0"},
        "tables": tables,
    }
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def make_table(folder: Path, *ids: int, **options: Any) -> TableBuilder:
    """Write a table whose version 0 is empty, and each further one inserts an id."""
    builder = TableBuilder(folder, **options)
    builder.create()
    for number in ids:
        builder.append([{"id": number}])
    return builder


def file_table(table: Path, out: Path, **options: object) -> dict[str, object]:
    return {
        "path": str(table),
        "from": "snapshot",
        "sink": {"kind": "file", "path": str(out)},
        **options,
    }


def run_to_end(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TAILERD, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )


@contextmanager
def daemon(config: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run the daemon; its log goes to `daemon.log` beside the configuration."""
    arguments = [*TAILERD, "run", "--config", str(config), "--log-format", "json", *options]
    with (config.parent / "daemon.log").open("a") as log:
        process = subprocess.Popen(
            arguments, stderr=log, stdout=subprocess.DEVNULL, text=True, env=dict(os.environ)
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(10)


def read_log(config: Path) -> str:
    return (config.parent / "daemon.log").read_text()


def address(config: Path) -> str:
    """The address of the newest daemon's pages."""
    eventually(lambda: "Daemon started" in read_log(config))
    lines = [line for line in read_log(config).splitlines() if "Daemon started" in line]
    return str(re.findall(r"http://[0-9.:]+", lines[-1])[0])


def page(config: Path, path: str) -> str:
    with urllib.request.urlopen(address(config) + path, timeout=PATIENCE_SECONDS) as answer:
        return str(answer.read().decode())


def delivered_ids(out: Path) -> list[int]:
    ids: list[int] = []
    for path in sorted(out.glob("*.jsonl")):
        try:
            ids += [json.loads(line)["id"] for line in path.read_text().splitlines()]
        except FileNotFoundError:
            # Taken back by a restart between the look and the read.
            return delivered_ids(out)
    return ids
