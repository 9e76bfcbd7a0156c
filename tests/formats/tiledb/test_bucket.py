"""Arrays in a bucket: the library reaches it as `storage` says, and a look costs two listings."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tailerd.changefeed.offset import Version
from tailerd.formats.base import OpenRequest
from tailerd.formats.detect import find_format, open_table
from tailerd.storage.table_location import locate_table
from tests.formats.delivering import changes as counted
from tests.formats.tiledb import arrays
from tests.formats.tiledb.reading import EVERYTHING, changes, snapshot
from tests.integration.daemon.running import run_to_end
from tests.integration.s3.configured import write_tables_config
from tests.integration.s3.conftest import bucket, proxy  # noqa: F401 - fixtures
from tests.s3.proxy import FaultProxy
from tests.s3.servers import S3Server


class Mirror:
    """An array whose files are copied to a bucket after each commit, those of commits last."""

    def __init__(self, server: S3Server, name: str, path: Path) -> None:
        self.path = path
        self._server, self._bucket = server, name
        self.location = f"s3://{name}/lake/array"
        arrays.create_named(path)

    def copy(self) -> None:
        files = [each for each in self.path.rglob("*") if each.is_file()]
        for file in sorted(files, key=lambda each: (each.parent.name == "__commits", str(each))):
            key = f"lake/array/{file.relative_to(self.path).as_posix()}"
            self._server.admin().put_object(Bucket=self._bucket, Key=key, Body=file.read_bytes())


@pytest.fixture
def mirror(s3_moto: S3Server, bucket: str, tmp_path: Path) -> Mirror:  # noqa: F811
    found = Mirror(s3_moto, bucket, tmp_path / "array")
    arrays.write_named(found.path, 1000, [1, 2])
    found.copy()
    return found


async def test_changes_come_from_a_bucket(proxy: FaultProxy, mirror: Mirror) -> None:  # noqa: F811
    assert (await find_format(locate_table(mirror.location))).name == "tiledb"
    source = await open_table(locate_table(mirror.location), OpenRequest())
    assert await snapshot(source, 1000) == Counter([(1, "n1"), (2, "n2")])
    latest = await source.initial_offset("latest")
    proxy.forget()
    assert await source.latest_offset(latest, EVERYTHING) == latest
    assert sum(proxy.counts().values()) == 1, "a look that finds nothing is one listing"
    arrays.delete(mirror.path, 2000, "id == 1")
    arrays.write_named(mirror.path, 3000, [3])
    mirror.copy()
    end = await source.latest_offset(latest, EVERYTHING)
    assert end.version == Version(3001)
    assert await changes(source, latest, end) == [("delete", (1, "n1")), ("insert", (3, "n3"))]


@pytest.mark.full
def test_a_daemon_reads_an_array_in_a_bucket_by_its_configuration(
    s3_moto: S3Server, mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_tables_config(
        tmp_path,
        s3_moto,
        {"orders": mirror.location},
        options={"from": "snapshot", "format": "tiledb"},
        state=f"s3://{s3_moto.new_bucket()}/state",
    )
    done = run_to_end("run", "--config", config, "--once")
    assert done.returncode == 0, done.stderr
    files = sorted((tmp_path / "out/orders").rglob("*.jsonl"))
    found = [json.loads(line) for path in files for line in path.open()]
    assert counted(found) == Counter([("insert", 1, 1000), ("insert", 2, 1000)])
