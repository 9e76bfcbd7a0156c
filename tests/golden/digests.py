"""One digest for each given table and output: what users get, byte for byte.

A change that must not alter what is delivered leaves `digests.json` as it is; one that means to
writes it again and lists the differences in its message:

    python -m tests.golden.digests ../shared/tables/given.tar.gz
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import yaml

from tailerd.changefeed.change_batch import ChangeBatch
from tailerd.changefeed.change_task import ChangeMode
from tailerd.changefeed.limits import DEFAULT_BATCH_LIMIT, ReadLimit
from tailerd.errors import TailerdError
from tailerd.formats.base import OpenRequest
from tailerd.records.base import FormatOptions
from tailerd.records.json import JsonEncoder
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tailerd.sinks.kafka.record_batches.record_batch import record_batches
from tailerd.sinks.kafka.routing import Router, TopicShape
from tailerd.sinks.record_formats import record_format
from tests.archives import unpack
from tests.tables.opened import open_delta

ROOT = Path(__file__).resolve().parents[2]
DIGESTS = Path(__file__).with_name("digests.json")
EVERYTHING = ReadLimit(max_files=10**9, max_bytes=10**18)
STARTS = ("snapshot", "0")
SHAPE = TopicShape(partitions=3, max_bytes=1_000_000)


class Digest:
    """A running hash; where one batch ends and the next begins makes no difference."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, part: bytes | memoryview) -> None:
        self._hash.update(part)

    def text(self) -> str:
        return self._hash.hexdigest()[:16]


def delta_tables(given: Path) -> list[str]:
    """Return the given Delta tables, by their paths below `tables/`."""
    entries = json.loads((given / "manifest.json").read_text())["tables"]
    return sorted(entry["table"] for entry in entries if entry.get("format") == "delta")


async def digests_of(table: str, folder: Path) -> dict[str, str]:
    """Return the digest of each output of a table; where it is refused, the error's code."""
    found: dict[str, str] = {}
    for start in STARTS:
        lines = Digest()
        kafka = [Messages(table, kind) for kind in ("json", "debezium")]
        try:
            async for batch in batches(folder, start):
                lines.add(JsonEncoder().encode_lines(batch))
                for messages in kafka:
                    messages.add(batch)
        except TailerdError as error:
            found[start] = error.code
        else:
            found[f"{start} lines"] = lines.text()
            found |= {f"{start} kafka {each.kind}": each.digest.text() for each in kafka}
    return found


async def batches(folder: Path, start: str) -> AsyncIterator[ChangeBatch]:
    """Yield the change batches from `start` to the head, as pipelines read them."""
    source = await open_delta(
        str(folder), OpenRequest(changes=ChangeMode.AUTO, on_warning=lambda error: None)
    )
    offset = await source.initial_offset(start)
    while (end := await source.latest_offset(offset, EVERYTHING)) != offset:
        async for group in source.plan(offset, end):
            for task in group.tasks:
                for batch in source.read(task, DEFAULT_BATCH_LIMIT):
                    yield batch
        offset = end


class Messages:
    """What Kafka is sent of a table: the content of record batches, partitions and timestamps."""

    def __init__(self, table: str, kind: str) -> None:
        self.kind = kind
        self.digest = Digest()
        self._table = table
        config = {
            "kind": "kafka",
            "bootstrap_servers": ["127.0.0.1:9092"],
            "topic": "t",
            "headers": {"of": "{table}/{commit_version}/{change_source}"},
        }
        # The name of a pipeline has no slash before that of its sink.
        self._router = Router(KafkaSinkConfig.model_validate(config), table.rpartition("/")[2])

    def add(self, batch: ChangeBatch) -> None:
        key = read_key(batch.rows.schema)
        options = FormatOptions(name="tailerd", table=self._table, table_id="id", key=key)
        records = record_format(self.kind, options).records(batch)
        for piece in self._router.route(batch, records, lambda _: SHAPE, now_ms=0):
            built = record_batches(
                piece.records,
                timestamps_ms=piece.timestamps_ms,
                partitions=piece.partitions,
                headers=piece.headers,
            )
            assert not built.oversize
            for made in built.batches:
                # A payload has the times of its records as differences from the first.
                self.digest.add(f"{made.partition} {made.first_timestamp_ms} ".encode())
                self.digest.add(made.payload)


def read_key(schema: pa.Schema) -> tuple[str, ...]:
    """Return the first column that can be a key; none where there is none."""
    for field in schema:
        if pa.types.is_integer(field.type) or pa.types.is_string(field.type):
            return (field.name,)
    return ()


async def all_digests(given: Path) -> dict[str, dict[str, str]]:
    """Return the digests of every given Delta table."""
    tables = delta_tables(given)
    return {table: await digests_of(table, given / "tables" / table) for table in tables}


def delivered(given: Path, engine: str, out: Path) -> dict[str, str]:
    """Return the digest of what `tailerd run --once` writes of each given table's snapshot.

    Names and bytes of files, which are the same on every engine; where a large delivery goes on in
    another file depends on the memory that an engine has for it.
    """
    names = {f"t{number:03}": table for number, table in enumerate(delta_tables(given))}
    tables = {
        name: {
            "path": str(given / "tables" / table),
            "from": "snapshot",
            "max_attempts": 1,
            "sink": {"kind": "file", "path": str(out / name)},
        }
        for name, table in names.items()
    }
    config = out / "tailerd.yaml"
    settings = {
        "engine": engine,
        "state": str(out / "state"),
        "http": {"listen": "127.0.0.1:0"},
        "tables": tables,
    }
    config.write_text(yaml.safe_dump(settings))
    command = [sys.executable, "-m", "tailerd", "run", "--once", "--config", str(config)]
    # Some are refused, which ends the command with 3.
    subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    found: dict[str, str] = {}
    for name, table in names.items():
        digest = Digest()
        files = sorted((out / name).glob("*.jsonl"))
        for file in files:
            is_first = file.stem.endswith("-00000")
            digest.add(file.name.encode() if is_first else b"")
            digest.add(file.read_bytes())
        if files:
            found[table] = digest.text()
    return found


def main(archive: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        unpack(Path(archive), Path(folder))
        digests = asyncio.run(all_digests(Path(folder)))
        with tempfile.TemporaryDirectory() as out:
            for table, digest in delivered(Path(folder), "arrow", Path(out)).items():
                digests[table]["files"] = digest
    DIGESTS.write_text(json.dumps(digests, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
