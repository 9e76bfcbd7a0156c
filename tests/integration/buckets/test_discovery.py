"""Tables found by pattern in buckets of every server."""

from __future__ import annotations

import pytest

from tailerd.formats.table_search import discover_tables
from tests.clouds.buckets import BucketServer
from tests.integration.s3.test_discovery import Searched, lake, make_config, put
from tests.s3.proxy import Fault, FaultProxy


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*", ["orders", "refunds"]),
        ("r*", ["refunds"]),
        ("[!r]*", ["orders"]),
        ("order?", ["orders"]),
        ("*/orders", ["eu-orders", "us-orders"]),
        ("*/*", ["a-b", "orders"]),
        ("eu/orders", ["orders"]),
        (".*", ["hidden"]),
        ("*/", ["orders", "refunds"]),
        ("nothing/*", []),
    ],
)
def test_folders_with_a_log_are_found_as_deep_as_the_pattern_goes(
    server: BucketServer, pattern: str, names: list[str]
) -> None:
    bucket = server.new_bucket()
    lake(server, bucket, "orders", "refunds", "eu/orders", "us/orders", "x/a b", ".hidden")
    put(server, bucket, "plain/file", "loose", "eu/other/deep/_delta_log/x")
    config = make_config(f"{server.scheme}://{bucket}/{pattern}")
    assert sorted(discover_tables(config, server.stores()).found) == names


@pytest.mark.parametrize("fault", [Fault.RESET, Fault.SLOW_DOWN, Fault.TRUNCATE])
async def test_every_request_of_a_look_may_fail_once(
    server: BucketServer, proxy: FaultProxy, bucket: str, fault: Fault
) -> None:
    lake(server, bucket, "eu/orders", "us/orders")
    config = make_config(f"{server.scheme}://{bucket}/*/orders")
    for nth in range(1, 4):
        proxy.forget()
        proxy.fail_nth(nth, fault)
        assert await Searched().names(config) == ["eu-orders", "us-orders"]
