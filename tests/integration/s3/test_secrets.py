"""Whatever fails: no secret is in a log, on a page, in an error, or in a process's words."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.daemon.running import daemon, read_log, run_to_end
from tests.integration.s3.configured import (
    STATIC_KEYS,
    all_that_is_shown,
    delivered,
    write_tables_config,
)
from tests.s3.proxy import Fault, FaultProxy
from tests.s3.servers import ACCESS_KEY, SECRET_KEY, S3Server
from tests.s3.upload import upload
from tests.tables.builder import TableBuilder
from tests.waiting import eventually

WRONG = {
    "access_key_id": "unsayable-key",
    "secret_access_key": "unsayable/secret+",
    "session_token": "unsayable-token==",
}
FAULTS = [Fault.RESET, Fault.INTERNAL, Fault.EXPIRED, Fault.TRUNCATE, Fault.SKEW]


def assert_says_nothing(*outputs: str) -> None:
    for output in outputs:
        assert "unsayable" not in output
        assert SECRET_KEY not in output


def said_by(*words: str | Path) -> str:
    done = run_to_end(*words)
    return done.stdout + done.stderr


@pytest.fixture
def failing(s3_versitygw: S3Server) -> Iterator[FaultProxy]:
    """A proxy that fails in all ways in turn."""
    faults = itertools.cycle([fault for each in FAULTS for fault in (each, None, None, None)])
    with FaultProxy(s3_versitygw.port) as proxy:
        proxy.choose = lambda seen: next(faults)
        yield proxy


@pytest.fixture
def config(
    s3_versitygw: S3Server, failing: FaultProxy, table: TableBuilder, tmp_path: Path
) -> Path:
    """A table of an account that works, one of wrong keys and one of a wrong secret."""
    buckets = {name: s3_versitygw.new_bucket() for name in ("orders", "keys", "secret")}
    for bucket in buckets.values():
        upload(s3_versitygw, table.log.parent, bucket, "orders")
    half = {"access_key_id": ACCESS_KEY, "secret_access_key": WRONG["secret_access_key"]}
    accounts = {buckets["orders"]: STATIC_KEYS, buckets["secret"]: half}
    return write_tables_config(
        tmp_path,
        s3_versitygw,
        {name: f"s3://{bucket}/orders" for name, bucket in buckets.items()},
        endpoint=failing.endpoint,
        keys={**WRONG, "attempts": 2, "buckets": accounts},
        options={"maintenance": {"checkpoint": {"every_commits": 1, "min_interval": "0s"}}},
        http={"listen": "127.0.0.1:0", "token": "unsayable-token-of-the-page"},
        notifications={"queue": "http://127.0.0.1:1/1/q", "endpoint": "http://127.0.0.1:1"},
    )


@pytest.mark.full
def test_a_daemon_whose_requests_fail_in_all_ways_shows_no_secret(
    config: Path, tmp_path: Path, table: TableBuilder
) -> None:
    with daemon(config) as process:
        eventually(lambda: len(delivered(tmp_path, "orders")) >= len(table.rows()))
        eventually(lambda: read_log(config).count("access_denied") >= 2)
        eventually(lambda: "Notifications unavailable" in read_log(config))
        assert_says_nothing(all_that_is_shown(config, process))
    assert_says_nothing(
        read_log(config),
        said_by("validate", config, "--json"),
        said_by("--debug", "validate", config),
        said_by("offsets", "--config", config),
        said_by("--debug", "run", "--config", config, "--once"),
        said_by("--debug", "verify", "keys", "--config", config),
    )


@pytest.mark.full
def test_commands_with_keys_of_the_environment_show_no_secret(
    s3_versitygw: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = f"s3://{s3_versitygw.new_bucket()}/orders"
    for name, value in {**s3_versitygw.environment(), **environment(**WRONG)}.items():
        monkeypatch.setenv(name, value)
    for words in (["tail", location], ["history", location], ["maintain", location]):
        reported = said_by("--debug", *words)
        assert "does not accept the credentials" in reported
        assert_says_nothing(reported)


def environment(**keys: str) -> dict[str, str]:
    return {f"AWS_{name.upper()}": value for name, value in keys.items()}
