"""Tables too large to be made for each run: generated once, kept outside the tree.

They stay in $TAILERD_BENCHMARKS, or in a folder of the system's temporary folder. Each function
returns the table's folder; what a benchmark changes it must put back, or work on a `clone`.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.tables.builder import CDF, TableBuilder

RECIPE = 1
"""Raised when a table is made differently, so that old copies are not used."""

CHECKPOINT_VERSION = 1000
COMMITS_AFTER = 100
FILES_PER_COMMIT = 10
FILES_PER_DAY = 1000
LINKS = 30_000
ROWS_PER_LINK = 10

WIDE_FIELDS = (
    ("id", "long"),
    ("amount", "double"),
    ("customer", "string"),
    ("product", "string"),
    ("quantity", "integer"),
    ("region", "string"),
    ("updated", "timestamp"),
    ("date", "string"),
)

ORDER_FIELDS = (
    ("id", "long"),
    ("customer", "string"),
    ("product", "string"),
    ("status", "string"),
    ("quantity", "integer"),
    ("amount", "double"),
    ("updated", "timestamp"),
)

_MakeRows = Callable[[np.random.Generator, int, int], pa.Table]


def _home() -> Path:
    location = os.environ.get("TAILERD_BENCHMARKS")
    return Path(location) if location else Path(tempfile.gettempdir()) / "tailerd-benchmarks"


def _cached(name: str, make: Callable[[Path], None]) -> Path:
    folder = _home() / f"{name}-{RECIPE}"
    if not folder.exists():
        unfinished = folder.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        make(unfinished)
        unfinished.rename(folder)
    return folder


def clone(table: Path, folder: Path) -> Path:
    """Return a copy of a table's log in `folder` that shares the bytes with the original.

    Commits and hints of the copy can be added and removed; existing files must not be edited.
    """
    for path in table.rglob("*"):
        if path.is_file():
            target = folder / path.relative_to(table)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, target)
            except OSError:  # another file system
                shutil.copy2(path, target)
    return folder


def wide_table(folder: Path, **options: Any) -> TableBuilder:
    """Return the builder of the checkpointed tables, to add commits to one."""
    return TableBuilder(folder, fields=list(WIDE_FIELDS), partition_by=["date"], **options)


def big_checkpoint(files: int) -> Path:
    """A V1 snappy checkpoint of `files` adds with 500 B of statistics, and 100 commits after it."""
    return _cached(f"checkpoint-{files}", lambda folder: _make_big_checkpoint(folder, files))


def many_commits(commits: int) -> Path:
    """`commits` JSON commits of one file each, no checkpoint."""
    return _cached(f"commits-{commits}", lambda folder: _make_many_commits(folder, commits))


def change_feed(commits: int, rows_per_commit: int) -> Path:
    """A table with change data feed: appends and updates in turns, data and change files real."""
    return _cached(
        f"feed-{commits}x{rows_per_commit}",
        lambda folder: _make_change_feed(folder, commits, rows_per_commit),
    )


def wide_feed(commits: int, rows_per_commit: int) -> Path:
    """As `change_feed`, with the seven columns `ORDER_FIELDS`."""
    return _cached(
        f"orders-{commits}x{rows_per_commit}",
        lambda folder: _fill_change_feed(
            TableBuilder(folder, fields=list(ORDER_FIELDS), properties=CDF),
            commits,
            rows_per_commit,
            _order_rows,
        ),
    )


def update_feed(commits: int, rows_per_commit: int) -> Path:
    """A table with change data feed whose updates are of the rows appended right before.

    Folding its changes gives its snapshot, and with the key `id` all images pair up.
    """
    return _cached(
        f"updates-{commits}x{rows_per_commit}",
        lambda folder: _make_update_feed(folder, commits, rows_per_commit),
    )


def wide_files(files: int, rows: int, columns: int) -> Path:
    """A table of appends, one file a commit: `id`, `amount`, and numbers and texts in turns."""
    return _cached(
        f"files-{files}x{rows}x{columns}",
        lambda folder: _make_wide_files(folder, files, rows, columns),
    )


def backlog(commits: int, rows_per_commit: int) -> Path:
    """`commits` commits of one file each, all of them links to one file of that many rows."""
    return _cached(
        f"backlog-{commits}x{rows_per_commit}",
        lambda folder: _make_backlog(folder, commits, rows_per_commit),
    )


def linked_files(files: int) -> Path:
    """`big_checkpoint` with its data files there: links to a few small ones."""
    return _cached(f"linked-{files}", lambda folder: _make_linked_files(folder, files))


def path_of(number: int) -> str:
    """Return the path of file `number`: as long and as random as Spark's are."""
    date = np.datetime64("2020-01-01") + number // FILES_PER_DAY
    spread = f"{_mix(number):016x}{_mix(~number):016x}"
    identity = f"{spread[:8]}-{spread[8:12]}-4{spread[13:16]}-8{spread[17:20]}-{spread[20:]}"
    return f"date={date}/part-{number % 100_000:05}-{identity}.c000.snappy.parquet"


