"""Tables of a bucket found by pattern: what is found, what it costs, what a failure leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailerd.config import Config
from tailerd.errors import ConfigError, StorageError
from tailerd.formats import table_search
from tailerd.formats.table_search import TableSearch
from tailerd.storage import folder_pattern
from tailerd.storage.s3.store import S3Store
from tailerd.storage.stores import Stores
from tailerd.telemetry import Telemetry, events
from tests.clouds.buckets import BucketServer
from tests.doubles.sim_clock import SimClock
from tests.integration.daemon.running import (
    daemon,
    delivered_ids,
    page,
    read_log,
    run_to_end,
)
from tests.s3.proxy import Fault, FaultProxy
from tests.s3.servers import S3Server
from tests.s3.upload import upload
from tests.tables.builder import TableBuilder
from tests.waiting import eventually

TEMPLATE = {"sink": {"kind": "file", "path": "/out/{name}"}}


def put(server: BucketServer, bucket: str, *keys: str) -> None:
    for key in keys:
        server.put(bucket, key, b"")


def lake(server: BucketServer, bucket: str, *folders: str) -> None:
    put(server, bucket, *(f"{folder}/_delta_log/{0:020}.json" for folder in folders))


def make_config(*patterns: str, every: str = "10m") -> Config:
    groups = {
        f"lake{n or ''}": {"path": pattern, "every": every, "template": TEMPLATE}
        for n, pattern in enumerate(patterns)
    }
    return Config(engine="arrow", discover=groups)


class Searched:
    """A search that notes what is told of it."""

    def __init__(self) -> None:
        self.clock = SimClock()
        self.reported: list[events.Event] = []
        self.search = TableSearch(Stores(), telemetry=Telemetry([self._notify]), clock=self.clock)

    def _notify(self, event: events.Event) -> None:
        if not isinstance(event, events.StorageRequested):
            self.reported.append(event)

    async def names(self, config: Config, *, is_requested: bool = False) -> list[str]:
        return sorted((await self.search.search(config, is_requested=is_requested)).found)


async def test_a_look_costs_a_listing_a_level_and_one_key_of_each_new_folder(
    s3_moto: S3Server, proxy: FaultProxy, bucket: str
) -> None:
    lake(s3_moto, bucket, *(f"lake/{area}/t{n}" for area in ("eu", "us") for n in range(5)))
    put(s3_moto, bucket, "lake/eu/t0/part-0.parquet", "lake/none/file")
    searched, config = Searched(), make_config(f"s3://{bucket}/lake/[eu]*/*")
    # Two tables of each name: the first is taken.
    assert len(await searched.names(config)) == 5
    # And one for the files beside the folders, which show tables of other formats.
    assert proxy.counts() == {"list": 1 + 2 + 10 + 2}
    proxy.forget()
    assert len(await searched.names(config)) == 5
    assert not proxy.requests
    lake(s3_moto, bucket, "lake/eu/new")
    await searched.clock.advance(600)
    assert len(await searched.names(config)) == 6
    # Those known are not asked for again where a listing shows them.
    assert proxy.counts() == {"list": 1 + 2 + 1 + 2}


@pytest.mark.full
@pytest.mark.slow
async def test_as_many_names_as_a_page_has_come_with_one_listing(
    s3_moto: S3Server, proxy: FaultProxy, bucket: str, store: S3Store
) -> None:
    count = s3_moto.page_names + 1
    put(s3_moto, bucket, *(f"t{n:04}/x" for n in range(count)))
    names = [name async for name in store.list_folders(bucket, "t")]
    assert names == [f"t{n:04}" for n in range(count)]
    assert proxy.counts() == {"list": 2}


async def test_a_pattern_without_bounds_is_an_error_that_says_so(
    s3_moto: S3Server, proxy: FaultProxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_pattern, "MAX_REQUESTS", 20)
    lake(s3_moto, bucket, *(f"t{n}" for n in range(30)))
    with pytest.raises(ConfigError, match="more than 20 requests"):
        await TableSearch(Stores()).search(make_config(f"s3://{bucket}/*"), is_strict=True)
    assert sum(proxy.counts().values()) <= 20


async def test_a_look_that_hangs_fails(
    s3_moto: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_search, "MAX_SEARCH_SECONDS", 0.2)
    with FaultProxy(s3_moto.port, delay_seconds=3) as slow:
        slow.fail_every(1, Fault.DELAY)
        search = TableSearch(s3_moto.stores(slow.endpoint))
        with pytest.raises(StorageError, match="took longer than"):
            await search.search(make_config(f"s3://{bucket}/*"), is_strict=True)


async def test_a_look_that_fails_leaves_what_is_there_and_comes_again_soon(
    s3_moto: S3Server, proxy: FaultProxy, bucket: str
) -> None:
    lake(s3_moto, bucket, "orders", "refunds")
    searched, config = Searched(), make_config(f"s3://{bucket}/*")
    assert await searched.names(config) == ["orders", "refunds"]
    proxy.fail_every(1, Fault.DENY)
    await searched.clock.advance(600)
    assert await searched.names(config) == ["orders", "refunds"]
    [failed] = searched.reported
    assert isinstance(failed, events.DiscoveryFailed)
    assert (failed.error_code, failed.attempt, failed.is_known) == ("access_denied", 1, True)
    assert searched.search.wait_seconds() == 30
    proxy.forget()
    s3_moto.admin().delete_object(Bucket=bucket, Key=f"refunds/_delta_log/{0:020}.json")
    await searched.clock.advance(30)
    assert await searched.names(config) == ["orders"]
    assert isinstance(searched.reported[-1], events.DiscoveryResumed)


async def test_a_name_is_free_once_a_look_that_succeeded_did_not_find_its_folder(
    s3_moto: S3Server, proxy: FaultProxy, bucket: str, tmp_path: Path
) -> None:
    lake(s3_moto, bucket, "orders")
    searched, config = Searched(), make_config(f"{tmp_path}/*", f"s3://{bucket}/*")
    assert await searched.names(config) == ["orders"]
    (tmp_path / "orders" / "_delta_log").mkdir(parents=True)
    s3_moto.admin().delete_object(Bucket=bucket, Key=f"orders/_delta_log/{0:020}.json")
    proxy.fail_every(1, Fault.DENY)
    failed = await searched.search.search(config, is_requested=True)
    assert failed.config.tables["orders"].path == f"s3://{bucket}/orders"
    assert [path for path, _ in failed.rejected] == [f"{tmp_path}/orders"]
    proxy.forget()
    complete = await searched.search.search(config, is_requested=True)
    assert complete.config.tables["orders"].path == f"{tmp_path}/orders"
    assert not complete.rejected


async def test_a_table_whose_log_is_gone_is_noticed_though_its_folder_is_there(
    s3_moto: S3Server, proxy: FaultProxy, bucket: str
) -> None:
    lake(s3_moto, bucket, "orders")
    put(s3_moto, bucket, "orders/part-0.parquet")
    searched, config = Searched(), make_config(f"s3://{bucket}/*")
    assert await searched.names(config) == ["orders"]
    s3_moto.admin().delete_object(Bucket=bucket, Key=f"orders/_delta_log/{0:020}.json")
    found = [await searched.names(config, is_requested=True) for _ in range(10)]
    assert found == [["orders"]] * 9 + [[]]


async def test_each_pattern_is_looked_at_in_its_own_time(
    s3_moto: S3Server, proxy: FaultProxy, bucket: str, tmp_path: Path
) -> None:
    config = make_config(f"s3://{bucket}/*", f"{tmp_path}/*")
    quick = config.discover["lake1"].model_copy(update={"every": 1.0})
    config = config.model_copy(update={"discover": {**config.discover, "lake1": quick}})
    searched = Searched()
    await searched.names(config)
    proxy.forget()
    (tmp_path / "here" / "_delta_log").mkdir(parents=True)
    await searched.clock.advance(1)
    assert await searched.names(config) == ["here"]
    assert not proxy.requests


async def test_a_failing_pattern_that_is_no_longer_configured_troubles_nobody(
    s3_moto: S3Server, proxy: FaultProxy, bucket: str, tmp_path: Path
) -> None:
    searched = Searched()
    assert await searched.names(make_config("s3://no-such-bucket-anywhere/*")) == []
    await searched.names(make_config(f"{tmp_path}/*"))
    [failed, ended] = searched.reported
    assert isinstance(failed, events.DiscoveryFailed)
    assert isinstance(ended, events.ProblemEnded)
    assert (failed.error_code, failed.is_known) == ("bucket_missing", False)


def written(folder: Path, server: S3Server, endpoint: str, pattern: str) -> Path:
    path = folder / "tailerd.yaml"
    content = {
        "engine": "arrow",
        "state": f"{folder}/state",
        "table_metrics": False,
        "storage": {**server.section(endpoint), "attempts": 2},
        "http": {"listen": "127.0.0.1:0"},
        "discover": {
            "lake": {
                "path": pattern,
                "every": "200ms",
                "template": {
                    "from": "snapshot",
                    "poll_interval": "200ms",
                    "sink": {"kind": "file", "path": f"{folder}/out/{{name}}"},
                },
            }
        },
    }
    path.write_text(json.dumps(content))
    return path


@pytest.mark.full
def test_the_daemon_waits_for_a_bucket_and_follows_what_comes_and_goes(
    s3_moto: S3Server, bucket: str, table: TableBuilder, tmp_path: Path
) -> None:
    folder = table.log.parent
    expected = sorted(row["id"] for row in table.rows())
    upload(s3_moto, folder, bucket, "lake/orders")
    with FaultProxy(s3_moto.port) as proxy:
        proxy.fail_every(1, Fault.DENY)
        config = written(tmp_path, s3_moto, proxy.endpoint, f"s3://{bucket}/lake/*")
        refused = run_to_end("run", "--config", config, "--once")
        assert refused.returncode == 1
        assert "error[access_denied]" in refused.stderr
        with daemon(config):
            eventually(lambda: "Table discovery failed" in read_log(config))
            status = json.loads(page(config, "/status"))
            [problem] = status["problems"]
            assert (problem["part"], problem["name"]) == ("discovery", "lake")
            assert status["ready"] is False
            assert 'error_code="access_denied",job="discovery"' in page(config, "/metrics")
            proxy.forget()
            eventually(lambda: sorted(delivered_ids(tmp_path / "out/orders")) == expected)
            eventually(lambda: json.loads(page(config, "/status"))["problems"] == [])
            # Of one commit, so that it is there whole or not at all.
            new = TableBuilder(tmp_path / "new")
            new.append([{"id": number} for number in range(3)])
            upload(s3_moto, new.folder, bucket, "lake/new")
            eventually(lambda: sorted(delivered_ids(tmp_path / "out/new")) == [0, 1, 2])
            s3 = s3_moto.admin()
            for entry in s3.list_objects_v2(Bucket=bucket, Prefix="lake/orders/")["Contents"]:
                s3.delete_object(Bucket=bucket, Key=entry["Key"])
            eventually(lambda: "Table removed" in read_log(config))
        checked = run_to_end("validate", config)
        assert "new (found by discover.lake): " in checked.stdout
