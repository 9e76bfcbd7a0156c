"""GETs past the vendor's client: the same answers, and the client where it must be asked.

Requests of the client are told by its header `amz-sdk-invocation-id`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tailerd.errors import AccessDeniedError, BucketMissingError, FileMissingError
from tailerd.storage.io_thread import io_thread
from tailerd.storage.s3.settings import S3Settings
from tailerd.storage.s3.store import S3Store
from tests.s3.proxy import Fault, FaultProxy, Seen
from tests.s3.servers import S3Server

KEYS = ["plain", "t/ä ö/50%/a+b=c&d~.parquet", "x/z'()*!@,;:$", "a//b", "%41", "?#[]{}|^`"]


@contextmanager
def before(server: S3Server) -> Iterator[tuple[FaultProxy, S3Store, str]]:
    """A proxy, a store of its own account behind it, and a bucket."""
    with FaultProxy(server.port) as proxy:
        yield proxy, S3Store(server.settings(proxy.endpoint)), server.new_bucket()


def is_clients(seen: Seen) -> bool:
    return "amz-sdk-invocation-id" in seen.headers


async def test_keys_of_all_kinds_are_the_same_by_both_ways(server: S3Server) -> None:
    with before(server) as (proxy, store, bucket):
        keys = KEYS if server.name == "versitygw" else [key for key in KEYS if key != "a//b"]
        for number, key in enumerate(keys):
            await store.put(f"{bucket}/{key}", key.encode() + bytes(number))
        await store.get(f"{bucket}/{keys[0]}")
        for number, key in enumerate(keys):
            path = f"{bucket}/{key}"
            proxy.forget()
            meta, body = await store.fetch(path)
            assert body == key.encode() + bytes(number)
            assert await store.get(path, 1, 3) == body[1:4]
            assert [is_clients(seen) for seen in proxy.requests] == [False, False]
            # Another store has its own connection, whose first request is the client's.
            other = S3Store(S3Settings(default=replace(server.account(), attempts=5 + number)))
            assert await other.fetch(path) == (meta, body)


async def test_what_is_missing_is_said_alike(server: S3Server) -> None:
    with before(server) as (proxy, store, bucket):
        await store.put(f"{bucket}/a", b"abc")
        await store.get(f"{bucket}/a")
        proxy.forget()
        with pytest.raises(FileMissingError, match="nothing does not exist"):
            await store.get(f"{bucket}/nothing")
        assert await store.get(f"{bucket}/a", 3, 5) == b""
        assert [is_clients(seen) for seen in proxy.requests] == [False, False, True]
        server.admin().delete_object(Bucket=bucket, Key="a")
        server.admin().delete_bucket(Bucket=bucket)
        with pytest.raises(BucketMissingError, match=bucket):
            await store.get(f"{bucket}/a")


async def test_a_redirect_and_a_refusal_of_the_region_are_the_clients_business(
    s3_moto: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = {Fault.SKEW: (301, "PermanentRedirect"), Fault.DENY: (403, "AccessDenied")}
    codes[Fault.EXPIRED] = (400, "AuthorizationHeaderMalformed")
    monkeypatch.setattr("tests.s3.proxy._ERRORS", codes)
    with before(s3_moto) as (proxy, store, bucket):
        await store.put(f"{bucket}/a", b"abc")
        for fault in (Fault.SKEW, Fault.EXPIRED):
            await store.get(f"{bucket}/a")
            proxy.forget()
            proxy.fail_nth(1, fault)
            assert await store.get(f"{bucket}/a") == b"abc"
            assert await store.get(f"{bucket}/a") == b"abc"
            assert [is_clients(seen) for seen in proxy.requests] == [False, True, False]
        proxy.forget()
        proxy.fail_nth(1, Fault.DENY)
        with pytest.raises(AccessDeniedError):
            await store.get(f"{bucket}/a")
        assert len(proxy.requests) == 1


async def test_credentials_that_expire_are_looked_for_again(s3_moto: S3Server) -> None:
    with before(s3_moto) as (proxy, store, bucket):
        await store.put(f"{bucket}/a", b"abc")
        await store.get(f"{bucket}/a")
        proxy.forget()
        proxy.fail_nth(1, Fault.EXPIRED)
        assert await store.get(f"{bucket}/a") == b"abc"
        assert await store.get(f"{bucket}/a") == b"abc"
        # A new client asks, and its way is learned anew.
        assert [is_clients(seen) for seen in proxy.requests] == [False, True, False]


async def test_proxies_of_the_environment_are_left_to_the_client(
    s3_moto: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultProxy(s3_moto.port) as forward:
        bucket = s3_moto.new_bucket()
        s3_moto.admin().put_object(Bucket=bucket, Key="a", Body=b"abc")
        monkeypatch.setenv("http_proxy", forward.endpoint)
        monkeypatch.setenv("no_proxy", "elsewhere")
        # Its own account: the others of this process have their connections already.
        store = S3Store(S3Settings(default=replace(s3_moto.account(), attempts=4)))
        for _ in range(3):
            assert await store.get(f"{bucket}/a") == b"abc"
        assert [is_clients(seen) for seen in forward.requests] == [True] * 3


async def test_requests_without_credentials_are_quick_and_unsigned(s3_moto: S3Server) -> None:
    with FaultProxy(s3_moto.port) as proxy:
        account = replace(s3_moto.account(proxy.endpoint), is_anonymous=True, access_key_id="")
        bucket = s3_moto.new_bucket()
        s3_moto.admin().put_object(Bucket=bucket, Key="a", Body=b"abc")
        s3_moto.admin().put_bucket_acl(Bucket=bucket, ACL="public-read")
        s3_moto.admin().put_object_acl(Bucket=bucket, Key="a", ACL="public-read")
        store = S3Store(S3Settings(default=account))
        for _ in range(2):
            assert await store.get(f"{bucket}/a") == b"abc"
        assert [is_clients(seen) for seen in proxy.requests] == [True, False]
        assert not any("authorization" in seen.headers for seen in proxy.requests)


async def test_a_range_goes_where_it_is_wanted(s3_versitygw: S3Server) -> None:
    store, bucket = S3Store(s3_versitygw.settings()), s3_versitygw.new_bucket()
    await store.put(f"{bucket}/a", b"0123456789")
    await store.get(f"{bucket}/a")
    buffer = memoryview(bytearray(4))
    found = await io_thread().run(store.fetch_here(f"{bucket}/a", 2, 4, into=buffer))
    assert found.body is buffer
    assert bytes(buffer) == b"2345"
    assert found.meta.size_bytes == 10


async def test_a_late_answer_is_overtaken_by_a_second_request(server: S3Server) -> None:
    with FaultProxy(server.port, delay_seconds=10) as proxy:
        account = replace(server.account(proxy.endpoint), hedge_seconds=0.2)
        store, bucket = S3Store(S3Settings(default=account)), server.new_bucket()
        await store.put(f"{bucket}/a", b"abc")
        await store.get(f"{bucket}/a")
        proxy.forget()
        proxy.fail_nth(1, Fault.DELAY, kind="get")
        began = time.monotonic()
        assert await store.get(f"{bucket}/a") == b"abc"
        assert time.monotonic() - began < 5
        assert proxy.counts()["get"] == 2
