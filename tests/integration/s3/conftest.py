"""A bucket behind a proxy that fails when told to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailerd.storage.s3.store import S3Store
from tests.s3.proxy import FaultProxy
from tests.s3.servers import S3Server
from tests.s3.upload import upload
from tests.tables.builder import CDF, TableBuilder


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
def table(tmp_path: Path) -> TableBuilder:
    """A checkpoint, commits after it, one with a change file, and a deletion vector."""
    table = TableBuilder(
        tmp_path / "table",
        properties=CDF,
        reader_features=["deletionVectors"],
        writer_features=["deletionVectors", "changeDataFeed"],
    )
    [first] = table.append([{"id": n, "name": f"n{n}"} for n in range(5)]).adds
    table.append([{"id": 10, "name": "ten"}])
    table.checkpoint()
    table.append([{"id": 11, "name": "eleven"}])
    table.commit(
        table.remove(first),
        table.cdc_file([{"id": n, "name": f"n{n}", "_change_type": "delete"} for n in range(5)]),
    )
    return table


@pytest.fixture
def location(s3_moto: S3Server, bucket: str, table: TableBuilder) -> str:
    """The URL of the table's copy in the bucket."""
    upload(s3_moto, table.log.parent, bucket, "lake/orders")
    return f"s3://{bucket}/lake/orders"
