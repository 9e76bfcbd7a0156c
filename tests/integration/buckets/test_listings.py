"""Listings that cannot be trusted lose no commit and repeat none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clouds.servers import FakeGcs
from tests.integration.buckets.bucket_table import BucketTable, write_config
from tests.integration.daemon.running import daemon, delivered_ids, run_to_end
from tests.waiting import eventually


@pytest.fixture(scope="module")
def careless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeGcs]:
    """A server whose listings begin at the first name, whatever is asked."""
    server = FakeGcs(tmp_path_factory.mktemp("careless"), ignores_start=True)
    server.start()
    yield server
    server.stop()


async def test_names_before_the_start_of_a_listing_are_dropped(careless: FakeGcs) -> None:
    store, bucket = careless.store(), careless.new_bucket()
    for name in ("a", "b", "c", "b/inside"):
        await store.put(f"{bucket}/f/{name}", b"")
    assert [meta.name async for meta in store.list_from(f"{bucket}/f", "a")] == ["b", "c"]


@pytest.mark.full
def test_a_table_is_followed_where_the_start_of_a_listing_is_ignored(
    careless: FakeGcs, tmp_path: Path
) -> None:
    table = BucketTable(tmp_path / "table", careless)
    for _ in range(12):
        table.append()
    config = write_config(tmp_path, table, maintenance={"checkpoint": {"every_commits": 5}})
    for _ in range(2):
        with daemon(config):
            table.append()
            eventually(lambda: sorted(delivered_ids(tmp_path / "out")) == table.ids)
    done = run_to_end("verify", "orders", "--config", config, "--json")
    assert '"is_equal": true' in done.stdout, done.stdout
