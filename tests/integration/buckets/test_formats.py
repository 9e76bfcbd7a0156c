"""Tables of the other formats in buckets of every server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clouds.buckets import BucketServer
from tests.formats.tiledb import arrays
from tests.integration.s3.test_commands import tailerd
from tests.s3.upload import upload
from tests.tables.iceberg_writer import IcebergWriter
from tests.tables.lance_writer import LanceWriter

pytestmark = pytest.mark.full
IDS = [1, 2, 3]


def write_iceberg(folder: Path) -> None:
    # Its metadata names paths on this disk, which are taken relative to the table.
    writer = IcebergWriter(folder)
    writer.append([{"id": number, "name": "x"} for number in [*IDS, 4]])
    writer.delete("id = 4")


def write_lance(folder: Path) -> None:
    LanceWriter(str(folder)).append([{"id": number, "name": "x"} for number in IDS])


def write_tiledb(folder: Path) -> None:
    arrays.create_named(folder)
    arrays.write_named(folder, None, IDS)


@pytest.mark.parametrize("write", [write_iceberg, write_lance, write_tiledb])
def test_their_rows_come_out_of_a_bucket(
    server: BucketServer, tmp_path: Path, write: Callable[[Path], None]
) -> None:
    write(tmp_path / "table")
    bucket = server.new_bucket()
    upload(server, tmp_path / "table", bucket, "lake/t")
    location = f"{server.scheme}://{bucket}/lake/t"
    ran = tailerd(server, "tail", location, "--from", "snapshot", "--once", "--format", "jsonl")
    assert ran.returncode == 0, ran.stderr
    assert sorted(json.loads(line)["id"] for line in ran.stdout.splitlines()) == IDS
