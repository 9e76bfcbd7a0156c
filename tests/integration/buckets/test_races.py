"""Maintenance of all kinds in a bucket, beside deltalake, which writes and checkpoints there.

Five seconds each in every run; `--race-seconds 60` for longer. Times of objects are the server's:
what has expired is made so by a clock two months ahead, and by the versions that are still needed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from tailerd.clock import SystemClock
from tailerd.formats.delta.log.log_reader import LogReader
from tailerd.storage.io_thread import io_thread
from tests.clouds.buckets import SERVERS, BucketServer
from tests.maintenance.racing import KEPT_VERSIONS, TWO_MONTHS, Maintenance, race

pytestmark = pytest.mark.slow

DEFAULT_SECONDS = 5
PREFIX = "lake/orders"
HOOKS = deltalake.PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""Two that clean up are one too many: deltalake's own ends in an error where ours was faster."""


class LaterClock(SystemClock):
    """Two months ahead."""

    def now_ms(self) -> int:
        return super().now_ms() + int(TWO_MONTHS * 1000)


class BucketLog:
    """The log of a table in a bucket."""

    def __init__(self, server: BucketServer) -> None:
        self.clock = LaterClock()
        self.bucket = server.new_bucket()
        self._server = server

    def reader(self) -> LogReader:
        return LogReader(self._server.store(), f"{self.bucket}/{PREFIX}")

    def keep_commits(self, aside: Path) -> None:
        store, log = self._server.store(), f"{self.bucket}/{PREFIX}/_delta_log"
        for name in self._server.names(log):
            copy = aside / name
            if copy.suffix == ".json" and copy.stem.isdigit() and not copy.exists():
                copy.write_bytes(io_thread().call(store.get(f"{log}/{name}")))

    def date_back(self, before: int) -> None:
        """Do nothing: the clock sees to it."""


class Writer:
    """Appends a row, deletes the oldest, writes a checkpoint: one thing at each call.

    Attributes:
        versions: The rows of each version.
    """

    def __init__(self, server: BucketServer, bucket: str) -> None:
        self._location = f"{server.scheme}://{bucket}/{PREFIX}"
        self._options = {**server.environment(), "allow_http": "true"}
        if server.scheme == "s3":
            self._options["conditional_put"] = "etag"
        self._ids: set[int] = set()
        self.versions: dict[int, list[int]] = {}
        self._append(0)

    def write(self, number: int) -> None:
        if number % 5 == 0:
            gone = min(self._ids)
            self._table().delete(f"id = {gone}", post_commithook_properties=HOOKS)
            self._ids.discard(gone)
        else:
            self._append(number)
        fresh = self._table()
        self.versions[fresh.version()] = sorted(self._ids)
        if number % 9 == 0:
            fresh.create_checkpoint()
        if number % 4 == 0:
            assert self.rows() == sorted(self._ids)

    def rows(self, version: int | None = None) -> list[int]:
        query = deltalake.QueryBuilder().register("t", self._table(version))
        found: list[int] = pa.table(query.execute("SELECT id FROM t")).column("id").to_pylist()
        return sorted(found)

    def _append(self, number: int) -> None:
        deltalake.write_deltalake(
            self._location,
            pa.table({"id": pa.array([number], pa.int64())}),
            mode="append",
            post_commithook_properties=HOOKS,
            storage_options=self._options,
        )
        self._ids.add(number)

    def _table(self, version: int | None = None) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(self._location, version=version, storage_options=self._options)


@pytest.fixture(params=[name for name in SERVERS if name != "azurite"])
def server(request: pytest.FixtureRequest) -> BucketServer:
    # On Azurite deltalake 1.6 at times takes its own new version for an invalid one.
    found: BucketServer = request.getfixturevalue(request.param)
    return found


@pytest.mark.full
def test_deltalake_writes_deletes_and_checkpoints_in_a_bucket_beside_all_jobs(
    server: BucketServer, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    log = BucketLog(server)
    writer = Writer(server, log.bucket)
    maintenance = Maintenance(log, tmp_path / "aside")
    requested = pytestconfig.getoption("--race-seconds")
    race(maintenance, float(DEFAULT_SECONDS if requested is None else requested), writer.write)
    assert maintenance.head == max(writer.versions)
    for version in range(maintenance.head - KEPT_VERSIONS, maintenance.head + 1):
        assert writer.rows(version) == writer.versions[version]
    asyncio.run(maintenance.assert_whole())
