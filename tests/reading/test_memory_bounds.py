"""Memory: no file of a table takes more than the configured `memory` and 128 MiB.

Each hostile file is small, or sparse, and claims or becomes gigabytes. Either its rows come, or one
error says what is too large or damaged; the process stays within its bound and ends soon.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from tailerd.changefeed.limits import ALLOWANCE_BYTES, DEFAULT_MEMORY_BYTES
from tailerd.config import Config
from tests.reading.measured import MIB, Measured, measured
from tests.tables.builder import TableBuilder

pytestmark = pytest.mark.attack


SOON_SECONDS = 20.0
"""CPU time, which a busy machine does not lengthen much: these commands take one or two seconds."""


@pytest.fixture(scope="session")
def idle_bytes(tmp_path_factory: pytest.TempPathFactory) -> int:
    """Return what reading an innocent table takes."""
    table = TableBuilder(tmp_path_factory.mktemp("idle") / "t")
    table.append([{"id": 1, "name": "a"}])
    table.checkpoint()
    found = measured("tail", table.folder, "--from", "snapshot", "--once")
    assert found.status == 0
    return found.peak_bytes


def assert_bounded(found: Measured, idle_bytes: int, memory: int = DEFAULT_MEMORY_BYTES) -> None:
    assert found.cpu_seconds < SOON_SECONDS
    assert "error[bug]" not in found.err
    assert "Traceback" not in found.err
    taken = (found.peak_bytes - idle_bytes) // MIB
    assert found.status is not None
    assert taken <= (memory + ALLOWANCE_BYTES) // MIB


def assert_refused(found: Measured, code: str, *words: str) -> None:
    assert found.status == 3
    assert f"error[{code}]" in found.err
    for word in words:
        assert word in found.err


def test_commands_read_within_the_default_of_the_configuration() -> None:
    assert Config.model_fields["memory"].default == DEFAULT_MEMORY_BYTES


# ---------------------------------------------------------------------- checkpoints

LONG_PATH = 1 * MIB


def long_paths(table: TableBuilder, count: int, *, of_group: int, is_repeated: bool) -> Path:
    """Replace a checkpoint by one with files of very long paths."""
    path = _checkpoint(table)
    rows = pq.read_table(path).to_pylist()
    schema = pq.read_schema(path)
    [add] = [row for row in rows if row["add"] is not None]
    with pq.ParquetWriter(path, schema, compression="zstd", data_page_size=4 * MIB) as writer:
        writer.write_table(pa.Table.from_pylist(rows, schema))
        for start in range(0, count, of_group):
            batch = [
                {"add": {**add["add"], "path": _long_name(0 if is_repeated else start + number)}}
                for number in range(of_group)
            ]
            writer.write_table(pa.Table.from_pylist(batch, schema))
    return path


def _long_name(number: int) -> str:
    return f"{number:08}".ljust(LONG_PATH, "x")


def _checkpoint(table: TableBuilder) -> Path:
    [path] = table.checkpoint()
    return path


@pytest.mark.full
@pytest.mark.parametrize("is_repeated", [False, True], ids=["different", "one-over-and-over"])
def test_a_small_checkpoint_of_very_long_paths_is_read_within_memory(
    tmp_path: Path, idle_bytes: int, is_repeated: bool
) -> None:
    table = TableBuilder(tmp_path / "t")
    table.append([{"id": 1, "name": "a"}])
    path = long_paths(table, 1000, of_group=50, is_repeated=is_repeated)
    assert path.stat().st_size < MIB
    tailed = measured("tail", table.folder, "--from", "snapshot", "--once")
    assert_bounded(tailed, idle_bytes)
    inspected = measured("inspect", table.folder)
    assert_bounded(inspected, idle_bytes)
    assert inspected.status == 0
    assert re.search(r"files +1,001" if not is_repeated else r"files +2", inspected.out)


@pytest.mark.full
def test_a_json_checkpoint_that_is_sparse_is_passed_over_where_commits_suffice(
    tmp_path: Path, idle_bytes: int
) -> None:
    table = TableBuilder(tmp_path / "t", reader_features=["v2Checkpoint"])
    table.append([{"id": 1, "name": "a"}])
    table.checkpoint(layout="v2-json")
    [manifest] = table.log.glob("*.checkpoint.*.json")
    with manifest.open("r+b") as file:
        file.truncate(50 << 30)
    found = measured("tail", table.folder, "--from", "snapshot", "--once", "--format", "jsonl")
    assert_bounded(found, idle_bytes)
    assert found.status == 0
    assert json.loads(found.out)["id"] == 1


# ---------------------------------------------------------------------- deletion vectors


def with_vector(folder: Path, **changes: int) -> TableBuilder:
    """Return a table with a deletion vector whose descriptor was changed."""
    table = TableBuilder(folder, reader_features=["deletionVectors"])
    [add] = table.append([{"id": n, "name": "a"} for n in range(5)]).adds
    table.delete_rows(add, [1])
    path = table.commit_path(1)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            line["add"]["deletionVector"].update(changes)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return table


@pytest.mark.parametrize("is_sparse", [False, True], ids=["small-file", "sparse-file"])
def test_a_deletion_vector_that_claims_gigabytes_is_refused_before_they_are_read(
    tmp_path: Path, idle_bytes: int, is_sparse: bool
) -> None:
    table = with_vector(tmp_path / "t", sizeInBytes=2_000_000_000)
    if is_sparse:
        [file] = table.folder.glob("*.bin")
        with file.open("r+b") as opened:
            opened.truncate(50 << 30)
    found = measured("tail", table.folder, "--from", "snapshot", "--once")
    assert_bounded(found, idle_bytes)
    if is_sparse:
        assert_refused(found, "too_large", "`memory`", "1907 MiB")
    else:
        assert_refused(found, "invalid_deletion_vector", "2000000000")


@pytest.mark.full
def test_a_deletion_vector_of_many_rows_in_few_bytes_is_never_laid_out(
    tmp_path: Path, idle_bytes: int
) -> None:
    rows = 100_000_000
    table = TableBuilder(tmp_path / "t", reader_features=["deletionVectors"])
    [add] = table.append([{"id": 1, "name": "a"}]).adds
    path = table.folder / add["add"]["path"]
    schema = pq.read_schema(path)
    codes = pa.DictionaryArray.from_arrays(pa.nulls(MIB, pa.int32()).fill_null(0), pa.array([7]))
    names = pa.nulls(MIB, schema.field("name").type)
    batch = pa.record_batch([codes.cast(pa.int64()), names], schema=schema)
    with pq.ParquetWriter(path, schema) as writer:
        for _ in range(rows // MIB):
            writer.write_batch(batch)
    count = rows // MIB * MIB
    add["add"]["size"] = path.stat().st_size
    deleted = BitMap64(range(count - 1))
    deleted.run_optimize()
    body = (1_681_511_377).to_bytes(4, "little") + deleted.serialize()
    frame = len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    (table.folder / "dv.bin").write_bytes(b"\1" + frame)
    vector = {
        "storageType": "p",
        "pathOrInlineDv": str(table.folder / "dv.bin"),
        "offset": 1,
        "sizeInBytes": len(body),
        "cardinality": count - 1,
    }
    table.commit(table.remove(add), {"add": {**add["add"], "deletionVector": vector}})
    found = measured("tail", table.folder, "--from", "snapshot", "--once", "--format", "jsonl")
    assert_bounded(found, idle_bytes)
    assert [json.loads(line)["id"] for line in found.out.splitlines()] == [7]


# ---------------------------------------------------------------------- data files


def expanding(folder: Path, lengths: list[int], **options: Any) -> TableBuilder:
    """Return a table with one file, one row group, of one long text a row; each is kept once."""
    table = TableBuilder(folder, fields=[("name", "string")])
    [add] = table.append([{"name": "a"}]).adds
    words = sorted(set(lengths))
    codes = pa.array([words.index(length) for length in lengths], pa.int32())
    names = pa.DictionaryArray.from_arrays(codes, pa.array(["x" * length for length in words]))
    pq.write_table(
        pa.table({"name": names}),
        table.folder / add["add"]["path"],
        compression="zstd",
        store_schema=False,
        **options,
    )
    return table


@pytest.mark.full
def test_a_small_dictionary_encoded_file_of_gigabytes_comes_in_small_batches(
    tmp_path: Path, idle_bytes: int
) -> None:
    # Short rows first, so that what they take tells nothing of what follows.
    table = expanding(tmp_path / "t", [1] * 5000 + [MIB] * 1500)
    found = tail_all(table)
    assert_bounded(found, idle_bytes)
    assert found.status == 0


def test_rows_of_a_file_that_becomes_gigabytes_are_all_there(tmp_path: Path) -> None:
    table = expanding(tmp_path / "t", [1] * 500 + [MIB] * 20 + [2, 3])
    found = measured("tail", table.folder, "--from", "snapshot", "--once", "--format", "jsonl")
    lengths = [len(json.loads(line)["name"]) for line in found.out.splitlines()]
    assert lengths == [1] * 500 + [MIB] * 20 + [2, 3]


def tail_all(table: TableBuilder) -> Measured:
    return measured(
        "tail", table.folder, "--from", "snapshot", "--once", "--format", "jsonl", is_out_kept=False
    )


@pytest.mark.full
def test_a_daemon_with_little_memory_delivers_a_file_that_becomes_gigabytes(
    tmp_path: Path,
) -> None:
    # A daemon has more loaded than a command: it is compared with itself.
    (tmp_path / "idle").mkdir()
    innocent = run_once(tmp_path / "idle", expanding(tmp_path / "idle/t", [1]), memory="16MiB")
    assert innocent.status == 0
    table = expanding(tmp_path / "t", [MIB] * 300)
    found = run_once(tmp_path, table, memory="16MiB")
    assert_bounded(found, innocent.peak_bytes, 16 * MIB)
    assert found.status == 0
    assert sum(file.stat().st_size for file in (tmp_path / "out").rglob("*.jsonl")) > 300 * MIB


def run_once(folder: Path, table: TableBuilder, *, memory: str) -> Measured:
    config = folder / "tailerd.yaml"
    config.write_text(
        f"""
