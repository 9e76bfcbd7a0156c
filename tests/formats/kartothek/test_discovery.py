"""Datasets found by pattern, in folders and in buckets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailerd.config import Config
from tailerd.formats.table_search import discover_tables
from tests.integration.s3.conftest import bucket, proxy  # noqa: F401 - fixtures
from tests.s3.proxy import FaultProxy
from tests.s3.servers import S3Server
from tests.tables.builder import TableBuilder
from tests.tables.dataset_writer import DatasetWriter, Rows

ROW: Rows = [{"id": 1, "name": "n1"}]


def found(pattern: str, table_format: str = "auto") -> list[str]:
    template = {"sink": {"kind": "file", "path": "/out/{name}"}, "format": table_format}
    lake = {"path": pattern, "every": "10m", "template": template}
    config = discover_tables(Config(engine="arrow", discover={"lake": lake})).config
    return sorted(table.path for table in config.tables.values())


def lake(folder: Path) -> None:
    for uuid in ("orders", "events"):
        DatasetWriter(folder, uuid).commit(ROW)
    TableBuilder(folder / "delta").append(ROW)
    (folder / "nothing").mkdir()
    (folder / "nothing/file").write_text("")


@pytest.mark.parametrize(
    ("table_format", "names"),
    [
        ("auto", ["delta", "events", "orders"]),
        ("kartothek", ["events", "orders"]),
        ("delta", ["delta"]),
    ],
)
def test_datasets_of_a_folder_are_found(
    tmp_path: Path, table_format: str, names: list[str]
) -> None:
    lake(tmp_path)
    assert found(f"{tmp_path}/*", table_format) == [f"{tmp_path}/{name}" for name in names]


@pytest.mark.parametrize(
    ("pattern", "names"), [("*", ["delta", "events", "orders"]), ("o*", ["orders"])]
)
def test_datasets_of_a_bucket_are_found(
    proxy: FaultProxy,  # noqa: F811
    s3_moto: S3Server,
    bucket: str,  # noqa: F811
    tmp_path: Path,
    pattern: str,
    names: list[str],
) -> None:
    lake(tmp_path)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            key = f"lake/{path.relative_to(tmp_path).as_posix()}"
            s3_moto.admin().put_object(Bucket=bucket, Key=key, Body=path.read_bytes())
    assert found(f"s3://{bucket}/lake/{pattern}") == [f"s3://{bucket}/lake/{n}" for n in names]
