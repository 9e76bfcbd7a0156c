"""What the store makes of each fault, and who wins where an answer was lost."""

from __future__ import annotations

import asyncio
import itertools
import pickle
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import botocore.auth
import pytest

from tailerd.errors import (
    AccessDeniedError,
    ClockSkewError,
    ConditionalPutUnsupportedError,
    CredentialsExpiredError,
    FileExistsAlreadyError,
    FileMissingError,
    StorageError,
)
from tailerd.storage.output import open_output
from tailerd.storage.rights import missing_rights
from tailerd.storage.s3.multipart import PART_BYTES
from tailerd.storage.s3.settings import S3Settings
from tailerd.storage.s3.store import S3Store
from tests.s3.proxy import Fault, FaultProxy, Seen
from tests.s3.servers import S3Server


async def test_a_server_that_ignores_conditions_is_noticed_before_anybody_believes_it(
    s3_moto: S3Server, proxy: FaultProxy, bucket: str
) -> None:
    # An account of its own: what was found out of a server is remembered.
    account = replace(s3_moto.account(proxy.endpoint), max_connections=7)
    store = S3Store(S3Settings(default=account))
    await store.put(f"{bucket}/a", b"first")
    proxy.choose = lambda seen: Fault.NO_CONDITIONS if seen.kind == "put" else None
    with pytest.raises(ConditionalPutUnsupportedError, match="does not honour conditional"):
        await store.put(f"{bucket}/a", b"second", if_absent=True)
    assert await store.get(f"{bucket}/a") == b"first"
    assert [meta.name async for meta in store.list_from(bucket)] == ["a"]


async def test_without_the_right_to_delete_one_probe_stays_and_its_answer_counts(
    s3_moto: S3Server, proxy: FaultProxy, bucket: str, store: S3Store
) -> None:
    proxy.choose = lambda seen: Fault.DENY if seen.kind == "delete" else None
    # Accounts of their own are what processes are: nothing is remembered of another's.
    for connections in (11, 12, 13):
        account = replace(s3_moto.account(proxy.endpoint), max_connections=connections)
        theirs = S3Store(S3Settings(default=account))
        for number in range(2):
            await theirs.put(f"{bucket}/log/{connections}-{number}", b"", if_absent=True)
            missing = await missing_rights(theirs, bucket, f"{bucket}/log", is_written=True)
            assert list(missing) == ["delete"]
    names = [meta.name async for meta in store.list_from(f"{bucket}/log")]
    assert len([name for name in names if "probe" in name]) == 1
    assert len(names) == 1 + 6
    assert len([meta async for meta in store.list_from(f"{bucket}/_tailerd")]) == 1


async def test_somebody_who_deletes_the_probe_meanwhile_does_not_change_its_answer(
    s3_moto: S3Server, proxy: FaultProxy, bucket: str
) -> None:
    account = replace(s3_moto.account(proxy.endpoint), max_connections=14)
    store = S3Store(S3Settings(default=account))

    def delete_before_the_second(seen: Seen) -> Fault | None:
        puts = [each for each in proxy.requests if each.kind == "put"]
        if seen.kind == "put" and len(puts) == 1:
            key = puts[0].path.removeprefix(f"/{bucket}/")
            s3_moto.admin().delete_object(Bucket=bucket, Key=key)
        return None

    proxy.choose = delete_before_the_second
    await store.put(f"{bucket}/a", b"", if_absent=True)
    assert [meta.name async for meta in store.list_from(bucket)] == ["a"]


async def test_wrong_keys_are_refused_by_name_and_never_shown(s3_versitygw: S3Server) -> None:
    bucket = s3_versitygw.new_bucket()
    right = s3_versitygw.account()
    for account in (
        replace(right, secret_access_key="wrong-secret"),
        replace(right, access_key_id="nobody"),
    ):
        assert "wrong-secret" not in repr(account)
        with pytest.raises(AccessDeniedError, match="does not accept the credentials") as caught:
            await S3Store(S3Settings(default=account)).get(f"{bucket}/a")
        assert "wrong-secret" not in str(caught.value)


