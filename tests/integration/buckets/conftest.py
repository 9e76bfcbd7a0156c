"""A bucket of each server, behind a proxy that fails when told to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tailerd.storage.base import ObjectStore
from tests.clouds.buckets import SERVERS, BucketServer
from tests.s3.proxy import FaultProxy
from tests.s3.upload import upload
from tests.tables.builder import TableBuilder


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> BucketServer:
    found: BucketServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def proxy(server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy in front of the server; programs without settings reach it, by the environment."""
    with FaultProxy(server.port) as proxy:
        for name, value in server.environment(server.url_at(proxy.port)).items():
            monkeypatch.setenv(name, value)
        yield proxy


@pytest.fixture
def bucket(server: BucketServer) -> str:
    return server.new_bucket()


@pytest.fixture
def store(server: BucketServer, proxy: FaultProxy) -> ObjectStore:
    return server.store(server.url_at(proxy.port))


@pytest.fixture
def location(server: BucketServer, bucket: str, table: TableBuilder) -> str:
    """The URL of the table's copy in the bucket."""
    upload(server, table.log.parent, bucket, "lake/orders")
    return f"{server.scheme}://{bucket}/lake/orders"
