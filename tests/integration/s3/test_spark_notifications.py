"""Tables in buckets on Spark: looked at when a queue tells of a commit, and not before."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from tests.integration.daemon.running import daemon, delivered_ids, read_log
from tests.integration.s3.configured import write_tables_config
from tests.integration.s3.living_table import LivingTable
from tests.s3.notified import NotifiedBucket
from tests.s3.proxy import FaultProxy
from tests.s3.servers import S3Server
from tests.waiting import eventually

COMMITS = 3
SECONDS_TO_DELIVER = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """A table and what reads its sink."""

    table: LivingTable
    delivered: Callable[[], list[int]]

    def catches_up(self, seconds: float = SECONDS_TO_DELIVER) -> None:
        eventually(lambda: sorted(self.delivered()) == self.table.ids, seconds)

    def seconds_to_deliver(self) -> float:
        self.table.append()
        began = time.monotonic()
        self.catches_up()
        return time.monotonic() - began


def parquet_ids(out: Path) -> list[int]:
    files = sorted(out.glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file)["id"].to_pylist()]


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.slow
def test_tables_on_spark_are_woken_by_the_queue_and_cost_no_request_before(
    s3_moto: S3Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notified = NotifiedBucket(s3_moto)
    out = tmp_path / "out"
    lines = LivingTable(tmp_path / "lines", notified, "lake/lines")
    parquet = LivingTable(tmp_path / "parquet", notified, "lake/parquet")
    follows = {
        "lines": Followed(table=lines, delivered=lambda: delivered_ids(out / "lines")),
        "parquet": Followed(table=parquet, delivered=lambda: parquet_ids(out / "parquet")),
    }
    with FaultProxy(s3_moto.port) as proxy:
        config = _config(tmp_path, follows, proxy.endpoint)
        with daemon(config) as process:
            for followed in follows.values():
                followed.catches_up(120)
            eventually(lambda: notified.left() == 0)
            eventually(proxy.is_quiet)
            proxy.forget()
            time.sleep(3)
            assert proxy.requests == []
            for name, followed in follows.items():
                waits = [followed.seconds_to_deliver() for _ in range(COMMITS)]
                with capsys.disabled():
                    print(f"\n{name}: delivered after {statistics.median(waits):.2f} s, woken")
            eventually(lambda: notified.left() == 0)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
    assert '"level":"error"' not in read_log(config).replace(" ", "")


def _config(folder: Path, follows: dict[str, Followed], endpoint: str) -> Path:
    """Write a configuration: one table has an interval of an hour, the other leaves it open."""
    [notified] = {followed.table.notified for followed in follows.values()}
    server = notified.server
    queue = {"queue": notified.queue, "endpoint": server.endpoint, "wait": "2s"}
    locations = {name: followed.table.location for name, followed in follows.items()}
    path = write_tables_config(
        folder, server, locations, endpoint=endpoint, engine="spark", notifications=queue
    )
    config = yaml.safe_load(path.read_text())
    del config["tables"]["lines"]["poll_interval"]
    config["tables"]["parquet"]["poll_interval"] = "1h"
    config["tables"]["parquet"]["sink"]["format"] = "parquet"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path