engine: arrow
state: {folder}/state
memory: {memory}
tables:
  orders:
    path: {table.folder}
    from: snapshot
    sink: {{kind: file, path: {folder}/out}}
"""
    )
    return measured("run", "--config", config, "--once")


@pytest.mark.full
def test_a_page_that_becomes_more_than_memory_is_refused(tmp_path: Path, idle_bytes: int) -> None:
    table = expanding(tmp_path / "t", [100 * MIB], use_dictionary=False)
    found = measured("tail", table.folder, "--from", "snapshot", "--once")
    assert_bounded(found, idle_bytes)
    assert_refused(found, "too_large", "`memory` (256 MiB)", "100 MiB", "memory: 1024MiB")


@pytest.mark.full
def test_one_long_row_comes_where_memory_suffices_for_it(tmp_path: Path, idle_bytes: int) -> None:
    table = expanding(tmp_path / "t", [40 * MIB], use_dictionary=False)
    found = measured("tail", table.folder, "--from", "snapshot", "--once", "--format", "jsonl")
    assert_bounded(found, idle_bytes)
    assert found.status == 0
    assert len(json.loads(found.out)["name"]) == 40 * MIB


def test_a_footer_that_claims_gigabytes_of_a_sparse_file_is_refused(
    tmp_path: Path, idle_bytes: int
) -> None:
    table = TableBuilder(tmp_path / "t")
    [add] = table.append([{"id": 1, "name": "a"}]).adds
    path = table.folder / add["add"]["path"]
    sparse(path)
    with path.open("r+b") as file:
        file.write(b"PAR1")
        file.seek(-8, 2)
        file.write((2_000_000_000).to_bytes(4, "little") + b"PAR1")
    found = measured("tail", table.folder, "--from", "snapshot", "--once")
    assert_bounded(found, idle_bytes)
    assert_refused(found, "too_large", "footer")


@pytest.mark.full
def test_a_long_partition_value_is_repeated_in_small_batches(
    tmp_path: Path, idle_bytes: int
) -> None:
    table = TableBuilder(
        tmp_path / "t", fields=[("id", "long"), ("p", "string")], partition_by=["p"]
    )
    [add] = table.append([{"id": n, "p": "a"} for n in range(500)]).adds
    long = {**add["add"], "partitionValues": {"p": "x" * MIB}}
    table.commit(table.remove(add), {"add": long})
    found = tail_all(table)
    assert_bounded(found, idle_bytes)
    assert found.status == 0


# ---------------------------------------------------------------------- the rest of the log


def sparse(path: Path, size: int = 50 << 30) -> None:
    with path.open("wb") as file:
        file.truncate(size)


def sparse_commit(table: TableBuilder) -> None:
    sparse(table.commit_path(2))


def nul_commit(table: TableBuilder) -> None:
    sparse(table.commit_path(2), 2_000_000_000)


def endless_line(table: TableBuilder) -> None:
    with table.commit_path(2).open("wb") as file:
        file.write(b'{"commitInfo":{"a":"')
        for _ in range(100):
            file.write(b"x" * MIB)
        file.write(b'"}}\n')


def sparse_compaction(table: TableBuilder) -> None:
    sparse(table.compact(0, 1))
    table.commit_path(0).unlink()


REFUSED = [
    (sparse_commit, "corrupt_log"),
    (nul_commit, "corrupt_log"),
    (endless_line, "too_large"),
    (sparse_compaction, "corrupt_log"),
]


@pytest.mark.parametrize(("damage", "code"), REFUSED, ids=[d.__name__ for d, _ in REFUSED])
def test_an_endless_line_of_the_log_ends_in_one_error(
    tmp_path: Path, idle_bytes: int, damage: Callable[[TableBuilder], None], code: str
) -> None:
    table = TableBuilder(tmp_path / "t")
    table.append([{"id": 1, "name": "a"}])
    table.append([{"id": 2, "name": "b"}])
    damage(table)
    found = measured("tail", table.folder, "--from", "snapshot", "--once")
    assert_bounded(found, idle_bytes)
    assert_refused(found, code)


@pytest.mark.full
@pytest.mark.parametrize("name", ["_last_checkpoint", f"{1:020}.crc"])
def test_a_sparse_file_that_only_helps_is_left_aside(
    tmp_path: Path, idle_bytes: int, name: str
) -> None:
    table = TableBuilder(tmp_path / "t")
    table.append([{"id": 1, "name": "a"}])
    table.append([{"id": 2, "name": "b"}])
    sparse(table.log / name)
    for command, *rest in (("inspect",), ("tail", "--from", "0", "--once")):
        found = measured(command, table.folder, *rest)
        assert_bounded(found, idle_bytes)
        assert found.status == 0


@pytest.mark.parametrize("kind", ["data", "checkpoint"])
def test_a_sparse_file_in_place_of_parquet_is_refused(
    tmp_path: Path, idle_bytes: int, kind: str
) -> None:
    table = TableBuilder(tmp_path / "t")
    [add] = table.append([{"id": 1, "name": "a"}]).adds
    if kind == "data":
        sparse(table.folder / add["add"]["path"])
    else:
        sparse(_checkpoint(table))
        table.commit_path(0).unlink()
    found = measured("tail", table.folder, "--from", "snapshot", "--once")
    assert_bounded(found, idle_bytes)
    assert_refused(found, "unreadable_data_file" if kind == "data" else "corrupt_log")


@pytest.mark.full
def test_a_large_commit_of_many_files_is_still_read(tmp_path: Path, idle_bytes: int) -> None:
    table = TableBuilder(tmp_path / "t")
    [add] = table.append([{"id": 1, "name": "a"}]).adds
    stats = "x" * 800
    with table.commit_path(1).open("w") as file:
        for number in range(40_000):
            action = {**add["add"], "path": f"{number}.parquet", "stats": json.dumps({"a": stats})}
            file.write(json.dumps({"add": action}) + "\n")
    assert table.commit_path(1).stat().st_size > 32 * MIB
    found = measured("inspect", table.folder)
    assert_bounded(found, idle_bytes)
    assert found.status == 0
    assert re.search(r"files +40,001", found.out)
