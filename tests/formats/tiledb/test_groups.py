"""A group is no table: it stands for the arrays in its folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailerd.config import Config
from tailerd.formats.found_tables import find_tables
from tailerd.formats.table_search import discover_tables
from tailerd.storage.stores import Stores
from tests.formats.delivering import delivered
from tests.formats.tiledb import arrays
from tests.integration.daemon.running import file_table, run_to_end
from tests.integration.s3.conftest import bucket, proxy  # noqa: F401 - fixtures
from tests.s3.proxy import FaultProxy
from tests.s3.servers import S3Server


@pytest.fixture
def group(tmp_path: Path) -> Path:
    """A group of two arrays, one with a row; a folder in it is neither array nor group."""
    found = tmp_path / "lake/group"
    found.parent.mkdir()
    arrays.create_group(found)
    for name in ("first", "second"):
        arrays.create_named(found / name)
    arrays.write_named(found / "first", 1000, [1])
    (found / "notes").mkdir()
    return found


def discovered(path: str, table_format: str = "auto") -> list[str]:
    template = {"sink": {"kind": "file", "path": "/out/{name}"}, "format": table_format}
    found = discover_tables(
        Config(engine="arrow", discover={"all": {"path": path, "template": template}})
    )
    return sorted(f"{name} {table.path}" for name, table in found.config.tables.items())


def test_a_group_is_refused_and_its_arrays_are_named(group: Path) -> None:
    done = run_to_end("tail", group, "--from", "snapshot", "--once")
    assert done.returncode == 3
    assert f"Arrays in it: {group}/first, {group}/second." in done.stderr
    assert "`discover` with the group as its path" in done.stderr


@pytest.mark.parametrize("ending", ["", "/", "/*"])
def test_discover_takes_a_group_as_a_pattern(group: Path, ending: str) -> None:
    expected = [f"{name} {group}/{name}" for name in ("first", "second")]
    assert discovered(f"{group}{ending}") == expected
    assert discovered(f"{group}{ending}", "tiledb") == expected
    assert discovered(f"{group}{ending}", "delta") == []


def test_a_pattern_that_matches_a_group_does_not_take_it_for_a_table(group: Path) -> None:
    assert discovered(f"{group.parent}/*") == []
    assert discovered(f"{group.parent}/*/first") == [f"group-first {group}/first"]


def test_a_group_in_a_bucket_is_one_too(
    proxy: FaultProxy,  # noqa: F811
    s3_moto: S3Server,
    bucket: str,  # noqa: F811
    group: Path,
) -> None:
    for path in (each for each in group.rglob("*") if each.is_file()):
        key = f"lake/group/{path.relative_to(group).as_posix()}"
        s3_moto.admin().put_object(Bucket=bucket, Key=key, Body=path.read_bytes())
    assert discovered(f"s3://{bucket}/lake/group") == [f"first s3://{bucket}/lake/group/first"]


async def test_init_finds_the_arrays_and_not_the_group(group: Path) -> None:
    found = await find_tables(str(group.parent), Stores())
    assert [(table.location, table.format) for table in found.tables] == [
        (f"{group}/first", "tiledb"),
        (f"{group}/second", "tiledb"),
    ]


def test_a_configuration_names_the_group(group: Path, tmp_path: Path) -> None:
    table = file_table(group, tmp_path / "out/{name}", engine="arrow")
    del table["path"]
    config = tmp_path / "discover.yaml"
    found = {"all": {"path": str(group), "template": table}}
    section = {"state": str(tmp_path / "state"), "discover": found}
    config.write_text(json.dumps({**section, "http": {"listen": "127.0.0.1:0"}}))
    done = run_to_end("run", "--config", config, "--once")
    assert done.returncode == 0, done.stderr
    assert len(delivered(tmp_path / "out")) == 1
