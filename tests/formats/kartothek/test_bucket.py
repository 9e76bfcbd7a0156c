"""Datasets in a bucket: what following one asks for, and a daemon without a disk that lasts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tailerd.formats.detect import find_format
from tailerd.storage.table_location import locate_table
from tests.formats.delivering import changes, delivered
from tests.formats.kartothek.observing import Follower, deleted, inserted
from tests.formats.kartothek.test_daemon import rows
from tests.integration.daemon.running import daemon, run_to_end
from tests.integration.s3.configured import write_tables_config
from tests.integration.s3.conftest import bucket, proxy  # noqa: F401 - fixtures
from tests.s3.proxy import FaultProxy
from tests.s3.servers import S3Server
from tests.tables.dataset_writer import DatasetWriter
from tests.waiting import eventually


class Mirror:
    """A dataset whose files are copied to a bucket after each commit, the metadata last."""

    def __init__(self, server: S3Server, name: str, folder: Path) -> None:
        self.writer = DatasetWriter(folder, partition_on=["name"])
        self._server, self._bucket = server, name
        self._known: set[Path] = set()
        self.location = f"s3://{name}/lake/ds"

    def commit(self, *ids: int, without: str | None = None) -> None:
        fate = None if without is None else (lambda label: without in label)
        self.writer.commit(rows(*ids), without=fate)
        self.copy()

    def copy(self) -> None:
        there = {path for path in self.writer.store.rglob("*") if path.is_file()}
        mutable = {path for path in there if path.suffix != ".parquet"}
        for path in sorted((there - self._known) | mutable, key=_order):
            key = f"lake/{path.relative_to(self.writer.store).as_posix()}"
            self._server.admin().put_object(Bucket=self._bucket, Key=key, Body=path.read_bytes())
        self._known = there


def _order(path: Path) -> tuple[bool, bool, str]:
    return (".by-dataset-metadata." in path.name, path.name == "_common_metadata", str(path))


@pytest.fixture
def mirror(s3_moto: S3Server, bucket: str, tmp_path: Path) -> Mirror:  # noqa: F811
    return Mirror(s3_moto, bucket, tmp_path / "store")


async def test_changes_come_from_a_bucket(proxy: FaultProxy, mirror: Mirror) -> None:  # noqa: F811
    mirror.commit(1, 2)
    assert (await find_format(locate_table(mirror.location))).name == "kartothek"
    follower = await Follower.open(mirror.location)
    assert sum(inserted(await follower.rest()).values()) == 2
    mirror.commit(3, without="n1")
    found = await follower.rest()
    assert deleted(found) == Counter([("1", "'n1'")])
    assert inserted(found) == Counter([("3", "'n3'")])


async def test_a_look_that_finds_nothing_is_one_request(
    proxy: FaultProxy,  # noqa: F811
    mirror: Mirror,
) -> None:
    mirror.commit(1)
    follower = await Follower.open(mirror.location, "latest")
    proxy.forget()
    assert await follower.step() == []
    assert sum(proxy.counts().values()) == 1


async def test_a_commit_costs_its_own_files_alone(
    proxy: FaultProxy,  # noqa: F811
    mirror: Mirror,
) -> None:
    mirror.commit(*range(30))
    follower = await Follower.open(mirror.location, "latest")
    mirror.commit(100)
    proxy.forget()
    assert sum(inserted(await follower.step()).values()) == 1
    # The metadata's head and content, the schema, the new file's size, its footer and rows.
    assert sum(proxy.counts().values()) <= 7, proxy.counts()


@pytest.mark.full
def test_a_daemon_keeps_its_ledger_in_a_bucket(
    s3_moto: S3Server, mirror: Mirror, tmp_path: Path
) -> None:
    mirror.commit(1, 2)
    state = f"s3://{s3_moto.new_bucket()}/state"
    config = write_tables_config(
        tmp_path,
        s3_moto,
        {"orders": mirror.location},
        options={"from": "snapshot", "format": "kartothek"},
        state=state,
    )

    def found() -> Counter[tuple[object, ...]]:
        return changes(delivered(tmp_path / "out/orders"))

    done = run_to_end("run", "--config", config, "--once")
    assert done.returncode == 0, done.stderr
    mirror.commit(3, without="n1")
    with daemon(config):
        eventually(lambda: found().total() == 4)
        mirror.commit(4)
        eventually(lambda: found().total() == 5)
    assert found() == Counter(
        [
            ("insert", 1, 0),
            ("insert", 2, 0),
            ("delete", 1, 1),
            ("insert", 3, 1),
            ("insert", 4, 2),
        ]
    )
