"""A bucket behind a proxy that fails when told to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tailerd.storage.s3.store import S3Store
from tests.s3.proxy import FaultProxy
from tests.s3.servers import S3Server
from tests.s3.upload import upload
from tests.tables.builder import TableBuilder


@pytest.fixture(params=["s3_moto", "s3_versitygw"])
def server(request: pytest.FixtureRequest) -> S3Server:
    found: S3Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def proxy(s3_moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy in front of moto; what has no settings reaches it, as the environment says."""
    with FaultProxy(s3_moto.port) as proxy:
        for name, value in s3_moto.environment(proxy.endpoint).items():
            monkeypatch.setenv(name, value)
        yield proxy


@pytest.fixture
def bucket(s3_moto: S3Server) -> str:
    return s3_moto.new_bucket()


@pytest.fixture
def store(s3_moto: S3Server, proxy: FaultProxy) -> S3Store:
    return S3Store(s3_moto.settings(proxy.endpoint))


@pytest.fixture
def location(s3_moto: S3Server, bucket: str, table: TableBuilder) -> str:
    """The URL of the table's copy in the bucket."""
    upload(s3_moto, table.log.parent, bucket, "lake/orders")
    return f"s3://{bucket}/lake/orders"