async def test_a_server_that_checks_times_is_believed_about_the_clock(
    s3_versitygw: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = s3_versitygw.new_bucket()

    def later(remove_tzinfo: bool = True) -> datetime:
        time = datetime.now(UTC) + timedelta(hours=3)
        return time.replace(tzinfo=None) if remove_tzinfo else time

    monkeypatch.setattr(botocore.auth, "get_current_datetime", later)
    store = S3Store(s3_versitygw.settings())
    for requested in (store.get(f"{bucket}/a"), store.put(f"{bucket}/a", b"a")):
        with pytest.raises(ClockSkewError, match="clock and the server's differ"):
            await requested


async def test_without_credentials_the_message_says_where_they_go(
    s3_moto: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", f"{tmp_path}/none")
    monkeypatch.setenv("AWS_CONFIG_FILE", f"{tmp_path}/none")
    account = replace(s3_moto.account(), access_key_id="", secret_access_key="")
    with pytest.raises(AccessDeniedError, match="no credentials"):
        await S3Store(S3Settings(default=account)).get("b/a")


async def test_buckets_have_accounts_of_their_own(
    s3_moto: S3Server, s3_versitygw: S3Server
) -> None:
    here, there = s3_moto.new_bucket(), s3_versitygw.new_bucket()
    store = S3Store(
        S3Settings(default=s3_moto.account(), buckets=((there, s3_versitygw.account()),))
    )
    await store.put(f"{here}/a", b"here")
    await store.put(f"{there}/a", b"there")
    assert await store.get_many([f"{here}/a", f"{there}/a"]) == [b"here", b"there"]
    assert s3_versitygw.admin().get_object(Bucket=there, Key="a")["Body"].read() == b"there"


async def test_an_upload_in_parts_that_fails_leaves_no_part_behind(
    store: S3Store, proxy: FaultProxy, bucket: str, s3_moto: S3Server
) -> None:
    output = open_output(store, f"{bucket}/large")
    await asyncio.to_thread(output.write, b"x" * 18_000_000)
    proxy.choose = lambda seen: Fault.DENY if _is_end(seen) else None
    with pytest.raises(AccessDeniedError):
        await output.finish()
    assert "Uploads" not in s3_moto.admin().list_multipart_uploads(Bucket=bucket)
    assert [meta async for meta in store.list_from(bucket)] == []


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.RESET, Fault.SLOW_DOWN])
async def test_an_upload_in_parts_gets_over_a_fault_at_its_end(
    store: S3Store, proxy: FaultProxy, bucket: str, fault: Fault
) -> None:
    output = open_output(store, f"{bucket}/large")
    await asyncio.to_thread(output.write, b"x" * 9_000_000)
    hits = iter([fault])
    proxy.choose = lambda seen: next(hits, None) if _is_end(seen) else None
    await output.finish(if_absent=True)
    assert (await store.head(f"{bucket}/large")).size_bytes == 9_000_000
    assert fault in [seen.fault for seen in proxy.requests]


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.RESET, Fault.EXPIRED, Fault.DENY])
async def test_an_upload_in_parts_is_whole_or_not_there_whichever_request_fails(
    store: S3Store, proxy: FaultProxy, bucket: str, s3_moto: S3Server, fault: Fault
) -> None:
    body = b"x" * (PART_BYTES + 1)
    await store.put(f"{bucket}/probed", b"", if_absent=True)
    for nth in itertools.count(1):
        path = f"{bucket}/{nth}"
        proxy.forget()
        proxy.fail_nth(nth, fault)
        output = open_output(store, path)
        try:
            await asyncio.to_thread(output.write, body)
            await output.finish(if_absent=True)
        except AccessDeniedError:
            assert fault is Fault.DENY
            await output.discard()
            proxy.forget()
            with pytest.raises(FileMissingError):
                await store.head(path)
        else:
            met = [seen.fault for seen in proxy.requests]
            proxy.forget()
            assert await store.get(path) == body
            if fault not in met:
                break
    assert nth > 4
    # One that was begun, and nobody heard of it.
    assert await store.sweep(bucket, 10**15) == (fault in (Fault.LOSE_ANSWER, Fault.RESET))
    assert "Uploads" not in s3_moto.admin().list_multipart_uploads(Bucket=bucket)


@pytest.mark.parametrize(
    ("parts", "is_met"),
    [
        (1, lambda seen: _is_end(seen)),
        (1, lambda seen: "partNumber=1" in seen.query),
        (5, lambda seen: "partNumber=1" in seen.query),
    ],
    ids=["end", "part", "many-parts"],
)
async def test_an_upload_that_somebody_else_aborts_says_so(
    store: S3Store, proxy: FaultProxy, bucket: str, parts: int, is_met: Callable[[Seen], bool]
) -> None:
    async def write() -> None:
        output = open_output(store, f"{bucket}/large")
        try:
            await asyncio.to_thread(output.write, b"x" * (PART_BYTES * parts + 1))
            await output.finish()
        finally:
            await output.discard()

    proxy.choose = lambda seen: Fault.NO_UPLOAD if is_met(seen) else None
    with pytest.raises(StorageError, match="was aborted by another process") as caught:
        await write()
    assert caught.value.retryable


async def test_uploads_of_dead_writers_are_swept(
    store: S3Store, bucket: str, s3_moto: S3Server
) -> None:
    admin = s3_moto.admin()
    for key in ("log/a", "log/b", "other/c"):
        admin.create_multipart_upload(Bucket=bucket, Key=key)
    assert await store.sweep(f"{bucket}/log", 1000) == 0
    assert await store.sweep(f"{bucket}/log", 10**15) == 2
    left = admin.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert [upload["Key"] for upload in left] == ["other/c"]


