"""Buckets over HTTPS, as all real ones are: by the client and past it, with whom both trust."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tailerd.errors import StorageError
from tailerd.storage.remote_input import PART_BYTES, TAIL_BYTES, RemoteInput
from tailerd.storage.s3.connection_pool import Answer, HttpConnectionPool
from tailerd.storage.s3.settings import S3Settings
from tailerd.storage.s3.store import S3Store
from tests.integration.s3.test_commands import tailerd
from tests.kafka.certificates import Certificates, make_certificates
from tests.s3.servers import S3Server
from tests.s3.upload import upload
from tests.tables.builder import TableBuilder


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def tls_server(
    s3_versitygw: S3Server, tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[S3Server]:
    """A second versitygw; without its program the first one's fixture says so."""
    server = S3Server.versitygw(tmp_path_factory.mktemp("versitygw-tls"), certificates)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def trusted_server(
    tls_server: S3Server, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> S3Server:
    """The server, whose authority the environment names."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificates.authority))
    return tls_server


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each answer that came past the client."""
    lengths: list[int] = []
    get = HttpConnectionPool.get

    async def noted(
        self: HttpConnectionPool, head: bytes, into: memoryview | None = None
    ) -> Answer:
        answer = await get(self, head, into)
        lengths.append(len(answer.body))
        return answer

    monkeypatch.setattr(HttpConnectionPool, "get", noted)
    return lengths


async def test_whom_the_environment_trusts_is_trusted_past_the_client_too(
    trusted_server: S3Server, quick: list[int]
) -> None:
    bucket = trusted_server.new_bucket()
    # An account of its own: connections of another have their trust already.
    store = S3Store(S3Settings(default=replace(trusted_server.account(), attempts=6)))
    await store.put(f"{bucket}/a", b"abc")
    assert [await store.get(f"{bucket}/a") for _ in range(3)] == [b"abc"] * 3
    assert quick == [3, 3]


async def test_a_large_file_comes_in_parts_over_encrypted_connections(
    trusted_server: S3Server, quick: list[int]
) -> None:
    bucket = trusted_server.new_bucket()
    store = S3Store(S3Settings(default=replace(trusted_server.account(), attempts=7)))
    content = os.urandom(2 * PART_BYTES + TAIL_BYTES + 5)
    await store.put(f"{bucket}/large", content)
    await store.get(f"{bucket}/large", 0, 1)
    with RemoteInput(store.fetch_here, f"{bucket}/large") as file:
        assert file.read() == content
    assert sum(quick) == len(content)
    assert max(quick) > PART_BYTES


async def test_an_authority_that_nobody_trusts_is_refused_and_named(tls_server: S3Server) -> None:
    store = S3Store(S3Settings(default=replace(tls_server.account(), attempts=1)))
    with pytest.raises(StorageError, match="certificate verify failed"):
        await store.get(f"{tls_server.new_bucket()}/a")


def test_a_command_reads_a_table_over_https(trusted_server: S3Server, table: TableBuilder) -> None:
    bucket = trusted_server.new_bucket()
    upload(trusted_server, table.log.parent, bucket, "orders")
    location = f"s3://{bucket}/orders"
    reported = tailerd(
        trusted_server, "tail", location, "--from", "2", "--once", "--format", "jsonl"
    )
    assert reported.stderr == ""
    assert len(reported.stdout.splitlines()) == 6


@pytest.mark.full
def test_a_command_says_how_to_trust_a_server(tls_server: S3Server) -> None:
    reported = tailerd(tls_server, "inspect", f"s3://{tls_server.new_bucket()}/orders")
    assert reported.returncode == 1
    assert "certificate verify failed" in reported.stderr
    assert "AWS_CA_BUNDLE" in reported.stderr
