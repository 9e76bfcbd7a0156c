"""A log with a bit of everything, and the comparison with its naive replay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from tailerd.formats.delta.log.live_files import read_live_files
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.formats.delta.protocol.file_key import file_key
from tailerd.formats.delta.protocol.live_file import LiveFile
from tailerd.formats.delta.protocol.snapshot import Snapshot
from tests.formats.delta.log_bodies import add, remove, vector
from tests.tables.builder import TableBuilder
from tests.tables.naive_log import Action, NaiveState, key_of

CheckpointKind = Literal[
    "none",
    "classic",
    "classic-struct-stats",
    "classic-no-stats",
    "parts",
    "v2-json",
    "v2-json-sidecars",
    "v2-parquet",
    "v2-parquet-sidecars",
    "v2-classic",
    "v2-classic-sidecars",
]
CHECKPOINT_KINDS: tuple[CheckpointKind, ...] = CheckpointKind.__args__  # type: ignore[attr-defined]

FILES = 12
HEAD = 9


def write_history(folder: Path) -> TableBuilder:
    """Commit versions 0 to `HEAD`: adds, removes, re-adds, vectors, metadata, txns, domains."""
    table = TableBuilder(
        folder, reader_features=["deletionVectors", "v2Checkpoint"], writer_features=[]
    )
    first = [
        add(f"p={n}/a%20{n}", partitionValues={"p": str(n) if n else None}, size=n, stats=stats(n))
        for n in range(FILES)
    ]
    table.create(*first, {"txn": {"appId": "x", "version": 1}})
    table.commit(add("b", size=100), remove("p=1/a%201"))
    table.commit(
        add("p=2/a 2", size=2, stats=stats(2), **vector("v1")),
        remove("p=2/a%202"),
        domain("d", "1"),
    )
    table.commit(table.metadata(name="renamed", configuration={"k": "v"}), commit_info=False)
    table.commit(remove("p=2/a%202", **vector("v1")), add("p=2/a%202", size=2, stats=stats(2)))
    table.commit(
        {"txn": {"appId": "x", "version": 2}},
        {"txn": {"appId": "y", "version": 1}},
        domain("e", "1"),
        remove("b"),
        remove("never there"),
    )
    table.commit(add("b", size=50), domain("d", "", removed=True), table.protocol())
    table.commit(*(remove(f"p={n}/a%20{n}") for n in range(3, 6)), operation="DELETE")
    table.commit(remove("p=6/a%206"), add("p=6/a%206", size=6, **vector("v2", offset=0)))
    table.commit(add("c/%C3%BC", size=7), add("d", size=8, stats="garbage"))
    assert table.version == HEAD
    return table


def domain(name: str, text: str, *, removed: bool = False) -> Action:
    """Return a `domainMetadata` action."""
    return {"domainMetadata": {"domain": name, "configuration": text, "removed": removed}}


def stats(count: int) -> str:
    """Return statistics of so many rows."""
    return json.dumps({"numRecords": count})


def write_checkpoint(table: TableBuilder, kind: CheckpointKind, version: int) -> list[Path]:
    """Write a checkpoint of that kind; return its files."""
    match kind:
        case "none":
            return []
        case "classic":
            return table.checkpoint(version, stats="both")
        case "classic-struct-stats":
            return table.checkpoint(version, stats="struct")
        case "classic-no-stats":
            return table.checkpoint(version, stats="none")
        case "parts":
            return table.checkpoint(version, parts=3)
        case "v2-json" | "v2-parquet" | "v2-classic":
            return table.checkpoint(version, layout=kind)
        case "v2-json-sidecars":
            return table.checkpoint(version, layout="v2-json", sidecars=2)
        case "v2-parquet-sidecars":
            return table.checkpoint(version, layout="v2-parquet", sidecars=2)
        case "v2-classic-sidecars":
            return table.checkpoint(version, layout="v2-classic", sidecars=2)


def assert_is(snapshot: Snapshot, state: NaiveState, *, with_files: bool = True) -> None:
    """Compare a snapshot with a naive replay, field by field."""
    assert state.metadata is not None
    assert state.protocol is not None
    assert snapshot.version == state.version
    metadata, protocol = snapshot.state.metadata, snapshot.state.protocol
    assert metadata.id == state.metadata["id"]
    assert metadata.schema_string == state.metadata["schemaString"]
    assert metadata.name == state.metadata.get("name")
    assert metadata.partition_columns == state.metadata["partitionColumns"]
    assert metadata.configuration == state.metadata["configuration"]
    assert protocol.min_reader_version == state.protocol["minReaderVersion"]
    assert protocol.min_writer_version == state.protocol["minWriterVersion"]
    assert protocol.reader_features == state.protocol.get("readerFeatures")
    assert protocol.writer_features == state.protocol.get("writerFeatures")
    transactions = {app: txn.version for app, txn in snapshot.transactions.items()}
    assert transactions == {app: txn["version"] for app, txn in state.transactions.items()}
    domains = {name: item.configuration for name, item in snapshot.domain_metadata.items()}
    assert domains == {
        name: item["configuration"] for name, item in state.domains.items() if not item["removed"]
    }
    if not with_files:
        assert snapshot.num_files is None
        return
    sizes = {file_key(path, vid or None): add["size"] for (path, vid), add in state.adds.items()}
    keys, found = snapshot.files.sorted_files()
    assert dict(zip(keys.tolist(), found.tolist(), strict=True)) == sizes
    assert keys.tolist() == sorted(sizes)
    assert (snapshot.num_files, snapshot.size_bytes) == (len(sizes), sum(sizes.values()))


async def live_files(
    reader: LogReader, snapshot: Snapshot, first: int = 0, until: int | None = None
) -> list[LiveFile]:
    """Return the live files of a range of keys, by key."""
    found = [
        file
        async for files in read_live_files(
            reader, snapshot, first_key=first, until_key=until, with_stats=True
        )
        for file in files
    ]
    return sorted(found, key=lambda file: file.key)


def assert_described(files: list[LiveFile], state: NaiveState, *, has_stats: bool = True) -> None:
    """Compare descriptions of all live files with the actions that added them."""
    by_key = {file_key(path, vid or None): add for (path, vid), add in state.adds.items()}
    assert [file.key for file in files] == sorted(by_key)
    for file in files:
        action = by_key[file.key]
        vector_id = file.deletion_vector.unique_id if file.deletion_vector else ""
        assert key_of({**action, "path": file.path}) == key_of(action)
        assert vector_id == key_of(action)[1]
        assert file.size_bytes == action["size"]
        assert dict(file.partition_values) == action["partitionValues"]
        assert file.modification_time_ms == action["modificationTime"]
        text = action.get("stats", "")
        if has_stats:
            assert file.num_records == (json.loads(text)["numRecords"] if text[:1] == "{" else None)