@pytest.mark.parametrize(
    ("is_refused", "right"),
    [
        (lambda seen: "uploads" in seen.query, "s3:ListBucketMultipartUploads"),
        (lambda seen: seen.kind == "delete", "s3:AbortMultipartUpload"),
    ],
    ids=["list", "abort"],
)
async def test_a_sweep_that_is_refused_names_the_right_it_lacks(
    store: S3Store,
    proxy: FaultProxy,
    bucket: str,
    s3_moto: S3Server,
    is_refused: Callable[[Seen], bool],
    right: str,
) -> None:
    s3_moto.admin().create_multipart_upload(Bucket=bucket, Key="log/a")
    proxy.choose = lambda seen: Fault.DENY if is_refused(seen) else None
    with pytest.raises(AccessDeniedError, match=f"the right {right} for it"):
        await store.sweep(f"{bucket}/log", 10**15)


async def test_an_upload_that_is_given_up_while_it_begins_leaves_nothing(
    store: S3Store, proxy: FaultProxy, bucket: str, s3_moto: S3Server
) -> None:
    proxy.delay_seconds = 0.3
    proxy.choose = lambda seen: Fault.DELAY if seen.query == "uploads" else None
    output = open_output(store, f"{bucket}/large")
    writing = asyncio.create_task(asyncio.to_thread(output.write, b"x" * (PART_BYTES * 3)))
    while not proxy.requests:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await output.discard()
    await writing
    assert "Uploads" not in s3_moto.admin().list_multipart_uploads(Bucket=bucket)
    assert [seen.kind for seen in proxy.requests] == ["other", "delete"]


@pytest.mark.parametrize("fault", [Fault.DENY, Fault.UNKNOWN])
async def test_an_upload_that_cannot_be_aborted_hides_nothing_of_why_it_failed(
    store: S3Store, proxy: FaultProxy, bucket: str, fault: Fault
) -> None:
    await store.put(f"{bucket}/large", b"", if_absent=True)
    output = open_output(store, f"{bucket}/large")
    await asyncio.to_thread(output.write, b"x" * 9_000_000)
    proxy.choose = lambda seen: fault if seen.kind == "delete" else None
    with pytest.raises(FileExistsAlreadyError):
        await output.finish(if_absent=True)
    given_up = open_output(store, f"{bucket}/larger")
    await asyncio.to_thread(given_up.write, b"x" * 9_000_000)
    await given_up.discard()


async def test_a_server_that_ignores_ranges_gives_no_other_bytes_than_those_asked_for(
    store: S3Store, proxy: FaultProxy, bucket: str
) -> None:
    await store.put(f"{bucket}/a", b"0123456789")
    proxy.choose = lambda seen: Fault.NO_RANGES
    # First the vendor's way, then ours.
    for _ in range(2):
        assert await store.get(f"{bucket}/a", 0, 10) == b"0123456789"
        assert await store.get(f"{bucket}/a", 0, 11) == b"0123456789"
        assert await store.get(f"{bucket}/a") == b"0123456789"
        for start, length in ((0, 9), (2, 3), (2, None), (10, 1)):
            with pytest.raises(StorageError, match="ignores Range requests"):
                await store.get(f"{bucket}/a", start, length)


async def test_many_files_are_deleted_with_one_request(
    store: S3Store, proxy: FaultProxy, bucket: str
) -> None:
    paths = [f"{bucket}/{n}" for n in range(30)]
    await asyncio.gather(*(store.put(path, b"") for path in paths))
    proxy.forget()
    await store.delete_many(paths[:20])
    assert proxy.counts() == {"delete": 1}
    assert len([meta async for meta in store.list_from(bucket)]) == 10


async def test_a_store_goes_to_another_process_without_its_connections(
    store: S3Store, bucket: str
) -> None:
    await store.put(f"{bucket}/a", b"a")
    again = pickle.loads(pickle.dumps(store))
    assert again.settings == store.settings
    assert await again.get(f"{bucket}/a") == b"a"


def _is_end(seen: Seen) -> bool:
    return seen.kind == "other" and "uploadId" in seen.query


@pytest.mark.parametrize("attempts", [1, 2])
async def test_looking_for_new_credentials_takes_no_attempt(
    s3_moto: S3Server, proxy: FaultProxy, bucket: str, attempts: int
) -> None:
    store = S3Store(S3Settings(default=replace(s3_moto.account(proxy.endpoint), attempts=attempts)))
    await store.put(f"{bucket}/a", b"a")
    before = [Fault.SLOW_DOWN] * (attempts - 1)
    faults = iter([*before, Fault.EXPIRED])
    proxy.choose = lambda seen: next(faults, None)
    assert await store.get(f"{bucket}/a") == b"a"
    proxy.choose = lambda seen: Fault.EXPIRED
    with pytest.raises(CredentialsExpiredError):
        await store.get(f"{bucket}/a")