def _mix(number: int) -> int:
    """Spread a number over 64 bits, each number to another location."""
    number = (number + 0x9E3779B97F4A7C15) * 0xBF58476D1CE4E5B9 % 2**64
    return (number ^ number >> 29) * 0x94D049BB133111EB % 2**64


def stats_of(number: int) -> str:
    """Return statistics as long as those of a table with a handful of columns."""
    bounds = [
        f'{{"id":{value},"amount":{value % 10**9 / 7:.6f},"customer":"customer-{value:020}",'
        f'"product":"product-{value % 9973:06}","quantity":{value % 100},"region":'
        f'"eu-west-{value % 3}","updated":"2020-01-01T00:00:{value % 60:02}.000Z"}}'
        for value in (_mix(number), _mix(number + 1))
    ]
    counts = '{"id":0,"amount":0,"customer":0,"product":0,"quantity":0,"region":0,"updated":0}'
    return (
        f'{{"numRecords":1000,"minValues":{bounds[0]},"maxValues":{bounds[1]},'
        f'"nullCount":{counts}}}'
    )


def add_of(number: int) -> dict[str, Any]:
    """Return the `add` of file `number`; the file itself does not exist."""
    date = str(np.datetime64("2020-01-01") + number // FILES_PER_DAY)
    return {
        "add": {
            "path": path_of(number),
            "partitionValues": {"date": date},
            "size": 40_000 + number % 1000,
            "modificationTime": 1_600_000_000_000 + number,
            "dataChange": True,
            "stats": stats_of(number),
        }
    }


def _make_big_checkpoint(folder: Path, files: int) -> None:
    table = wide_table(folder)
    table.log.mkdir(parents=True)
    path = table.log / f"{CHECKPOINT_VERSION:020}.checkpoint.parquet"
    schema = _checkpoint_schema()
    with pq.ParquetWriter(path, schema, compression="snappy") as writer:
        protocol, metadata = table.protocol()["protocol"], table.metadata()["metaData"]
        metadata["configuration"] = list(metadata["configuration"].items())
        metadata["format"] = {"provider": "parquet", "options": []}
        head = [{"protocol": protocol}, {"metaData": metadata}]
        writer.write_table(pa.Table.from_pylist(head, schema=schema))
        for adds in _adds_in_chunks(files):
            nothing = [pa.nulls(len(adds), schema.field(i).type) for i in (0, 1)]
            writer.write_table(pa.Table.from_arrays([*nothing, adds], schema=schema))
    table.last_checkpoint(CHECKPOINT_VERSION, size=files + 2)
    table.commit(version=CHECKPOINT_VERSION)
    for commit in range(COMMITS_AFTER):
        first = files + commit * FILES_PER_COMMIT
        table.commit(*(add_of(number) for number in range(first, first + FILES_PER_COMMIT)))


def _checkpoint_schema() -> pa.Schema:
    text_map = pa.map_(pa.string(), pa.string())
    return pa.schema(
        {
            "protocol": pa.struct({"minReaderVersion": pa.int32(), "minWriterVersion": pa.int32()}),
            "metaData": pa.struct(
                {
                    "id": pa.string(),
                    "format": pa.struct({"provider": pa.string(), "options": text_map}),
                    "schemaString": pa.string(),
                    "partitionColumns": pa.list_(pa.string()),
                    "configuration": text_map,
                    "createdTime": pa.int64(),
                }
            ),
            "add": pa.struct(
                {
                    "path": pa.string(),
                    "partitionValues": text_map,
                    "size": pa.int64(),
                    "modificationTime": pa.int64(),
                    "dataChange": pa.bool_(),
                    "stats": pa.string(),
                }
            ),
        }
    )


def _adds_in_chunks(files: int, chunk: int = 100_000) -> Iterator[pa.Array]:
    kind = _checkpoint_schema().field("add").type
    for first in range(0, files, chunk):
        numbers = np.arange(first, min(first + chunk, files))
        count = len(numbers)
        dates = (np.datetime64("2020-01-01") + numbers // FILES_PER_DAY).astype(str)
        offsets = pa.array(np.arange(count + 1, dtype=np.int32))
        names = pa.array(["date"] * count)
        yield pa.StructArray.from_arrays(
            [
                pa.array([path_of(number) for number in numbers.tolist()]),
                pa.MapArray.from_arrays(offsets, names, pa.array(dates)),
                pa.array(40_000 + numbers % 1000),
                pa.array(1_600_000_000_000 + numbers),
                pa.array(np.zeros(count, bool)),
                pa.array([stats_of(number) for number in numbers.tolist()]),
            ],
            fields=list(kind),
        )


def _make_wide_files(folder: Path, files: int, rows: int, columns: int) -> None:
    others = [(f"c{number}", "string" if number % 2 else "double") for number in range(2, columns)]
    table = TableBuilder(folder, fields=[("id", "long"), ("amount", "double"), *others])
    random = np.random.default_rng(7)
    texts = pa.array([f"text-{number:06}" for number in range(10**6)])
    table.create()
    for number in range(files):
        data: dict[str, Any] = {
            "id": np.arange(number * rows, (number + 1) * rows),
            "amount": random.random(rows),
        }
        for name, kind in others:
            values = random.integers(0, len(texts), rows)
            data[name] = texts.take(pa.array(values)) if kind == "string" else values / 7
        table.commit(table.data_file(pa.table(data), partition={}))


def _make_backlog(folder: Path, commits: int, rows: int) -> None:
    fields = [("id", "long"), ("name", "string"), ("amount", "double"), ("updated", "timestamp")]
    table = TableBuilder(folder, fields=fields)
    data = _feed_rows(np.random.default_rng(7), 0, rows)
    names = pa.array([f"name-{number % 1000}" for number in range(rows)])
    first = table.data_file(data.set_column(1, "name", names), partition={})
    table.create()
    for number in range(commits):
        path = f"part-linked-{number:06}.parquet"
        _link(folder / first["add"]["path"], folder / path, number)
        table.commit({"add": {**first["add"], "path": path}})


def _make_linked_files(folder: Path, files: int) -> None:
    _make_big_checkpoint(folder, files)
    table = wide_table(folder)
    rows = [{"id": n, "customer": f"customer-{n}", "quantity": n} for n in range(ROWS_PER_LINK)]
    first = folder / table.data_file(rows, partition={"date": "x"})["add"]["path"]
    for number in range(files + COMMITS_AFTER * FILES_PER_COMMIT):
        target = folder / path_of(number)
        if number % FILES_PER_DAY == 0:
            target.parent.mkdir(exist_ok=True)
        _link(first, target, number)


def _link(first: Path, target: Path, number: int) -> None:
    """Link to a file; file systems bound how many names one may have."""
    source = first.with_name(f"{first.name}-{number // LINKS}")
    if number % LINKS == 0:
        shutil.copy2(first, source)
    os.link(source, target)


def _make_many_commits(folder: Path, commits: int) -> None:
    table = wide_table(folder)
    table.create(add_of(0))
    for number in range(1, commits):
        table.commit(add_of(number))


def _feed_table(folder: Path) -> TableBuilder:
    return TableBuilder(
        folder,
        fields=[("id", "long"), ("name", "string"), ("amount", "double"), ("updated", "timestamp")],
        properties=CDF,
    )


def _make_change_feed(folder: Path, commits: int, rows: int) -> None:
    _fill_change_feed(_feed_table(folder), commits, rows, _feed_rows)


def _fill_change_feed(table: TableBuilder, commits: int, rows: int, make_rows: _MakeRows) -> None:
    random = np.random.default_rng(7)
    table.create()
    previous = table.data_file(make_rows(random, 0, rows), partition={})
    table.commit(previous)
    for number in range(2, commits):
        data = make_rows(random, number * rows, rows)
        if number % 2 == 0:
            previous = table.data_file(data, partition={})
            table.commit(previous)
            continue
        half = rows // 2
        after = table.data_file(data, partition={})
        kinds = np.repeat(["update_preimage", "update_postimage"], half)
        changes = pa.concat_tables([data.slice(0, half), data.slice(half, half)])
        cdc = table.cdc_file(changes.append_column("_change_type", pa.array(kinds)), partition={})
        table.commit(table.remove(previous), after, cdc, operation="UPDATE")


def _make_update_feed(folder: Path, commits: int, rows: int) -> None:
    table = _feed_table(folder)
    random = np.random.default_rng(7)
    table.create()
    half = rows // 2
    for number in range(commits // 2):
        before = _feed_rows(random, number * rows, rows)
        previous = table.data_file(before, partition={})
        table.commit(previous)
        amounts = pa.array(random.random(half))
        location = before.schema.get_field_index("amount")
        changed = before.slice(0, half).set_column(location, "amount", amounts)
        kinds = np.repeat(["update_preimage", "update_postimage"], half)
        images = pa.concat_tables([before.slice(0, half), changed])
        cdc = table.cdc_file(images.append_column("_change_type", pa.array(kinds)), partition={})
        after = table.data_file(pa.concat_tables([changed, before.slice(half)]), partition={})
        table.commit(table.remove(previous), after, cdc, operation="UPDATE")


def _feed_rows(random: np.random.Generator, first: int, count: int) -> pa.Table:
    ids = np.arange(first, first + count)
    return pa.table(
        {
            "id": ids,
            "name": pa.array([f"name-{number:08x}" for number in ids.tolist()]),
            "amount": random.random(count),
            "updated": pa.array(1_700_000_000_000_000 + ids, pa.timestamp("us", tz="UTC")),
        }
    )


def _order_rows(random: np.random.Generator, first: int, count: int) -> pa.Table:
    ids = np.arange(first, first + count)
    statuses = np.array(["placed", "paid", "packed", "sent", "returned"])
    return pa.table(
        {
            "id": ids,
            "customer": pa.array([f"customer-{n:06}" for n in random.integers(0, 10**6, count)]),
            "product": pa.array([f"product-{n:04}" for n in random.integers(0, 5000, count)]),
            "status": statuses[random.integers(0, len(statuses), count)],
            "quantity": random.integers(1, 100, count).astype(np.int32),
            "amount": random.random(count),
            "updated": pa.array(1_700_000_000_000_000 + ids * 997, pa.timestamp("us", tz="UTC")),
        }
    )


def write_large_commit(path: Path, size_bytes: int) -> int:
    """Write a commit of adds of at least that size; return their number."""
    template = json.dumps(add_of(0))
    stats = json.dumps(stats_of(0))
    assert stats in template
    number = written = 0
    with path.open("w") as file:
        while written < size_bytes:
            # Only the path differs: serializing each line would take longer than the test.
            lines = template.replace(path_of(0), "date=2020-01-01/part-%012d-" + "x" * 50)
            written += file.write("".join(f"{lines % (number + i)}\n" for i in range(1000)))
            number += 1000
    return number
