"""TLS and passwords, with a server that demands both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailerd.errors import SinkError
from tests.kafka.certificates import Certificates, make_certificates
from tests.kafka.ports import free_port
from tests.postgres.deliveries import INSERT, at, changes, commit, make_sink
from tests.postgres.server import Database, PostgresServer

SECRET = "s3cr3t-of-the-test"


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def guarded(port: int, certificates: Certificates, postgres_server: object) -> Iterator[Database]:
    """A database that only a user with a password may use, over TLS."""
    server = PostgresServer(port=str(port))
    server.require_password(certificates.server)
    server.start()
    database = server.new_database()
    database.run(f"CREATE ROLE guarded LOGIN SUPERUSER PASSWORD '{SECRET}'")
    yield database
    server.remove()


def url(database: Database, port: int, **parameters: object) -> str:
    query = "&".join(f"{name}={value}" for name, value in parameters.items())
    return f"postgresql://guarded@127.0.0.1:{port}/{database.name}?{query}"


@pytest.mark.parametrize("way", ["password", "environment"])
async def test_rows_go_over_tls_that_is_verified_with_a_password(
    guarded: Database,
    port: int,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    dsn = url(guarded, port, sslmode="verify-full", sslrootcert=certificates.authority)
    fields: dict[str, object] = {"table": f"by_{way}", "dsn": dsn}
    if way == "password":
        fields["password"] = SECRET
    else:
        monkeypatch.setenv("PGPASSWORD", SECRET)
    sink = make_sink(guarded, **fields)
    await sink.healthcheck()
    await sink.resume(at(0))
    await sink.write(commit(0, changes(0, (INSERT, (1, "a")))))
    # The server may not have ended the connection of the test before.
    statement = (
        "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename ="
    )
    assert guarded.run(f"{statement} 'guarded'") == [(True,)]
    await sink.aclose()


async def test_a_wrong_password_or_authority_is_named_without_the_password(
    guarded: Database, port: int, tmp_path: Path
) -> None:
    other = make_certificates(tmp_path).authority
    for parameters, words in (
        ({"sslmode": "require"}, "password authentication failed"),
        ({"sslmode": "verify-full", "sslrootcert": other}, "certificate verify failed"),
    ):
        dsn = url(guarded, port, **parameters)
        sink = make_sink(guarded, dsn=dsn, password="wrong-s3cr3t")
        with pytest.raises(SinkError, match=words) as caught:
            await sink.healthcheck()
        assert "s3cr3t" not in str(caught.value) + repr(caught.value.__cause__)
        await sink.aclose()
